"""Moves a running nginx of this machine: render, `nginx -t`, swap, reload, and back if it does not come up.

nginx has no way to be told of a weight or a drain but its configuration. So what should run is written whole, tested
beside what runs, put in its place at once, and loaded; a reload counts when new workers serve, and otherwise what ran
before is put back, on disk and in memory. Requests that the old workers have are theirs until they end: nobody cuts a
stream, also not of a drained replica (nginx cannot end the requests of one replica alone); after the 30 minutes of
`worker_shutdown_timeout` nginx ends what is left. It never starts an nginx, and never stops one.
"""

from __future__ import annotations

import asyncio
import hashlib
import posixpath
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from lbctl.apply import nginx_master
from lbctl.apply.binaries import find_binary
from lbctl.apply.nginx_master import Master, Verdict
from lbctl.apply.nginx_pace import Pace, Reason, carried, reason, retry_after, same_shape
from lbctl.apply.nginx_place import Place
from lbctl.ir.pools import DnsDiscovery
from lbctl.ir.proxies import Proxy, Reload
from lbctl.ir.rewrite import with_files
from lbctl.ir.snapshot import Snapshot, View
from lbctl.targets import target
from lbctl.targets.load import Loaded
from lbctl.targets.prepare import Prepared, prepare
from lbctl.targets.target import Bundle

KIND = "nginx"
Outcome = Literal["applied", "same", "refused", "unconfirmed", "absent"]
"""applied: new workers serve it. same: it runs already. refused: what ran before still does. unconfirmed: it is on disk
and the command was content, but no nginx is seen here that reads the file. absent: it is on disk, and no nginx runs."""
Locate = Callable[[str], Path | None]
"""A path as the fleet writes it → the file on this machine, or None where there is none."""
_LOOK = 0.01
_TEST_SECONDS = 60.0
_COMMAND_SECONDS = 30.0
_START_SECONDS = 2.0
_LAST_TURN = 5.0
"""Seconds that a reload may still take when lbctl ends."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What came of one try. `words`: why not, in nginx's words. `behind`: the newest fleet is refused, and what runs is
    the one before with the weights and drains of the newest. `seconds`: how long it took. `finishing`: workers of
    earlier generations that still have requests. `at`: in seconds since the epoch."""

    outcome: Outcome
    words: str = ""
    behind: bool = False
    seconds: float = 0.0
    finishing: int = 0
    at: float = 0.0

    @property
    def reloaded(self) -> bool:
        return self.outcome != "same"


@dataclass(frozen=True, slots=True)
class _Refusal:
    view: View
    words: str
    count: int
    until: float


def driven(proxy: Proxy) -> bool:
    """Whether the fleet tells enough of it to move it."""
    return proxy.kind == KIND and proxy.config is not None and proxy.reload is not None


def prepared(proxy: Proxy, loaded: Loaded, snapshot: Snapshot) -> Prepared:
    """What `proxy` should run. Names are resolved by the control plane: their replicas are written, not the names."""
    pools = tuple(
        replace(pool, discovery=None) if isinstance(pool.discovery, DnsDiscovery) else pool
        for pool in snapshot.topology.pools
    )
    resolved = replace(snapshot, topology=replace(snapshot.topology, pools=pools))
    return prepare(target(KIND), loaded.compiled, proxy, resolved)


