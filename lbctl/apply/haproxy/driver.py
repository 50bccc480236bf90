"""Keeps one running HAProxy in the state that a view describes.

Each attempt reads HAProxy's state, sends only the differences, and reads the state again. The second read reveals
rejected commands, and reloads triggered by other programs. A command counts as applied only if its effect is visible in
the state. Other changes require a new file and a reload. If a proxy has no Runtime API, it gets its weights through the
agent check, or through a new file and a reload.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from lbctl.apply.agent_check import AgentCheckServer, AgentStatus, Down
from lbctl.apply.fleet_files import Locate, digest, with_local_files
from lbctl.apply.haproxy import commands, diff, running
from lbctl.apply.haproxy.applied import SOON, Convergence, HaproxyResult
from lbctl.apply.haproxy.diff import Addresses, Cut
from lbctl.apply.haproxy.files import without_weights
from lbctl.apply.haproxy.reload import HaproxyReload, HaproxyReloader
from lbctl.apply.haproxy.running import Place, Running, UnreadableAnswerError
from lbctl.apply.haproxy.runtime import Runtime
from lbctl.apply.permit import Permit, always
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import TARGET, agents, config_digest, desired, slots
from lbctl.targets.haproxy.desired import Desired
from lbctl.targets.prepare import Prepared
from lbctl.targets.target import Bundle

_DUE_INTERVAL = 0.3
_STATUS_INTERVAL = 2.0
"""Seconds before the agent check's status is read again."""
_ROUNDS = 4
"""Maximum number of rounds. Adding, moving, draining and deleting servers can each take one round."""
_SUCCESS_REPLIES = ("New server registered.", "Server deleted.")
_HAS_CONNECTIONS = "still has connections"
_CANNOT_DELETE = "cannot be removed at runtime"
_T = TypeVar("_T")


