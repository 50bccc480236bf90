"""Brings one running HAProxy to what a view wants, and keeps it there.

Each attempt reads HAProxy's state, sends only the differences, and reads the state again: a rejected command or a
reload by somebody else shows there, and nothing is assumed because it was sent. What the Runtime API cannot change is
changed by file and reload. A proxy without the API gets its weights through the agent check, or by file and reload.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from lbctl.apply.agent_check import AgentCheck, AgentStatus, Down
from lbctl.apply.haproxy import commands, diff, running
from lbctl.apply.haproxy.applied import SOON, Applied, Progress
from lbctl.apply.haproxy.diff import Addresses, Cut
from lbctl.apply.haproxy.files import bare
from lbctl.apply.haproxy.reload import Reloaded, Reloader
from lbctl.apply.haproxy.running import Place, Running, UnreadableError
from lbctl.apply.haproxy.runtime import Runtime
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import agents, config_digest, desired
from lbctl.targets.haproxy.desired import Desired
from lbctl.targets.prepare import Prepared
from lbctl.targets.target import Bundle

_SOON_ASKED = 0.3
_ASKED = 2.0
"""Seconds until the agent check's status is read again."""
_ROUNDS = 4
"""Servers are added, moved, drained and deleted, so at most four rounds are needed."""
_GOOD = ("New server registered.", "Server deleted.")
_STILL_BUSY = "still has connections"
_STAYS = "cannot be removed at runtime"


