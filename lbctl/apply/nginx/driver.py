"""Updates a running nginx on this machine with render, `nginx -t`, swap and reload, and rolls back on failure.

nginx reads weights and drains only from its configuration. The new configuration is therefore written in full, tested
alongside the running configuration, swapped in atomically and loaded. A reload counts as successful once new workers
are serving requests. Otherwise, the previous configuration is restored on disk and in memory. Old workers finish their
requests, including requests to a drained replica, because nginx cannot abort the requests to a single replica. After
`worker_shutdown_timeout` (30 minutes), nginx aborts the remaining requests. This module never starts or stops nginx.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lbctl.apply.binaries import find_binary
from lbctl.apply.command import Done, run
from lbctl.apply.files import write_bundle
from lbctl.apply.fleet_files import Locate, digest, with_local_files
from lbctl.apply.host import HostError
from lbctl.apply.nginx import host
from lbctl.apply.nginx.generations import Generations
from lbctl.apply.nginx.master import Master, Verdict, Workers, find, judge
from lbctl.apply.nginx.reload_schedule import Reason, ReloadSchedule, reason, retry_after, same_shape, with_live_state
from lbctl.apply.permit import NOT_PERMITTED, Permit, always
from lbctl.base.errors import reason_of
from lbctl.ir.proxies import Proxy, Reload
from lbctl.ir.snapshot import Snapshot, View
from lbctl.targets.load import Loaded
from lbctl.targets.nginx import TARGET
from lbctl.targets.own_lines import complaint_text
from lbctl.targets.prepare import Prepared, prepare
from lbctl.targets.target import Bundle

Outcome = Literal["applied", "same", "refused", "unconfirmed", "absent"]
"""The result of an attempt.

