"""From files to a fleet that may take the place of the one that runs.

A fleet is taken whole or not at all: with an error in it, while one of its files is still being written, or when it
would lose more replicas or keys than `max_shrink` allows, the fleet that runs stays. Of that one, certificates, key
files and files of targets go on being followed, from the texts of its YAML that were read when it was good.

At start: `restore` what the state has kept and `accept` it, so that it is known what ran; then `load`, and `accept`
what is served. Whoever serves calls `accept`; this module only reads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.control.shrink import shrinks
from lbctl.ir.interning import intern_unchanged
from lbctl.ir.secrets import Secrets
from lbctl.ir.topology import Topology
from lbctl.model.fleet import FleetSource
from lbctl.model.load import SourceText, texts
from lbctl.serve.fleet import key_files
from lbctl.serve.fleet.certificates import Pem
from lbctl.serve.fleet.fingerprints import Fingerprints, Signature, changed_at, fleet_files, signature
from lbctl.serve.fleet.reader import FleetContents, read
from lbctl.serve.state.records import SavedFleet
from lbctl.targets.load import Loaded

_QUIET = 0.1
"""Seconds for which a file must have been left alone before it is believed to be whole."""
_PAUSE = 0.05
_TRIES = 30
_LOST = "it would lose too many replicas"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What reading the files came to.

    `loaded`: the new fleet; None where `refused` says in a few words why it is not taken. `diagnostics`: everything
    that was found, also where it is taken. `files`: what to follow beside the fleet → the digest of its content as it
    was read. `shrink`: the losses of replicas and keys, refused, or confirmed where there is a fleet. `running`: where
    the new one is refused, the fleet that runs, if its certificates, key files or files of targets hold something else
    now: to be served in its own place. `kept`: what the state is to keep of `loaded` or `running` once it is served.
    """

    loaded: Loaded | None
    diagnostics: tuple[Diagnostic, ...]
    refused: str | None = None
    files: Mapping[Path, str] = field(default_factory=dict)
    shrink: tuple[Diagnostic, ...] = ()
    running: Loaded | None = None
    kept: SavedFleet | None = None

    @property
    def fleet(self) -> Loaded | None:
        """What is to be served from now on; None: nothing has changed."""
        return self.loaded or self.running


@dataclass(frozen=True, slots=True)
class _Running:
    fleet: Loaded
    kept: SavedFleet
    files: Mapping[Path, str]

    @property
    def topology(self) -> Topology:
        return self.fleet.compiled.topology


def _as_it_is(topology: Topology) -> Topology:
    return topology