class HaproxyUpdater:
    """Updates one proxy of the fleet by its `runtime_api`, `agent_check`, `config` and `reload`, where it has them.

    Concurrent calls run one after another.
    """

    def __init__(self, proxy: Proxy, clock: Callable[[], float] = time.monotonic) -> None:
        self.proxy = proxy
        self._runtime = Runtime(proxy.runtime_api) if proxy.runtime_api else None
        self._agents = AgentCheck(_older(proxy)) if proxy.agent_check else None
        self._rendered: tuple[Prepared, Bundle] | None = None
        self._reloader = _reloader(proxy, self._runtime, clock)
        self._turn = asyncio.Lock()
        self._pid: int | None = None
        self._kept: set[Place] = set()
        self._loaded: tuple[str, int | None] | None = None

    async def close(self) -> None:
        """Stop the agent-check server."""
        if self._agents is not None:
            await self._agents.close()

    async def apply(
        self, prepared: Prepared, cut: Cut = (), addresses: Addresses | None = None, down: Down | None = None
    ) -> Applied:
        """Apply the live snapshot's configuration by every method that the proxy has, including file and reload.

        `cut`: removed replicas whose remaining requests are ended. `addresses`: of `Snapshot`. `down`: for an agent
        check, the replicas that are out, and why.
        """
        view = _served(prepared, self.proxy)
        async with self._turn:
            if self._runtime is not None:
                return await self._with_runtime(self._runtime, prepared, view, cut, addresses)
            return await self._by_file(prepared, view, down)

    async def converge(self, view: View, cut: Cut = (), addresses: Addresses | None = None) -> Applied:
        """Apply the view by the Runtime API alone. Raises ValueError if the proxy has none.

        It is for a view whose rendered text has not changed, and for restoring state that HAProxy has lost.
        """
        async with self._turn:
            return await self._converge(self._needed(), view, "", cut, addresses)

    def _needed(self) -> Runtime:
        if self._runtime is None:
            raise ValueError(f"{self.proxy.name} has no runtime_api")
        return self._runtime

    async def _with_runtime(
        self, runtime: Runtime, prepared: Prepared, view: View, cut: Cut, addresses: Addresses | None
    ) -> Applied:
        bundle = await asyncio.to_thread(prepared.target.render, view)
        wanted = config_digest.of(bundle)
        first = Progress()
        now = await self._read(runtime, first)
        reload = await self._reload(bundle, now.pid) if now is not None and now.shape != wanted else None
        applied = await self._converge(runtime, view, wanted, cut, addresses)
        applied = replace(applied, restarted=applied.restarted or first.restarted)
        if applied.pid is None:
            return await self._for_its_start(bundle, applied)
        if applied.reload and reload is None:
            reload = await self._reload(bundle, applied.pid)
            if reload and reload.done:
                after = await self._converge(runtime, view, wanted, cut, addresses)
                applied = replace(after, sent=(*applied.sent, *after.sent))
        if reload is None:
            return applied if applied.reload else await self._on_disk(bundle, applied)
        if reload.done:
            self._loaded = (bare(bundle), applied.pid)
            return replace(applied, reloaded=True)
        return replace(
            applied, again=reload.again or applied.again, failure=reload.failure, complaints=reload.complaints
        )

    async def _reload(self, bundle: Bundle, pid: int | None) -> Reloaded | None:
        """Reload, or return None where that is impossible or was already done with the same file."""
        if self._reloader is None or self._loaded == (bare(bundle), pid):
            return None
        return await self._reloader.reload(bundle)

    async def _on_disk(self, bundle: Bundle, applied: Applied) -> Applied:
        """Write the file, so that the next start has the same servers; weights alone are not written."""
        if self._reloader is None or self._reloader.files.difference(bundle).weights_alone:
            return applied
        written = await self._reloader.write(bundle)
        return applied if written.done else replace(applied, failure=written.failure, complaints=written.complaints)

    async def _for_its_start(self, bundle: Bundle, applied: Applied) -> Applied:
        if self._reloader is None or not self._reloader.files.difference(bundle).any:
            return applied
        written = await self._reloader.write(bundle)
        return applied if written.done else replace(applied, failure=f"{applied.failure}; {written.failure}")

    async def _by_file(self, prepared: Prepared, view: View, down: Down | None) -> Applied:
        """Update the agent answers first: they fit whichever file runs, and health must not wait for a reload."""
        if self._rendered is None or self._rendered[0] is not prepared:
            self._rendered = prepared, await asyncio.to_thread(prepared.target.render, view)
        trouble = await self._agents.tell(view, down) if self._agents is not None else ()
        reload = await self._reloaded(self._rendered[1])
        reloaded = reload.done and reload is not _NOTHING
        if self._agents is not None and reloaded:
            self._agents.reloaded()
        agents_status = self._agents.standing() if self._agents is not None else AgentStatus()
        failure = "; ".join(filter(None, [reload.failure, *trouble]))
        return Applied(
            done=reload.done and not failure and agents_status == AgentStatus(),
            reload=() if reload.done else ("its file waits for the next reload",),
            reloaded=reloaded,
            again=reload.again or (_SOON_ASKED if agents_status.due else _ASKED if self._agents else None),
            failure=failure,
            complaints=reload.complaints,
            due=agents_status.due,
            wrong=agents_status.wrong,
        )

    async def _reloaded(self, bundle: Bundle) -> Reloaded:
        if self._reloader is None:
            return _NOTHING if self._agents else Reloaded(False, f"{self.proxy.name} has no config and reload")
        differs = self._reloader.files.difference(bundle)
        if not differs.any:
            return _NOTHING
        return await self._reloader.reload(bundle, weights_alone=differs.weights_alone)

    async def _converge(
        self, runtime: Runtime, view: View, wanted_shape: str, cut: Cut, addresses: Addresses | None
    ) -> Applied:
        wanted = desired.desired(view)
        progress = Progress()
        for _ in range(_ROUNDS):
            now = await self._read(runtime, progress)
            if now is not None:
                now = await self._with_limits(runtime, wanted, now, progress)
            if now is None:
                return progress.applied(again=SOON)
            try:
                progress.plan = diff.plan(wanted, now, cut, addresses, self._kept)
            except commands.UnsafeError as error:
                progress.fail(f"{runtime.place}: {error}")
                return progress.applied(again=SOON)
            left = [each for each in progress.plan.commands if each not in progress.words]
            if not left:
                break
            await self._send(runtime, left, progress)
        return progress.applied(wanted_shape=wanted_shape)

    async def _read(self, runtime: Runtime, progress: Progress) -> Running | None:
        texts = []
        for question in running.QUESTIONS:
            answer = await runtime.ask(question)
            if answer.failure:
                progress.fail(answer.failure)
                return None
            texts.append(answer.texts[0])
        try:
            now = await asyncio.to_thread(running.read, *texts)
        except UnreadableError as error:
            progress.fail(f"{runtime.place}: {error}")
            return None
        if now.pid != self._pid:
            progress.restarted = self._pid is not None
            self._kept.clear()
            self._pid = now.pid
        progress.now = now
        return now

    async def _with_limits(self, runtime: Runtime, wanted: Desired, now: Running, progress: Progress) -> Running | None:
        answers = await runtime.tell([commands.ask_limit(name) for name, _ in wanted.limits])
        if answers.failure:
            progress.fail(answers.failure)
            return None
        names = (name for name, _ in wanted.limits)
        return replace(now, limits=running.limits(dict(zip(names, answers.texts, strict=True))))

    async def _send(self, runtime: Runtime, sent: list[str], progress: Progress) -> None:
        replies = await runtime.tell(sent)
        for command, reply in zip(sent, replies.texts, strict=False):
            progress.sent.append(command)
            if reply in ("", *_GOOD) or " addr " in command:
                continue
            if command.startswith("del server "):
                if _STAYS in reply:
                    self._kept.add(_place(command))
                elif _STILL_BUSY in reply:
                    progress.busy = True
            progress.words[command] = reply
        if replies.failure:
            progress.fail(replies.failure)


_NOTHING = Reloaded(True)
"""The result if nothing had to be done."""


def _reloader(proxy: Proxy, runtime: Runtime | None, clock: Callable[[], float]) -> Reloader | None:
    return Reloader(proxy.config, proxy.reload, runtime, clock) if proxy.config and proxy.reload else None


def _older(proxy: Proxy) -> frozenset[int]:
    """Return the agents' ports in the existing file, which may be running."""
    if proxy.config is None or proxy.agent_check is None:
        return frozenset()
    try:
        return agents.ports(Path(proxy.config).read_text(errors="replace"), proxy.agent_check)
    except OSError:
        return frozenset()


def _served(prepared: Prepared, proxy: Proxy) -> View:
    """Return the view relative to the proxy's file, with replicas listed, so that HAProxy resolves no names."""
    view = prepared.rooted(os.path.dirname(proxy.config) if proxy.config else "")  # noqa: PTH120 -- a str
    return replace(view, pools={name: replace(pool, discovery=None) for name, pool in view.pools.items()})


def _place(command: str) -> Place:
    backend, _, server = command.rpartition(" ")[2].partition("/")
    return backend, server