applied: new workers are using the configuration. same: the configuration was already running. refused: the previous
configuration is still running. unconfirmed: the configuration is on disk and the command succeeded, but no visible
nginx is using the file. absent: the configuration is on disk, but nginx is not running.
"""
_NO_PROGRAM = "the program nginx is not installed on this machine, so the configuration cannot be tested"
_POLL_INTERVAL = 0.01
_TEST_TIMEOUT = 60.0
_COMMAND_TIMEOUT = 30.0
_START_TIMEOUT = 2.0
_FINISH_TIMEOUT = 5.0
"""Maximum time, in seconds, that lbctl waits before it exits for a reload that has started."""


@dataclass(frozen=True, slots=True)
class NginxResult:
    """The result of one attempt.

    `reason`: the reason why the attempt failed, with nginx's own message. `behind`: nginx has rejected the newest fleet
    and is running the previous one with the newest weights and drains. `seconds`: the duration. `finishing`: the number
    of workers from earlier generations that still have requests. `at`: the time, in seconds since the epoch.
    """

    outcome: Outcome
    reason: str = ""
    behind: bool = False
    seconds: float = 0.0
    finishing: int = 0
    at: float = 0.0

    @property
    def reloaded(self) -> bool:
        """Return whether a reload was attempted."""
        return self.outcome != "same"


@dataclass(frozen=True, slots=True)
class _Refusal:
    view: View
    reason: str
    count: int
    until: float


def prepared(proxy: Proxy, loaded: Loaded, snapshot: Snapshot) -> Prepared:
    """Return the view for `proxy`, with discovered replicas replacing their discovery source."""
    pools = tuple(
        replace(pool, discovery=None) if pool.discovery is not None and not pool.discovery.compiled else pool
        for pool in snapshot.topology.pools
    )
    resolved = replace(snapshot, topology=replace(snapshot.topology, pools=pools))
    return prepare(TARGET, loaded.compiled, proxy, resolved)


class NginxUpdater:
    """Updates one proxy. `want` sets the desired configuration, and `run` applies it at the right times.

    `locate` finds the fleet's files.
    """

    def __init__(
        self,
        proxy: Proxy,
        locate: Locate = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        permit: Permit = always,
    ) -> None:
        """`permit` is called before each change."""
        self._permit = permit
        assert proxy.config is not None
        self.proxy = proxy
        self._reload = proxy.reload or Reload((TARGET.binary, "-s", "reload"))
        self._locate = locate
        self._clock = clock
        self._generations = Generations(Path(proxy.config).absolute())
        self._schedule = ReloadSchedule(self._reload.min_interval / 1000)
        self._wanted: Prepared | None = None
        self._accepted: View | None = None
        self._refusal: _Refusal | None = None
        self._running_stamp: str | None = None
        self._lock = asyncio.Lock()
        self._changed = asyncio.Event()

    @property
    def accepted(self) -> View | None:
        """The last view that nginx accepted, or None before the first one."""
        return self._accepted

    # ── When ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def want(self, newest: Prepared, why: Reason | None = None, *, evidence: bool = False, offset: float = 0.0) -> None:
        """Set the desired view. Call this only from the event loop.

        If `why` is None, it is derived from the difference. `evidence` means that weights differ only because of the
        replicas' signals, in which case the reload is delayed by `offset` seconds.
        """
        before = self._wanted.view if self._wanted else None
        self._wanted = newest
        why = why or reason(before, newest.view)
        why = "evidence" if evidence and why == "weights" else why
        schedule = replace(self._schedule, offset=offset)
        self._schedule = schedule.observe(self._accepted, newest.view, self._clock()).want(why)
        self._changed.set()

    async def run(self, record: Callable[[NginxResult], None]) -> None:
        """Apply the desired view until cancelled, and call `record` after each attempt.

        On cancellation, a reload in progress is allowed to finish.
        """
        while True:
            await self._until_due()
            attempt = asyncio.ensure_future(self._next())
            try:
                record(await asyncio.shield(attempt))
            except asyncio.CancelledError:
                await asyncio.wait([attempt], timeout=_FINISH_TIMEOUT)
                raise

    async def _until_due(self) -> None:
        while (seconds := self.seconds_until_due()) is None or seconds > 0:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()

    def seconds_until_due(self) -> float | None:
        """Return the seconds until the next attempt, 0 or less if it is due now, or None if none is planned."""
        if self._wanted is None:
            return None
        times = [self._schedule.due(), self._refusal.until if self._refusal else None]
        due = [when for when in times if when is not None]
        return min(due) - self._clock() if due else None

    async def _next(self) -> NginxResult:
        newest, reason_wanted = self._wanted, self._schedule.wanted
        assert newest is not None
        self._schedule = replace(self._schedule, wanted=None)
        applied = await self.converge(newest)
        later = self._schedule.wanted
        self._schedule = self._schedule.done(self._clock(), reloaded=applied.reloaded)
        if reason_wanted and self._needs_live_state(applied, newest.view):
            self._schedule = self._schedule.want("health")
        if later is not None:
            self._schedule = self._schedule.want(later)
        return applied

    def _needs_live_state(self, applied: NginxResult, newest: View) -> bool:
        """Return whether a new fleet was just rejected, so that the running fleet needs the new weights and drains."""
        is_new = applied.outcome == "refused" and not applied.behind
        return is_new and self._accepted is not None and not same_shape(self._accepted, newest)

    # ── What ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def converge(self, newest: Prepared) -> NginxResult:
        """Apply now, regardless of the time since the last reload.

        If the configuration is already running, do nothing.
        """
        async with self._lock:
            started = time.monotonic()
            refusal, view, behind = self._refusal, newest.view, False
            if refusal and self._clock() < refusal.until and same_shape(refusal.view, view):
                if self._accepted is None:
                    return NginxResult("refused", refusal.reason, at=time.time())
                behind = not same_shape(self._accepted, view)
                view = with_live_state(self._accepted, view) if behind else view
            try:
                applied = await self._apply(view)
            except OSError as error:
                applied = NginxResult("refused", f"{error.filename or self._generations.config}: {reason_of(error)}")
            self._remember(newest.view, view, behind, applied)
            return replace(applied, behind=behind, seconds=time.monotonic() - started, at=time.time())

    def _remember(self, newest: View, view: View, behind: bool, applied: NginxResult) -> None:
        if applied.outcome != "refused":
            self._accepted = view
            self._refusal = self._refusal if behind else None
        elif not behind:
            earlier = self._refusal
            count = earlier.count + 1 if earlier and same_shape(earlier.view, newest) else 1
            self._refusal = _Refusal(newest, applied.reason, count, self._clock() + retry_after(count))

    async def _apply(self, view: View) -> NginxResult:
        bundle, stamp = await asyncio.to_thread(self._render, view)
        if await asyncio.to_thread(self._is_running, bundle, stamp):
            return NginxResult("same")
        generation = await asyncio.to_thread(self._generations.stage, bundle)
        refused = await (self._test_within(view) if view.proxy.is_fragment else self._test(generation, bundle))
        if refused:
            self._generations.discard(generation)
            return NginxResult("refused", refused)
        applied = await self._swap(generation, bundle)
        if applied.outcome == "refused":
            self._generations.discard(generation)
        else:
            self._running_stamp = stamp
            await asyncio.to_thread(self._generations.keep, bundle, stamp)
        return applied

    def _render(self, view: View) -> tuple[Bundle, str]:
        """Render the files, and compute a digest of them and of the certificates and keys that nginx reads."""
        local, contents = with_local_files(view, self._locate, self._generations.config)
        bundle = TARGET.render(local)
        return bundle, digest({item.name: item.text.encode() for item in bundle.files} | contents)

    def _is_running(self, bundle: Bundle, stamp: str) -> bool:
        running = self._running_stamp if self._running_stamp is not None else self._generations.running()
        return running == stamp and self._generations.holds(bundle)

    # ── nginx itself ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def is_visible(self) -> bool:
        """Return whether a visible nginx master process on this machine is using the file."""
        return await self._find() is not None

    async def _find(self) -> Master | None:
        """Return the master process that is using the file, directly or through the host's main file."""
        main = host.main_of(self.proxy) if self.proxy.is_fragment else ()
        config = Path(main[0]) if main else self._generations.config
        return await asyncio.to_thread(find, config, self._binary or TARGET.binary)

    @property
    def _binary(self) -> str | None:
        """Return the nginx program whose path is named in the reload command, or the installed program."""
        program = Path(self._reload.command[0])
        return str(program) if program.is_absolute() and program.name == TARGET.binary else find_binary(TARGET)

    async def _test(self, generation: Path, bundle: Bundle) -> str:
        """Return the reason why nginx rejects the files, or an empty string if it accepts them."""
        binary = self._binary
        if binary is None:
            return _NO_PROGRAM
        main = str(generation / bundle.main.name)
        return _refusal(await run(TARGET.check_command(binary, str(generation), main), _TEST_TIMEOUT), bundle)

    async def _test_within(self, view: View) -> str:
        """Return the reason why nginx rejects a fragment within a copy of its main file, or "" if it accepts it."""
        binary, main = self._binary, host.main_of(self.proxy)
        if binary is None:
            return _NO_PROGRAM
        if not main:
            return f"there is no nginx.conf above {self.proxy.config}, and `reload` does not set one with -c"
        with tempfile.TemporaryDirectory(prefix="lbctl-") as directory:
            place = Path(directory) / Path(self.proxy.config or "").name
            local, _ = with_local_files(view, self._locate, self._generations.config)
            bundle = TARGET.render(replace(local, proxy=replace(local.proxy, config=str(place))))
            try:
                await asyncio.to_thread(write_bundle, bundle, directory)
                fragment = Path(directory) / bundle.main.name
                checkable = await asyncio.to_thread(host.checkable, binary, Path(directory), fragment, self.proxy, main)
            except HostError as error:
                return str(error)
            done = await run(checkable.command, _TEST_TIMEOUT)
            return _refusal(replace(done, output=checkable.readable(done.output)), bundle)

    async def _swap(self, generation: Path, bundle: Bundle) -> NginxResult:
        master = await self._find()
        if not self._permit():
            return NginxResult("refused", NOT_PERMITTED)
        swapped = await asyncio.to_thread(self._generations.swap, generation, bundle)
        if master is None:
            return await self._reload_unseen()
        verdict = await self._reload_master(master)
        if not verdict.succeeded:
            await asyncio.to_thread(self._generations.undo, swapped)
            restored = await self._reload_master(master)
            suffix = "" if restored.succeeded else f"; the previous one does not load either: {restored.reason}"
            return NginxResult("refused", verdict.reason + suffix, finishing=len(master.workers().finishing))
        return NginxResult("applied", finishing=len(master.workers().finishing))

    async def _reload_master(self, master: Master) -> Verdict:
        before, log = await self._initial_workers(master), master.log()
        if not self._permit():
            return Verdict(succeeded=False, reason=NOT_PERMITTED)
        done = await run(self._reload.command, _COMMAND_TIMEOUT)
        if done.code != 0:
            return Verdict(succeeded=False, reason=f"{self._reload.command[0]}: {done.last_line}")
        started = time.monotonic()
        while True:
            verdict = judge(before, master.workers(), log.read(), time.monotonic() - started)
            if verdict is not None:
                return verdict
            await asyncio.sleep(_POLL_INTERVAL)

    async def _initial_workers(self, master: Master) -> Workers:
        """Return the workers before a reload.

        If nginx has just started, wait briefly for its first workers, which would otherwise be mistaken for new
        workers.
        """
        deadline = time.monotonic() + _START_TIMEOUT
        while not (workers := master.workers()).active and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_INTERVAL)
        return workers

    async def _reload_unseen(self) -> NginxResult:
        """Reload even though no master process is visible. The command's exit code shows whether one exists."""
        done = await run(self._reload.command, _COMMAND_TIMEOUT)
        place = self._generations.config
        if done.code != 0:
            return NginxResult("absent", f"no running nginx uses {place}: {done.last_line}")
        return NginxResult(
            "unconfirmed",
            f"no running nginx with {place} was found, so it is unknown whether the configuration was loaded",
        )


def _refusal(done: Done, bundle: Bundle) -> str:
    """Return the first error from `nginx -t`, or an empty string if it accepts the files."""
    if done.code == 0:
        return ""
    for item in TARGET.complaints(done.output, bundle):
        return f"nginx -t: {complaint_text(item, bundle)}"
    return f"nginx -t: {done.last_line}"