class HaproxyUpdater:
    """Updates one proxy of the fleet through its `runtime_api`, `agent_check`, `config` and `reload` settings.

    Concurrent calls are executed one after another.
    """

    def __init__(
        self,
        proxy: Proxy,
        locate: Locate = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        permit: Permit = always,
    ) -> None:
        """`locate` finds the fleet's files. `permit` is called before each change."""
        self.proxy = proxy
        self._locate = locate
        self._runtime = Runtime(proxy.runtime_api, permit=permit) if proxy.runtime_api else None
        self._agents = AgentCheckServer(_ports_on_disk(proxy), permit=permit) if proxy.agent_check else None
        self._rendered: tuple[Prepared, Bundle] | None = None
        self._reloader = _reloader(proxy, self._runtime, clock, permit)
        self._lock = asyncio.Lock()
        self._pid: int | None = None
        self._undeletable: set[Place] = set()
        self._unaddable: set[Place] = set()
        self._loaded: tuple[str, int | None] | None = None

    async def close(self) -> None:
        """Stop the agent-check server."""
        if self._agents is not None:
            await self._agents.close()

    async def apply(
        self, prepared: Prepared, cut: Cut = (), addresses: Addresses | None = None, down: Down | None = None
    ) -> HaproxyResult:
        """Apply the live snapshot's configuration using every method the proxy has, including a new file and a reload.

        `cut` contains the removed replicas whose remaining requests are aborted. `addresses` contains the host names'
        resolved IP addresses. `down` contains the replicas that an agent check reports as down, with the reasons.
        """
        view = _resolved_view(prepared.view)
        async with self._lock:
            if self._runtime is not None:
                return await self._with_runtime(self._runtime, view, cut, addresses)
            return await self._by_file(prepared, view, down)

    def _render(self, view: View) -> Bundle:
        """Render the files, and compute a digest that also covers the certificates and keys that HAProxy reads."""
        local, contents = with_local_files(view, self._locate, Path(self.proxy.config or ""))
        return config_digest.covering(TARGET.render(local), digest(contents) if contents else "")

    async def converge(self, view: View, cut: Cut = (), addresses: Addresses | None = None) -> HaproxyResult:
        """Apply the view through the Runtime API only. Raises ValueError if the proxy has no Runtime API.

        Use this method for a view whose rendered text has not changed, and to restore state that HAProxy has lost.
        """
        async with self._lock:
            return await self._converge(self._require_runtime(), view, "", cut, addresses)

    def _require_runtime(self) -> Runtime:
        if self._runtime is None:
            raise ValueError(f"{self.proxy.name} has no runtime_api")
        return self._runtime

    async def _with_runtime(self, runtime: Runtime, view: View, cut: Cut, addresses: Addresses | None) -> HaproxyResult:
        bundle = await asyncio.to_thread(self._render, view)
        wanted = config_digest.of(bundle)
        first_read = Convergence()
        now = await self._read(runtime, first_read)
        reload = await self._reload(bundle, now.pid) if now is not None and now.digest != wanted else None
        applied = await self._converge(runtime, view, wanted, cut, addresses)
        applied = replace(applied, restarted=applied.restarted or first_read.restarted)
        if applied.pid is None:
            return await self._write_for_start(bundle, applied)
        if applied.reload and reload is None:
            reload = await self._reload(bundle, applied.pid)
            if reload and reload.done:
                after = await self._converge(runtime, view, wanted, cut, addresses)
                applied = replace(after, sent=(*applied.sent, *after.sent))
        if reload is None:
            return applied if applied.reload else await self._write_changes(bundle, applied)
        if reload.done:
            self._loaded = (without_weights(bundle), applied.pid)
            return replace(applied, reloaded=True)
        return replace(
            applied,
            retry_after=reload.retry_after or applied.retry_after,
            failure=reload.failure,
            complaints=reload.complaints,
        )

    async def _reload(self, bundle: Bundle, pid: int | None) -> HaproxyReload | None:
        """Reload HAProxy. Return None if HAProxy cannot be reloaded or has already loaded the same file."""
        if self._reloader is None or self._loaded == (without_weights(bundle), pid):
            return None
        return await self._reloader.reload(bundle)

    async def _write_changes(self, bundle: Bundle, applied: HaproxyResult) -> HaproxyResult:
        """Write the file, so that HAProxy has the same servers after its next start.

        If only weights differ, write nothing.
        """
        if self._reloader is None or self._reloader.files.difference(bundle).weights_alone:
            return applied
        written = await self._reloader.write(bundle)
        return applied if written.done else replace(applied, failure=written.failure, complaints=written.complaints)

    async def _write_for_start(self, bundle: Bundle, applied: HaproxyResult) -> HaproxyResult:
        if self._reloader is None or not self._reloader.files.difference(bundle).any:
            return applied
        written = await self._reloader.write(bundle)
        return applied if written.done else replace(applied, failure=f"{applied.failure}; {written.failure}")

    async def _by_file(self, prepared: Prepared, view: View, down: Down | None) -> HaproxyResult:
        """Apply the view through agent checks and a file.

        The agent-check responses are updated first, because they are valid for any file and health changes must not
        wait for a reload.
        """
        if self._rendered is None or self._rendered[0] is not prepared:
            self._rendered = prepared, await asyncio.to_thread(self._render, view)
        bind_failures = await self._agents.update(view, down) if self._agents is not None else ()
        reload = await self._reload_changes(self._rendered[1])
        reloaded = reload.done and reload is not _UNCHANGED
        if self._agents is not None and reloaded:
            self._agents.reloaded()
        agents_status = self._agents.status() if self._agents is not None else AgentStatus()
        failure = "; ".join(filter(None, [reload.failure, *bind_failures]))
        return HaproxyResult(
            done=reload.done and not failure and agents_status == AgentStatus(),
            reload=() if reload.done else ("its new file takes effect at the next reload",),
            reloaded=reloaded,
            retry_after=reload.retry_after
            or (_DUE_INTERVAL if agents_status.due else _STATUS_INTERVAL if self._agents else None),
            failure=failure,
            complaints=reload.complaints,
            due=agents_status.due,
            wrong=agents_status.wrong,
        )

    async def _reload_changes(self, bundle: Bundle) -> HaproxyReload:
        if self._reloader is None:
            return _UNCHANGED if self._agents else HaproxyReload(False, f"{self.proxy.name} needs config and reload")
        difference = self._reloader.files.difference(bundle)
        if not difference.any:
            return _UNCHANGED
        return await self._reloader.reload(bundle, weights_alone=difference.weights_alone)

    async def _converge(
        self, runtime: Runtime, view: View, wanted_digest: str, cut: Cut, addresses: Addresses | None
    ) -> HaproxyResult:
        wanted = desired.desired(view)
        progress = Convergence()
        for _ in range(_ROUNDS):
            now = await self._read(runtime, progress)
            if now is not None:
                now = await self._with_limits(runtime, wanted, now, progress)
            if now is None:
                return progress.applied(retry_after=SOON)
            try:
                progress.plan = diff.plan(wanted, now, cut, addresses, self._undeletable, self._unaddable)
            except commands.UnsafeError as error:
                progress.fail(f"{runtime.address}: {error}")
                return progress.applied(retry_after=SOON)
            remaining = [command for command in progress.plan.commands if command not in progress.rejections]
            if not remaining:
                break
            await self._send(runtime, remaining, progress)
        return progress.applied(wanted_digest=wanted_digest)

    async def _read(self, runtime: Runtime, progress: Convergence) -> Running | None:
        texts = []
        for question in running.QUESTIONS:
            answer = await runtime.query(question)
            if answer.failure:
                progress.fail(answer.failure)
                return None
            texts.append(answer.texts[0])
        now = await self._parsed(runtime, progress, running.read, *texts)
        if now is None:
            return None
        if now.pid != self._pid:
            progress.restarted = self._pid is not None
            self._undeletable.clear()
            self._unaddable.clear()
            self._pid = now.pid
        if any(slots.is_slot(name) for _, name in now.servers):
            answer = await runtime.query(running.SLOTS)
            if answer.failure:
                progress.fail(answer.failure)
                return None
            occupied = await self._parsed(runtime, progress, running.occupants, now.servers, answer.texts[0])
            if occupied is None:
                return None
            now = replace(now, slots=occupied)
        progress.now = now
        return now

    async def _parsed(
        self, runtime: Runtime, progress: Convergence, parse: Callable[..., _T], *arguments: object
    ) -> _T | None:
        """Parse responses in a thread, because they may be large.

        If the responses are unreadable, record the failure and return None.
        """
        try:
            return await asyncio.to_thread(parse, *arguments)
        except UnreadableAnswerError as error:
            progress.fail(f"{runtime.address}: {error}")
            return None

    async def _with_limits(
        self, runtime: Runtime, wanted: Desired, now: Running, progress: Convergence
    ) -> Running | None:
        answers = await runtime.send([commands.get_limit(name) for name, _ in wanted.limits])
        if answers.failure:
            progress.fail(answers.failure)
            return None
        names = (name for name, _ in wanted.limits)
        return replace(now, limits=running.limits(dict(zip(names, answers.texts, strict=True))))

    async def _send(self, runtime: Runtime, sent: list[str], progress: Convergence) -> None:
        replies = await runtime.send(sent)
        for command, reply in zip(sent, replies.texts, strict=False):
            progress.sent.append(command)
            if reply in ("", *_SUCCESS_REPLIES) or " addr " in command:
                continue
            if command.startswith("del server "):
                if _CANNOT_DELETE in reply:
                    self._undeletable.add(_server_of_command(command))
                elif _HAS_CONNECTIONS in reply:
                    progress.busy = True
            elif command.startswith("add server ") and progress.has_slots(_named_server(command)):
                self._unaddable.add(_named_server(command))
            if _named_server(command) in self._unaddable:
                continue
            progress.rejections[command] = reply
        if replies.failure:
            progress.fail(replies.failure)


_UNCHANGED = HaproxyReload(True)
"""The result if no change was necessary."""


def _reloader(
    proxy: Proxy, runtime: Runtime | None, clock: Callable[[], float], permit: Permit
) -> HaproxyReloader | None:
    if not proxy.config or not proxy.reload:
        return None
    return HaproxyReloader(proxy, proxy.reload, runtime, clock, permit=permit)


def _ports_on_disk(proxy: Proxy) -> frozenset[int]:
    """Return the agent-check ports in the existing file, with which HAProxy may be running."""
    if proxy.config is None or proxy.agent_check is None:
        return frozenset()
    try:
        return agents.ports(Path(proxy.config).read_text(errors="replace"), proxy.agent_check)
    except OSError:
        return frozenset()


def _resolved_view(view: View) -> View:
    """Return the view with its replicas listed individually, so that HAProxy does not resolve names itself."""
    return replace(view, pools={name: replace(pool, discovery=None) for name, pool in view.pools.items()})


def _named_server(command: str) -> Place:
    """Return the server named in the third word of a command such as `add server b/s`."""
    return _server_of_command(" ".join(command.split()[:3]))


def _server_of_command(command: str) -> Place:
    backend, _, server = command.rpartition(" ")[2].partition("/")
    return backend, server
