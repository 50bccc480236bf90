"""Reads the fleet in the files and decides whether it may replace the running fleet.

A fleet is accepted either completely or not at all: the running fleet is kept if the new fleet has an error, if one of
its files is still being written, or if it would lose more replicas or keys than `max_shrink` allows. In that case,
changes to the running fleet's certificates, key files and target files still take effect, together with the YAML texts
from which the running fleet was read.

At startup, the caller restores the saved fleet with `restore` and `accept`, as the reference for later fleets. It then
calls `load`, followed by `accept` for the fleet that it publishes. This module never writes files.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.compile.files import read_regular
from lbctl.control.shrink import shrinks
from lbctl.ir.secrets import Secrets
from lbctl.ir.topology import Topology
from lbctl.model.control_section import with_control
from lbctl.model.fleet import FleetSource
from lbctl.model.load import SourceText, texts
from lbctl.model.own_sections import foreign_places, own_places, own_sections, with_own
from lbctl.model.text import MAX_BYTES
from lbctl.serve.fleet import key_files
from lbctl.serve.fleet.certificates import CertificateCache
from lbctl.serve.fleet.fingerprints import Fingerprints, Signature, changed_at, fleet_files, signature
from lbctl.serve.fleet.reader import FleetContents, ReadKeys, WithOwn, Writers, own_control, read, unchanged
from lbctl.store.records import SavedFleet
from lbctl.targets.load import Loaded

_QUIET = 0.1
"""Seconds for which a file must remain unchanged before it is considered completely written."""
_TICK = 0.02
"""Minimum age of a change, in seconds, at which the next change is certain to get a different timestamp, because kernel
clocks tick every 1 to 10 ms."""
_PAUSE = 0.05
"""Seconds between attempts to read files that are still being written."""
_ATTEMPTS = 30
_TOO_MANY_LOST = "too many replicas would be removed"


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """Result of reading the files."""

    loaded: Loaded | None
    """The new fleet; None if it has been rejected."""
    diagnostics: tuple[Diagnostic, ...]
    """All diagnostics for the files, even if the fleet is accepted."""
    refused: str | None = None
    """A short phrase that explains why the new fleet has been rejected."""
    files: Mapping[Path, str] = field(default_factory=dict)
    """Maps each file to watch, in addition to the fleet's files, to the digest of its contents when it was read."""
    shrink: tuple[Diagnostic, ...] = ()
    """The losses of replicas and keys: confirmed if `loaded` is set, otherwise rejected."""
    running: Loaded | None = None
    """If the new fleet has been rejected: the running fleet with changed certificates, key files or target files, if
    any."""
    saved: SavedFleet | None = None
    """`loaded` or `running`, in the form that is saved in the state after publication."""

    @property
    def fleet(self) -> Loaded | None:
        """The fleet to publish from now on; None if nothing has changed."""
        return self.loaded or self.running


@dataclass(frozen=True, slots=True)
class _Running:
    """The running fleet, which is the reference for later fleets."""

    fleet: Loaded
    saved: SavedFleet
    files: Mapping[Path, str]

    @property
    def topology(self) -> Topology:
        return self.fleet.compiled.topology


def _unchanged(topology: Topology) -> Topology:
    return topology


