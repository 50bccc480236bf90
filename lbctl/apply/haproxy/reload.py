"""Reloads HAProxy: puts a checked file into place, runs the fleet's command, and verifies the result.

The exit code of a reload command does not prove success: HAProxy's master continues with its old worker when it cannot
load the new configuration. The proof is a new worker: with the Runtime API, one with another process id that reports
the new digest; without it, a new process that keeps running. Without proof the old files are restored.

Weights and drains are in the new file, so no server state is dumped for HAProxy to load.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from lbctl.apply import command
from lbctl.apply.haproxy import processes, running
from lbctl.apply.haproxy.files import Files, bare
from lbctl.apply.haproxy.runtime import Runtime
from lbctl.base.errors import reason_of
from lbctl.ir.proxies import Reload
from lbctl.targets.haproxy import config_digest
from lbctl.targets.target import Bundle, Complaint

_COMMAND = 30.0
_COMES_UP = 10.0
_STAYS = 1.0
"""Seconds that a new process must run if it has no Runtime API: HAProxy retries a taken port for as long."""
_LOOKS = 0.05
AT_LEAST = 5.0
"""The minimal time between two reloads, in seconds, whatever their reason."""
FAILED = 30.0
"""Seconds until a reload that failed is tried again."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """The result of a reload. `done`: HAProxy runs the new file.

    Otherwise `failure` says why not, with `complaints` of its checker; or the reload must wait, and `again` is the
    number of seconds.
    """

    done: bool
    failure: str = ""
    complaints: tuple[Complaint, ...] = ()
    again: float | None = None


class Reloader:
    """Reloads one HAProxy, at most every few seconds, and does not repeat what was rejected."""

    def __init__(
        self,
        config: str,
        told: Reload,
        runtime: Runtime | None,
        clock: Callable[[], float] = time.monotonic,
        comes_up: float = _COMES_UP,
    ) -> None:
        """`comes_up` is the time in seconds within which a new worker must appear."""
        self.files = Files(config)
        self._config = config
        self._told = told
        self._runtime = runtime
        self._clock = clock
        self._comes_up = comes_up
        self._last: float | None = None
        self._refused: tuple[str, Reloaded, float] | None = None

    async def reload(self, bundle: Bundle, *, weights_alone: bool = False) -> Reloaded:
        """Write and load the bundle.

        A bundle that the checker rejected is not tried again until it differs, in more than weights where the Runtime
        API sets those. A bundle that failed for another reason is tried again after `FAILED` seconds.
        """
        key = bare(bundle) if self._runtime else "\x00".join(item.text for item in bundle.files)
        if self._refused is not None and self._refused[0] == key:
            _, refused, at = self._refused
            if refused.complaints or self._clock() - at < FAILED:
                return refused
        wait = self._wait(self._told.min_interval / 1000 if weights_alone else AT_LEAST)
        if wait > 0:
            return Reloaded(False, again=wait)
        result = await self._checked(bundle)
        self._refused = None if result.done else (key, result, self._clock())
        return result

    async def write(self, bundle: Bundle) -> Reloaded:
        """Write the bundle for HAProxy's next start alone: the running process already does what it says."""
        complaints = await self.files.check(bundle)
        if complaints:
            return Reloaded(False, "its checker refuses the new file", complaints)
        try:
            await asyncio.to_thread(self.files.put, bundle)
        except OSError as error:
            return Reloaded(False, f"cannot write {error.filename or self._config}: {reason_of(error)}")
        return Reloaded(True)

    def _wait(self, interval: float) -> float:
        return 0.0 if self._last is None else max(0.0, self._last + interval - self._clock())

    async def _checked(self, bundle: Bundle) -> Reloaded:
        complaints = await self.files.check(bundle)
        if complaints:
            return Reloaded(False, "its checker refuses the new file", complaints)
        try:
            before = await asyncio.to_thread(self.files.put, bundle)
        except OSError as error:
            return Reloaded(False, f"cannot write {error.filename or self._config}: {reason_of(error)}")
        old, there = await self._worker(), await asyncio.to_thread(processes.haproxies, self._config)
        self._last = self._clock()
        done = await command.run(self._told.command, _COMMAND)
        if done.code != 0:
            return Reloaded(False, await self._back(before, f"the reload command failed: {done.words}", again=False))
        failure = await (self._asked(old, config_digest.of(bundle)) if self._runtime else self._seen(there))
        return Reloaded(False, await self._back(before, failure, again=True)) if failure else Reloaded(True)

    async def _back(self, before: Bundle, failure: str, *, again: bool) -> str:
        """Restore the old files; with `again`, reload them too, since the new worker may only have been slow."""
        if not before.files:
            return f"{failure}; there is no older file"
        try:
            await asyncio.to_thread(self.files.put_back, before)
        except OSError as error:
            return f"{failure}; and the old file cannot be put back: {reason_of(error)}"
        if not again:
            return f"{failure}; the old file is back"
        old = await self._worker()
        done = await command.run(self._told.command, _COMMAND)
        await self._another_than(old)
        and_then = f", and its reload failed: {done.words}" if done.code != 0 else ""
        return f"{failure}; the old file is back{and_then}"

    async def _asked(self, old: int | None, wanted: str) -> str:
        """Wait for a worker that reports the wanted digest; return why there is none, or an empty string."""
        reason = "it did not come up"
        async for _ in self._moments(self._comes_up):
            new = await self._says()
            if new is not None and new[0] != old:
                if new[1] == wanted:
                    return ""
                reason = f"another configuration than {self._config} came up"
        return f"HAProxy did not take the new configuration: {reason} within {self._comes_up:g} s"

    async def _another_than(self, old: int | None) -> None:
        """Wait for another worker, so that the next commands reach the one that stays."""
        if self._runtime is not None:
            async for _ in self._moments(self._comes_up):
                new = await self._says()
                if new is not None and new[0] != old:
                    return

    async def _seen(self, before: frozenset[int]) -> str:
        """Wait for a new process that keeps running, as `_asked` does where there is no Runtime API."""
        since: dict[int, float] = {}
        async for moment in self._moments(self._comes_up):
            new = await asyncio.to_thread(processes.haproxies, self._config) - before
            since = {pid: since.get(pid, moment) for pid in new}
            if any(moment - first >= _STAYS for first in since.values()):
                return ""
        return f"no new HAProxy process on {self._config} within {self._comes_up:g} s"

    async def _moments(self, seconds: float) -> AsyncIterator[float]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            yield time.monotonic()
            await asyncio.sleep(_LOOKS)

    async def _worker(self) -> int | None:
        reported = await self._says() if self._runtime else None
        return reported[0] if reported else None

    async def _says(self) -> tuple[int, str] | None:
        assert self._runtime is not None
        answer = await self._runtime.ask("show info")
        if answer.failure or not answer.texts:
            return None
        try:
            return running.pid_and_shape(answer.texts[0])
        except running.UnreadableError:
            return None