class Reloader:
    """One fleet's files. Every method but `accept` blocks; from any thread."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = tuple(paths)
        self._turn = threading.Lock()
        self._pem = Pem()
        self._fingerprints = Fingerprints()
        self._running: _Running | None = None

    def accept(self, outcome: Outcome) -> None:
        """The fleet of this outcome is what runs now: later ones are judged against it."""
        fleet, kept = outcome.fleet, outcome.kept
        if fleet is not None and kept is not None:
            self._running = _Running(fleet, kept, outcome.files)
            self._pem.forget(fleet.source)

    def load(self, *, allow_shrink: bool = False, discovered: Callable[[Topology], Topology] = _as_it_is) -> Outcome:
        """The fleet of the files as they are now. `discovered` puts into a topology what discovery has found for it, so
        that those replicas count too. A file that has just changed is given a moment to come to rest."""
        with self._turn:
            found, files, moved = self._settled()
            if moved is not None:
                refused = self._refuse([_unsettled(moved)], f"{moved} is still being written", files, discovered)
                return replace(refused, files={**refused.files, moved: "moving"})
            if found.loaded is None:
                return self._refuse(found.diagnostics, found.failure, files, discovered)
            lost = self._lost(found.loaded, discovered)
            if lost and not allow_shrink:
                refused = self._refuse((*found.diagnostics, *lost), key_files.reason(lost) or _LOST, files, discovered)
                return replace(refused, shrink=lost)
            return replace(_outcome(self._alike(found, found.loaded), files), shrink=lost)

    def restore(self, kept: SavedFleet) -> Outcome:
        """The fleet of these texts. Its files of targets are read as they are, unless they are gone, broken or would
        take too many replicas away: then as they were."""
        with self._turn:
            then = read(kept.texts, kept.targets, self._pem, self._new_keys, Diagnostics())
            found = self._again(kept.texts, kept.targets, then.topology, _as_it_is)
            files = self._fingerprints.of(found.files())
            if found.loaded is None:
                return Outcome(None, found.diagnostics, found.failure, files)
            outcome = _outcome(found, files)
            told = outcome.kept or kept
            return replace(outcome, kept=replace(told, discovered=kept.discovered, version=kept.version))

    def _refuse(
        self,
        diagnostics: Iterable[Diagnostic],
        reason: str,
        files: Mapping[Path, str],
        discovered: Callable[[Topology], Topology],
    ) -> Outcome:
        """What runs stays, with what its other files hold now; `files`: those of the refused fleet."""
        running = self._running
        refused = Outcome(None, tuple(diagnostics), reason, files)
        if running is None:
            return refused
        now = self._fingerprints.of({*files, *running.files})
        refused = replace(refused, files=now)
        if all(now[file] == digest for file, digest in running.files.items()):
            return refused
        found = self._again(running.kept.texts, running.kept.targets, running.topology, discovered)
        if found.loaded is None:
            return refused
        kept = replace(running.kept, targets=found.targets)
        return replace(refused, running=found.loaded, kept=kept, diagnostics=_both(diagnostics, found.diagnostics))

    def _again(
        self,
        given: Sequence[SourceText],
        targets: Mapping[str, bytes],
        before: Topology | None,
        discovered: Callable[[Topology], Topology],
    ) -> FleetContents:
        """These texts with all files as they are today, or else with the files of targets as they were."""
        found = read(given, {}, self._pem, self._keys_again, Diagnostics())
        if found.topology and not (before and _shrunk(before, found.topology, discovered)):
            return found
        return read(given, targets, self._pem, self._keys_again, Diagnostics())

    @property
    def _good_keys(self) -> key_files.Goods:
        return key_files.goods(self._running.fleet) if self._running else {}

    def _new_keys(self, source: FleetSource, diagnostics: Diagnostics) -> Secrets:
        return key_files.read_new(source, self._good_keys, diagnostics)

    def _keys_again(self, source: FleetSource, diagnostics: Diagnostics) -> Secrets:
        most = self._running.topology.control.max_shrink if self._running else 100.0
        return key_files.read_again(source, self._good_keys, most, diagnostics)

    def _alike(self, found: FleetContents, fleet: Loaded) -> FleetContents:
        """With what runs, wherever it is the same."""
        if self._running is None:
            return found
        topology = intern_unchanged(self._running.topology, fleet.compiled.topology)
        return replace(found, loaded=replace(fleet, compiled=replace(fleet.compiled, topology=topology)))

    def _lost(self, fleet: Loaded, discovered: Callable[[Topology], Topology]) -> tuple[Diagnostic, ...]:
        if self._running is None:
            return ()
        found = _shrunk(self._running.topology, fleet.compiled.topology, discovered)
        most = self._running.topology.control.max_shrink
        keys = key_files.shrinks(fleet.source, self._good_keys, fleet.secrets, most)
        return (*(fleet.compiled.sources.with_position(item) for item in found), *keys)

    def _unrested(self) -> Path | None:
        """A key file that has lost a key a moment ago: it may be half of what is being written."""
        if self._running is None:
            return None
        return key_files.unrested(self._running.fleet.source, self._good_keys, time.time_ns())

    def _settled(self) -> tuple[FleetContents, dict[Path, str], Path | None]:
        """The fleet and what the files beside it hold; and a file that would not be left alone meanwhile."""
        for attempt in range(_TRIES):
            if attempt:
                time.sleep(_PAUSE)
            began = time.time_ns()
            known = (*fleet_files(self._paths), *(self._running.files if self._running else ()))
            before = {file: signature(file) for file in known}
            moved = _moved(before, before, began)
            if moved is not None and attempt < _TRIES - 1:
                continue
            diagnostics = Diagnostics()
            found = read(texts(self._paths, diagnostics), {}, self._pem, self._new_keys, diagnostics)
            files = self._fingerprints.of(found.files())
            moved = moved or _moved(before, (*fleet_files(self._paths), *files), began) or self._unrested()
            if moved is None:
                break
        return found, files, moved


def _outcome(found: FleetContents, files: Mapping[Path, str]) -> Outcome:
    """Of a reading that may be served."""
    return Outcome(found.loaded, found.diagnostics, files=files, kept=SavedFleet(found.texts, found.targets))


def _shrunk(before: Topology, after: Topology, discovered: Callable[[Topology], Topology]) -> tuple[Diagnostic, ...]:
    """By the limit that is in force: a file that also raises it confirms nothing."""
    return tuple(shrinks(discovered(before), discovered(after), before.control.max_shrink))


def _moved(before: Mapping[Path, Signature], named: Iterable[Path], began: int) -> Path | None:
    """A file that is not what it was when the reading began, or had only just changed then."""
    for file in named:
        seen = signature(file)
        if seen != before.get(file, seen) or _changed_between(seen, began - int(_QUIET * 1e9), time.time_ns()):
            return file
    return None


def _changed_between(seen: Signature, first: int, last: int) -> bool:
    """In ns since the epoch. A time of change that is yet to come is another machine's clock, and tells nothing."""
    changed = changed_at(seen)
    return changed is not None and first < changed <= last


def _unsettled(file: Path) -> Diagnostic:
    message = "it is still being written: nothing of this fleet is taken before it has come to rest"
    return Diagnostic("LB932", message, Position(str(file)))


def _both(first: Iterable[Diagnostic], second: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """A key file of which `first` says the same as an error is not told of twice."""
    together = Diagnostics()
    together.extend(first)
    known = {(item.code, item.path) for item in together if item.severity == "error"}
    together.extend(item for item in second if item.severity == "error" or (item.code, item.path) not in known)
    return tuple(together)
