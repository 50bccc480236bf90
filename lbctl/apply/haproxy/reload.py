"""HAProxy's own reload: a checked file put in its place at once, the fleet's command, and the proof that it counts.

A reload command says nothing of success: HAProxy's master goes on with its old worker when it cannot take the new
configuration. So the proof is a worker that was not there before: through the Runtime API one with another process id
that says the new digest, without it a new process that stays. Without proof the old files come back.

Weights and drains stand in the new file; no state is dumped for HAProxy to load.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from lbctl.apply.haproxy import processes, running
from lbctl.apply.haproxy.files import Files, bare
from lbctl.apply.haproxy.runtime import Runtime
from lbctl.ir.proxies import Reload
from lbctl.targets.haproxy import shape
from lbctl.targets.target import Bundle, Complaint

_COMMAND = 30.0
_COMES_UP = 10.0
_STAYS = 1.0
"""Seconds that a new process must live, where nobody can ask it: HAProxy tries so long for a port that is taken."""
_LOOKS = 0.05
AT_LEAST = 5.0
"""Seconds between two reloads, whatever they are for."""
FAILED = 30.0
"""Seconds until a reload that failed is tried again."""


@dataclass(frozen=True, slots=True)
class Reloaded:
    """`done`: HAProxy runs it. Else `failure` says why not, `complaints` where its checker said so; or it is not yet
    time, and `again` says in how many seconds it is."""

    done: bool
    failure: str = ""
    complaints: tuple[Complaint, ...] = ()
    again: float | None = None


class Reloader:
    def __init__(
        self,
        config: str,
        told: Reload,
        runtime: Runtime | None,
        clock: Callable[[], float] = time.monotonic,
        comes_up: float = _COMES_UP,
    ) -> None:
        """`comes_up`: seconds that a new worker may take."""
        self.files = Files(config)
        self._config = config
        self._told = told
        self._runtime = runtime
        self._clock = clock
        self._comes_up = comes_up
        self._last: float | None = None
        self._refused: tuple[str, Reloaded, float] | None = None

    async def reload(self, bundle: Bundle, *, weights_alone: bool = False) -> Reloaded:
        """What the checker refused is not tried again before it is different, in more than weights where those go
        another way; what failed for another reason, not before a while has passed."""
        key = bare(bundle) if self._runtime else "\x00".join(item.text for item in bundle.files)
        if self._refused is not None and self._refused[0] == key:
            _, refused, at = self._refused
            if refused.complaints or self._clock() - at < FAILED:
                return refused
        wait = self._wait(self._told.min_interval / 1000 if weights_alone else AT_LEAST)
        if wait > 0:
            return Reloaded(False, again=wait)
        found = await self._checked(bundle)
        self._refused = None if found.done else (key, found, self._clock())
        return found

    async def write(self, bundle: Bundle) -> Reloaded:
        """For HAProxy's next start alone: what runs already does it."""
        complaints = await self.files.check(bundle)
        if complaints:
            return Reloaded(False, "its checker refuses the new file", complaints)
        try:
            await asyncio.to_thread(self.files.put, bundle)
        except OSError as error:
            return Reloaded(False, f"cannot write {error.filename or self._config}: {error.strerror}")
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
            return Reloaded(False, f"cannot write {error.filename or self._config}: {error.strerror}")
        old, there = await self._worker(), await asyncio.to_thread(processes.haproxies, self._config)
        self._last = self._clock()
        done = await processes.run(self._told.command, _COMMAND)
        if done.code != 0:
            return Reloaded(False, await self._back(before, f"the reload command failed: {done.words}", again=False))
        failure = await (self._asked(old, shape.of(bundle)) if self._runtime else self._seen(there))
        return Reloaded(False, await self._back(before, failure, again=True)) if failure else Reloaded(True)

    async def _back(self, before: Bundle, failure: str, *, again: bool) -> str:
        """`again`: reloaded once more, so that what runs is what lies there, also if the new one was only slow."""
        if not before.files:
            return f"{failure}; there is no older file"
        try:
            await asyncio.to_thread(self.files.put_back, before)
        except OSError as error:
            return f"{failure}; and the old file cannot be put back: {error.strerror}"
        if not again:
            return f"{failure}; the old file is back"
        old = await self._worker()
        done = await processes.run(self._told.command, _COMMAND)
        await self._another_than(old)
        and_then = f", and its reload failed: {done.words}" if done.code != 0 else ""
        return f"{failure}; the old file is back{and_then}"

    async def _asked(self, old: int | None, wanted: str) -> str:
        """Why the new one does not run; empty where it does."""
        said = "it did not come up"
        async for _ in self._moments(self._comes_up):
            new = await self._says()
            if new is not None and new[0] != old:
                if new[1] == wanted:
                    return ""
                said = f"another configuration than {self._config} came up"
        return f"HAProxy did not take the new configuration: {said} within {self._comes_up:g} s"

    async def _another_than(self, old: int | None) -> None:
        """So that what comes next is said to the worker that stays."""
        if self._runtime is not None:
            async for _ in self._moments(self._comes_up):
                new = await self._says()
                if new is not None and new[0] != old:
                    return

    async def _seen(self, before: frozenset[int]) -> str:
        """As `_asked`, where nobody can be asked."""
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
        found = await self._says() if self._runtime else None
        return found[0] if found else None

    async def _says(self) -> tuple[int, str] | None:
        assert self._runtime is not None
        answer = await self._runtime.ask("show info")
        if answer.failure or not answer.texts:
            return None
        try:
            return running.pid_and_shape(answer.texts[0])
        except running.UnreadableError:
            return None