class NginxDriver:
    """Of one proxy that is `driven`. `locate` finds the fleet's relative files where they do not lie beside the
    proxy's configuration. `want` says what should run, and `run` sees to it at the right times."""

    def __init__(
        self, proxy: Proxy, locate: Locate = lambda _: None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        assert proxy.config is not None
        self.proxy = proxy
        self._reload = proxy.reload or Reload(("nginx", "-s", "reload"))
        self._locate = locate
        self._clock = clock
        self._place = Place(Path(proxy.config).absolute())
        self._pace = Pace(self._reload.min_interval / 1000)
        self._wanted: Prepared | None = None
        self._good: View | None = None
        self._refusal: _Refusal | None = None
        self._known: str | None = None
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()

    # ── When ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def want(self, newest: Prepared, why: Reason | None = None) -> None:
        """This should run; from the loop alone. `why`: None, and it is found by comparing with what was wanted."""
        before = self._wanted.view if self._wanted else None
        self._wanted = newest
        self._pace = self._pace.want(why or reason(before, newest.view))
        self._news.set()

    async def run(self, told: Callable[[Applied], None]) -> None:
        """Until it is cancelled; a reload that has begun is then given a moment to end. `told`: after each try."""
        while True:
            await self._until_due()
            turn = asyncio.ensure_future(self._next())
            try:
                told(await asyncio.shield(turn))
            except asyncio.CancelledError:
                await asyncio.wait([turn], timeout=_LAST_TURN)
                raise

    async def _until_due(self) -> None:
        while (left := self._left()) is None or left > 0:
            self._news.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), left)

    def _left(self) -> float | None:
        """Seconds until something is due."""
        if self._wanted is None:
            return None
        times = [self._pace.due(), self._refusal.until if self._refusal else None]
        found = [when for when in times if when is not None]
        return min(found) - self._clock() if found else None

    async def _next(self) -> Applied:
        newest, asked = self._wanted, self._pace.wanted
        assert newest is not None
        self._pace = replace(self._pace, wanted=None)
        applied = await self.converge(newest)
        later = self._pace.wanted
        self._pace = self._pace.done(self._clock(), reloaded=applied.reloaded)
        if asked and self._left_behind(applied, newest.view):
            self._pace = self._pace.want("health")
        if later is not None:
            self._pace = self._pace.want(later)
        return applied

    def _left_behind(self, applied: Applied, newest: View) -> bool:
        """Whether another fleet was refused just now, and the one that runs is to have its weights and drains."""
        fresh = applied.outcome == "refused" and not applied.behind
        return fresh and self._good is not None and not same_shape(self._good, newest)

    # ── What ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def converge(self, newest: Prepared) -> Applied:
        """Now, however short ago the last one was. Nothing is done where it runs already."""
        async with self._turn:
            begun = time.monotonic()
            refusal, view, behind = self._refusal, newest.view, False
            if refusal and self._clock() < refusal.until and same_shape(refusal.view, view):
                if self._good is None:
                    return Applied("refused", refusal.words, at=time.time())
                behind = not same_shape(self._good, view)
                view = carried(self._good, view) if behind else view
            try:
                applied = await self._apply(view)
            except OSError as error:
                applied = Applied("refused", f"{error.filename or self._place.config}: {error.strerror or error}")
            self._remember(newest.view, view, behind, applied)
            return replace(applied, behind=behind, seconds=time.monotonic() - begun, at=time.time())

    def _remember(self, newest: View, view: View, behind: bool, applied: Applied) -> None:
        if applied.outcome != "refused":
            self._good = view
            self._refusal = self._refusal if behind else None
        elif not behind:
            known = self._refusal
            count = known.count + 1 if known and same_shape(known.view, newest) else 1
            self._refusal = _Refusal(newest, applied.words, count, self._clock() + retry_after(count))

    async def _apply(self, view: View) -> Applied:
        bundle, stamp = await asyncio.to_thread(self._written, view)
        if await asyncio.to_thread(self._runs, bundle, stamp):
            return Applied("same")
        generation = await asyncio.to_thread(self._place.stage, bundle)
        refused = await self._tested(generation, bundle)
        if refused:
            self._place.discard(generation)
            return Applied("refused", refused)
        applied = await self._swapped(generation, bundle)
        if applied.outcome == "refused":
            self._place.discard(generation)
        else:
            self._known = stamp
            await asyncio.to_thread(self._place.keep, bundle, stamp)
        return applied

    def _written(self, view: View) -> tuple[Bundle, str]:
        """The files, and a name for them together with the certificates and keys that nginx reads beside them."""
        read: dict[str, bytes] = {}
        rooted = with_files(view, lambda path, _: self._found(path, read))
        bundle = target(KIND).render(rooted)
        stamp = hashlib.sha256()
        parts = [part for item in bundle.files for part in (item.name.encode(), item.text.encode())]
        for part in [*parts, *(part for path in sorted(read) for part in (path.encode(), read[path]))]:
            stamp.update(len(part).to_bytes(8) + part)
        return bundle, stamp.hexdigest()

    def _found(self, path: str, read: dict[str, bytes]) -> str:
        """Where nginx finds a file of the fleet: beside its configuration, or where the fleet has it."""
        place = Path(posixpath.join(self._place.config.parent, path))
        if not place.is_file():
            place = (self._locate(path) or place).absolute()
        with suppress(OSError):
            read[str(place)] = place.read_bytes()
        return str(place)

    def _runs(self, bundle: Bundle, stamp: str) -> bool:
        known = self._known if self._known is not None else self._place.running()
        return known == stamp and self._place.holds(bundle)

    # ── nginx itself ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def seen(self) -> bool:
        """Whether an nginx runs here that reads the file, as far as can be seen from here."""
        found = await asyncio.to_thread(nginx_master.find, self._place.config, self._binary or KIND)
        return found is not None

    @property
    def _binary(self) -> str | None:
        """The program that the reload names, if it names one by its path."""
        first = Path(self._reload.command[0])
        return str(first) if first.is_absolute() and first.name == KIND else find_binary(KIND)

    async def _tested(self, generation: Path, bundle: Bundle) -> str:
        """Why nginx refuses the files; empty where it accepts."""
        binary = self._binary
        if binary is None:
            return "the program nginx is not on this machine: what is written cannot be tested"
        main = str(generation / bundle.main.name)
        code, output = await _call(target(KIND).check_command(binary, str(generation), main), _TEST_SECONDS)
        if code == 0:
            return ""
        for item in target(KIND).complaints(output, bundle):
            return f"nginx -t: {item.message}" + (f" (line {item.line} of {item.file})" if item.file else "")
        return f"nginx -t: {_last(output) or f'exit code {code}'}"

    async def _swapped(self, generation: Path, bundle: Bundle) -> Applied:
        master = await asyncio.to_thread(nginx_master.find, self._place.config, self._binary or KIND)
        swapped = await asyncio.to_thread(self._place.swap, generation, bundle)
        if master is None:
            return await self._blind()
        verdict = await self._reloaded(master)
        if not verdict.taken:
            await asyncio.to_thread(self._place.undo, swapped)
            again = await self._reloaded(master)
            more = "" if again.taken else f"; nor does it load what ran before: {again.words}"
            return Applied("refused", verdict.words + more, finishing=len(master.workers().finishing))
        return Applied("applied", finishing=len(master.workers().finishing))

    async def _reloaded(self, master: Master) -> Verdict:
        before, log = await self._serving(master), master.log()
        code, output = await _call(self._reload.command, _COMMAND_SECONDS)
        if code:
            return Verdict(taken=False, words=f"{self._reload.command[0]}: {_last(output) or f'exit code {code}'}")
        begun = time.monotonic()
        while True:
            verdict = nginx_master.judge(before, master.workers(), log.read(), time.monotonic() - begun)
            if verdict is not None:
                return verdict
            await asyncio.sleep(_LOOK)

    async def _serving(self, master: Master) -> nginx_master.Workers:
        """The workers before a reload. An nginx that has just been started is given a moment to have some: its first
        ones would be taken for new."""
        deadline = time.monotonic() + _START_SECONDS
        while not (found := master.workers()).active and time.monotonic() < deadline:
            await asyncio.sleep(_LOOK)
        return found

    async def _blind(self) -> Applied:
        """No master is seen: the command decides whether there is one."""
        code, output = await _call(self._reload.command, _COMMAND_SECONDS)
        place = self._place.config
        if code:
            return Applied("absent", f"no nginx runs with {place}: {_last(output) or f'exit code {code}'}")
        return Applied("unconfirmed", f"no nginx is seen that reads {place}: whether it has been loaded is not known")


async def _call(command: tuple[str, ...] | list[str], seconds: float) -> tuple[int, str]:
    """The exit code and both outputs; without a shell, and ended when it takes too long."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        return 127, f"it cannot be started: {error.strerror}"
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate()
    except TimeoutError:
        return 124, f"no answer within {seconds:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode or 0, output.decode(errors="replace")


def _last(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else ""
