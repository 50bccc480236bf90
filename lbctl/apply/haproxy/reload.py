"""Reloads HAProxy by installing a checked file, running the fleet's reload command, and verifying the result.

The exit code of a reload command does not prove success, because if HAProxy's master cannot load the new configuration,
it continues with its old worker. A reload therefore counts as successful only if a new worker appears. With the Runtime
API, this is a worker with a different process ID that reports the new digest. Without the API, it is a new process that
keeps running. If no new worker appears, the old files are restored.

Weights and drains are in the new file, so HAProxy does not need a server state file.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from lbctl.apply import command
from lbctl.apply.haproxy import processes, running
from lbctl.apply.haproxy.files import Files, without_weights
from lbctl.apply.haproxy.runtime import Runtime
from lbctl.apply.permit import NOT_PERMITTED, Permit, always
from lbctl.base.errors import reason_of
from lbctl.ir.proxies import Proxy, Reload
from lbctl.targets.haproxy import config_digest
from lbctl.targets.own_lines import complaint_text
from lbctl.targets.target import Bundle, Complaint

_COMMAND_TIMEOUT = 30.0
_START_TIMEOUT = 10.0
_STABLE_AFTER = 1.0
"""Seconds that a new process must keep running if HAProxy has no Runtime API. If a port is in use, HAProxy retries for
1 s."""
_POLL_INTERVAL = 0.05
MIN_INTERVAL = 5.0
"""Minimum time between two reloads for any reason, in seconds."""
RETRY_AFTER = 30.0
"""Seconds before a failed reload is retried."""


@dataclass(frozen=True, slots=True)
class HaproxyReload:
    """The result of a reload. `done` means that HAProxy is running with the new file.

    Otherwise, `failure` states the reason, together with any `complaints` from the checker, or the reload must wait for
    `retry_after` seconds.
    """

    done: bool
    failure: str = ""
    complaints: tuple[Complaint, ...] = ()
    retry_after: float | None = None


_NOT_PERMITTED = HaproxyReload(False, NOT_PERMITTED)


class HaproxyReloader:
    """Reloads one HAProxy, at most once every few seconds, and does not retry rejected configuration."""

    def __init__(
        self,
        proxy: Proxy,
        settings: Reload,
        runtime: Runtime | None,
        clock: Callable[[], float] = time.monotonic,
        start_timeout: float = _START_TIMEOUT,
        permit: Permit = always,
    ) -> None:
        """`start_timeout` is the number of seconds to wait for a new worker. `permit` is called before each change."""
        self._permit = permit
        self.files = Files(proxy)
        self._config = proxy.config or ""
        self._settings = settings
        self._runtime = runtime
        self._clock = clock
        self._start_timeout = start_timeout
        self._last: float | None = None
        self._last_failure: tuple[str, HaproxyReload, float] | None = None

    async def reload(self, bundle: Bundle, *, weights_alone: bool = False) -> HaproxyReload:
        """Write and load the bundle.

        A bundle that the checker rejected is retried only after it changes. If the Runtime API sets the weights, new
        weights do not count as a change. A bundle that failed for another reason is retried after `RETRY_AFTER`
        seconds.
        """
        key = without_weights(bundle) if self._runtime else "\x00".join(item.text for item in bundle.files)
        if self._last_failure is not None and self._last_failure[0] == key:
            _, failed, at = self._last_failure
            if failed.complaints or self._clock() - at < RETRY_AFTER:
                return failed
        wait = self._remaining_wait(self._settings.min_interval / 1000 if weights_alone else MIN_INTERVAL)
        if wait > 0:
            return HaproxyReload(False, retry_after=wait)
        result = await self._check_and_load(bundle)
        self._last_failure = None if result.done or result is _NOT_PERMITTED else (key, result, self._clock())
        return result

    async def write(self, bundle: Bundle) -> HaproxyReload:
        """Write the bundle only for HAProxy's next start, because the running process already uses its content."""
        installed = await self._install(bundle)
        return installed if isinstance(installed, HaproxyReload) else HaproxyReload(True)

    async def _install(self, bundle: Bundle) -> Bundle | HaproxyReload:
        """Check and write the bundle. Return the previous files, or the reason why the bundle was not written."""
        complaints = await self.files.check(bundle)
        if complaints:
            return HaproxyReload(
                False, f"HAProxy's checker rejects the new file: {complaint_text(complaints[0], bundle)}", complaints
            )
        if not self._permit():
            return _NOT_PERMITTED
        try:
            return await asyncio.to_thread(self.files.install, bundle)
        except OSError as error:
            return HaproxyReload(False, f"cannot write {error.filename or self._config}: {reason_of(error)}")

    def _remaining_wait(self, interval: float) -> float:
        return 0.0 if self._last is None else max(0.0, self._last + interval - self._clock())

    async def _check_and_load(self, bundle: Bundle) -> HaproxyReload:
        before = await self._install(bundle)
        if isinstance(before, HaproxyReload):
            return before
        old_worker, processes_before = await self._worker(), await asyncio.to_thread(processes.haproxies, self._config)
        if not self._permit():
            return _NOT_PERMITTED
        self._last = self._clock()
        done = await command.run(self._settings.command, _COMMAND_TIMEOUT)
        if done.code != 0:
            return HaproxyReload(
                False, await self._restore(before, f"the reload command failed: {done.message}", reload=False)
            )
        failure = await (
            self._await_worker(old_worker, config_digest.of(bundle))
            if self._runtime
            else self._await_process(processes_before)
        )
        return (
            HaproxyReload(False, await self._restore(before, failure, reload=True)) if failure else HaproxyReload(True)
        )

    async def _restore(self, before: Bundle, failure: str, *, reload: bool) -> str:
        """Restore the old files.

        If `reload` is true, also reload HAProxy, because the new worker may only be slow to start.
        """
        if not before.files:
            return f"{failure}; there is no previous file to restore"
        try:
            await asyncio.to_thread(self.files.restore, before)
        except OSError as error:
            return f"{failure}; the previous file cannot be restored: {reason_of(error)}"
        if not reload:
            return f"{failure}; the previous file was restored"
        old_worker = await self._worker()
        done = await command.run(self._settings.command, _COMMAND_TIMEOUT)
        await self._await_other_worker(old_worker)
        suffix = f", but its reload failed: {done.message}" if done.code != 0 else ""
        return f"{failure}; the previous file was restored{suffix}"

    async def _await_worker(self, old_worker: int | None, wanted: str) -> str:
        """Wait for a worker that reports the desired digest. Return the reason if none appears, or an empty string."""
        reason = "no new process started"
        async for _ in self._poll_times(self._start_timeout):
            new = await self._reported()
            if new is not None and new[0] != old_worker:
                if new[1] == wanted:
                    return ""
                reason = f"a process with a configuration other than {self._config} started"
        return f"HAProxy did not load the new configuration: {reason} within {self._start_timeout:g} s"

    async def _await_other_worker(self, old_worker: int | None) -> None:
        """Wait for a new worker, so that subsequent commands reach the worker that remains."""
        if self._runtime is not None:
            async for _ in self._poll_times(self._start_timeout):
                new = await self._reported()
                if new is not None and new[0] != old_worker:
                    return

    async def _await_process(self, before: frozenset[int]) -> str:
        """Wait for a new process that keeps running. This is like `_await_worker`, but without the Runtime API."""
        since: dict[int, float] = {}
        async for moment in self._poll_times(self._start_timeout):
            new = await asyncio.to_thread(processes.haproxies, self._config) - before
            since = {pid: since.get(pid, moment) for pid in new}
            if any(moment - first >= _STABLE_AFTER for first in since.values()):
                return ""
        return f"no new HAProxy process started with {self._config} within {self._start_timeout:g} s"

    async def _poll_times(self, seconds: float) -> AsyncIterator[float]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            yield time.monotonic()
            await asyncio.sleep(_POLL_INTERVAL)

    async def _worker(self) -> int | None:
        reported = await self._reported() if self._runtime else None
        return reported[0] if reported else None

    async def _reported(self) -> tuple[int, str] | None:
        assert self._runtime is not None
        texts = []
        for question in running.QUESTIONS[:2]:
            answer = await self._runtime.query(question)
            if answer.failure or not answer.texts:
                return None
            texts.append(answer.texts[0])
        try:
            return running.pid_and_digest(*texts)
        except running.UnreadableAnswerError:
            return None