class FleetReloader:
    """Reads one fleet's files. Every method except `accept` blocks and may be called in any thread."""

    def __init__(self, paths: Sequence[str], state: str | None = None, *, writers: Writers = "this process") -> None:
        """Create the reader without reading any files.

        `state`: the state directory, if the fleet does not set it. `writers`: the possible writers of the fleets passed
        to `restore` and `load`.
        """
        self._paths = tuple(paths)
        self._withheld = (state,) if state else ()
        self._writers = writers
        self._own: FleetSource | None = None
        """The sections most recently read from this process's own files, for use with a fleet from a shared store."""
        self._own_places: frozenset[str] = frozenset()
        """The sockets and log files most recently read from this process's own files."""
        self._lock = threading.Lock()
        self._certificates = CertificateCache()
        self._fingerprints = Fingerprints()
        self._running: _Running | None = None

    def accept(self, outcome: LoadOutcome) -> None:
        """Make this outcome's fleet the running fleet, which is the reference for later fleets."""
        fleet, saved = outcome.fleet, outcome.saved
        if fleet is not None and saved is not None:
            self._running = _Running(fleet, saved, outcome.files)
            self._certificates.forget(fleet.source)

    def load(
        self,
        *,
        allow_shrink: bool = False,
        discovered: Callable[[Topology], Topology] = _unchanged,
        pinned: Sequence[SourceText] | None = None,
    ) -> LoadOutcome:
        """Read the fleet from the current files.

        `discovered` adds the discovered replicas to a topology, so that they are counted too. If a file has just
        changed, it is reread until it has settled. `pinned`: an earlier fleet's YAML texts, which are read instead of
        the YAML files; all other files are read with their current contents.
        """
        with self._lock:
            contents, files, changed = self._read_settled(pinned)
            if changed is not None:
                refused = self._refuse(
                    [_still_written(changed)], f"{changed} is still being written", files, discovered
                )
                return replace(refused, files={**refused.files, changed: "moving"})
            if contents.loaded is None:
                return self._refuse(contents.diagnostics, contents.failure, files, discovered)
            losses = self._losses(contents.loaded, discovered)
            if losses and not allow_shrink:
                reason = key_files.refusal_reason(losses) or _TOO_MANY_LOST
                refused = self._refuse((*contents.diagnostics, *losses), reason, files, discovered)
                return replace(refused, shrink=losses)
            return replace(_outcome(contents, files), shrink=losses)

    def restore(self, saved: SavedFleet) -> LoadOutcome:
        """Read a saved fleet.

        Its target files are read with their current contents. If they are missing or invalid, or would remove too many
        replicas, their saved contents are used.
        """
        with self._lock:
            own = self._with_own()
            as_saved = self._contents(saved.texts, saved.targets, self._new_keys, Diagnostics(), own)
            contents = self._reread(saved.texts, saved.targets, as_saved.topology, _unchanged, own)
            files = self._fingerprints.of(contents.files())
            if contents.loaded is None:
                return LoadOutcome(None, contents.diagnostics, contents.failure, files)
            outcome = _outcome(contents, files)
            return replace(
                outcome, saved=replace(outcome.saved or saved, discovered=saved.discovered, version=saved.version)
            )

    def _refuse(
        self,
        diagnostics: Iterable[Diagnostic],
        reason: str,
        files: Mapping[Path, str],
        discovered: Callable[[Topology], Topology],
    ) -> LoadOutcome:
        """Keep the running fleet, with the current contents of its other files.

        `files`: the rejected fleet's files.
        """
        running = self._running
        refused = LoadOutcome(None, tuple(diagnostics), reason, files)
        if running is None:
            return refused
        digests = self._fingerprints.of({*files, *running.files})
        refused = replace(refused, files=digests)
        if all(digests[file] == digest for file, digest in running.files.items()):
            return refused
        own = self._with(running.fleet.source)
        contents = self._reread(running.saved.texts, running.saved.targets, running.topology, discovered, own)
        if contents.loaded is None:
            return refused
        saved = replace(running.saved, targets=contents.targets)
        merged = _merged(diagnostics, contents.diagnostics)
        return replace(refused, running=contents.loaded, saved=saved, diagnostics=merged)

    def _reread(
        self,
        source_texts: Sequence[SourceText],
        targets: Mapping[str, bytes],
        before: Topology | None,
        discovered: Callable[[Topology], Topology],
        own: WithOwn,
    ) -> FleetContents:
        """Reread these texts with the current contents of all files, or with the given contents of the target files."""
        contents = self._contents(source_texts, {}, self._reread_keys, Diagnostics(), own)
        if contents.topology and not (before and _shrunk(before, contents.topology, discovered)):
            return contents
        return self._contents(source_texts, targets, self._reread_keys, Diagnostics(), own)

    def _contents(
        self,
        source_texts: Sequence[SourceText],
        targets: Mapping[str, bytes],
        keys: ReadKeys,
        diagnostics: Diagnostics,
        own: WithOwn,
    ) -> FleetContents:
        return read(source_texts, targets, self._certificates, keys, diagnostics, own, self._withheld)

    def _with_own(self) -> WithOwn:
        """Return a function that replaces sections of a stored fleet with those from this process's own files."""
        if self._writers == "this process":
            own = own_control(self._paths)
            return unchanged if own is None else self._with(own)
        files = texts(self._paths, Diagnostics())
        self._own = own_sections(files) or self._own
        if self._writers == "members":
            return self._with(self._own)
        self._own_places = own_places(files) or self._own_places
        return self._with(self._own, self._own_places)

    def _with(self, own: FleetSource | None, places: frozenset[str] | None = None) -> WithOwn:
        """Return a function that inserts these sections into a fleet.

        `places`: the sockets and log files that the fleet may name; None allows all.
        """

        def change(source: FleetSource, diagnostics: Diagnostics) -> FleetSource:
            if places is not None:
                diagnostics.extend(foreign_places(source, places))
            if self._writers == "this process" and own is not None:
                return with_control(source, own)
            return with_own(source, own)

        return change

    @property
    def _served_keys(self) -> key_files.ServedKeyFiles:
        return key_files.served_key_files(self._running.fleet) if self._running else {}

    def _new_keys(self, source: FleetSource, diagnostics: Diagnostics) -> Secrets:
        return key_files.read_new(source, self._served_keys, diagnostics)

    def _reread_keys(self, source: FleetSource, diagnostics: Diagnostics) -> Secrets:
        max_shrink = self._running.topology.control.max_shrink if self._running else 100.0
        return key_files.read_again(source, self._served_keys, max_shrink, diagnostics)

    def _losses(self, fleet: Loaded, discovered: Callable[[Topology], Topology]) -> tuple[Diagnostic, ...]:
        if self._running is None:
            return ()
        replicas = _shrunk(self._running.topology, fleet.compiled.topology, discovered)
        max_shrink = self._running.topology.control.max_shrink
        keys = key_files.shrinks(fleet.source, self._served_keys, fleet.secrets, max_shrink)
        return (*(fleet.compiled.sources.with_position(item) for item in replicas), *keys)

    def _unsettled_key_file(self) -> Path | None:
        """Return a key file that has just lost a key and may therefore be half written."""
        if self._running is None:
            return None
        return key_files.unsettled_file(self._running.fleet.source, self._served_keys, time.time_ns())

    def _read_settled(self, pinned: Sequence[SourceText] | None) -> tuple[FleetContents, dict[Path, str], Path | None]:
        """Return the fleet, the digests of its other files, and a file that changed during every attempt.

        The first attempt does not wait until the files are old enough, because they reach that age while they are being
        read and compiled.
        """
        paths = self._paths if pinned is None else ()
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(_PAUSE)
            began = time.time_ns()
            watched = (*fleet_files(paths), *(self._running.files if self._running else ()))
            before = {file: signature(file) for file in watched}
            oldest_change = began - int((_QUIET if attempt else _TICK) * 1e9)
            changed = _changed_file(before, before, oldest_change)
            if changed is not None and attempt < _ATTEMPTS - 1:
                continue
            diagnostics = Diagnostics()
            source_texts = texts(paths, diagnostics) if pinned is None else pinned
            own = unchanged if pinned is None else self._with_own()
            contents = self._contents(source_texts, {}, self._new_keys, diagnostics, own)
            files = self._fingerprints.of(contents.files())
            _wait_until_quiet((*watched, *files))
            unsettled = self._unsettled_key_file()  # before the comparison, which detects a file that is now complete
            changed = changed or _changed_file(before, (*fleet_files(paths), *files), oldest_change) or unsettled
            if changed is None:
                break
        return contents, files, changed


def _outcome(contents: FleetContents, files: Mapping[Path, str]) -> LoadOutcome:
    """Return the outcome for a fleet that may be published."""
    saved = SavedFleet(contents.texts, contents.targets)
    return LoadOutcome(contents.loaded, contents.diagnostics, files=files, saved=saved)


def _shrunk(before: Topology, after: Topology, discovered: Callable[[Topology], Topology]) -> tuple[Diagnostic, ...]:
    """Return the losses beyond the running fleet's own limit: raising the limit in a file cannot confirm a loss."""
    return tuple(shrinks(discovered(before), discovered(after), before.control.max_shrink))


def _changed_file(before: Mapping[Path, Signature], named: Iterable[Path], since: int) -> Path | None:
    """Return a file that differs from `before` or that changed after `since` (in ns since the epoch).

    Return None if there is none.
    """
    for file in named:
        current = signature(file)
        if current != before.get(file, current) or _changed_between(current, since, time.time_ns()):
            return file
    return None


def _wait_until_quiet(files: Iterable[Path]) -> None:
    """Wait until all files are older than `_QUIET`. If a file changes in the meantime, do not wait for it again."""
    now = time.time_ns()
    changes = (changed_at(signature(file)) for file in files)
    newest = max((at for at in changes if at is not None and at <= now), default=0)
    if (rest := newest / 1e9 + _QUIET - now / 1e9) > 0:
        time.sleep(rest)


def _changed_between(stamp: Signature, first: int, last: int) -> bool:
    """Return whether the file was changed during this period, given in ns since the epoch.

    Times in the future come from another machine's clock and are ignored.
    """
    changed = changed_at(stamp)
    return changed is not None and first < changed <= last


def _still_written(file: Path) -> Diagnostic:
    message = "the file is still being written: lbctl reads the fleet when the file stops changing"
    return Diagnostic("LB932", message, Position(str(file)))


def _merged(first: Iterable[Diagnostic], second: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return all diagnostics, except warnings in `second` that `first` already reports as errors."""
    merged = Diagnostics()
    merged.extend(first)
    errors = {(item.code, item.path) for item in merged if item.severity == "error"}
    merged.extend(item for item in second if item.severity == "error" or (item.code, item.path) not in errors)
    return tuple(merged)


# ── Saved files ───────────────────────────────────────────────────────────────────────────────────────────────────────


def relocated(files: tuple[SourceText, ...], paths: tuple[str, ...]) -> tuple[SourceText, ...]:
    """Return files from a shared store as if they were in the directories of this member's own files."""
    own = {Path(text.name).name: text for text in texts(paths, Diagnostics())}
    first = next(iter(own.values()), None)
    if first is None:
        path = Path(paths[0])
        directory = path if path.is_dir() else path.parent
        first = SourceText(str(directory / "fleet.yaml"), b"", str(directory))
    moved = []
    for text in files:
        beside = own.get(Path(text.name).name, first)
        moved.append(SourceText(str(Path(beside.name).with_name(Path(text.name).name)), text.data, beside.root))
    return tuple(moved)


def is_unchanged(saved: SavedFleet, paths: tuple[str, ...]) -> bool:
    """Return whether the files equal the saved files, so that the fleet need not be compared with the saved one."""
    if tuple(texts(paths, Diagnostics())) != saved.texts:
        return False
    with suppress(OSError):
        return all(read_regular(Path(path), MAX_BYTES) == content for path, content in saved.targets.items())
    return False
