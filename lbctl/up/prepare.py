"""Prepares one run of `up` in its private directory: keys, the overlay, and the proxy's checked configuration.

All errors are reported here, before any program is started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lbctl.apply.check import check
from lbctl.apply.files import write_bundle
from lbctl.base.diagnostics import Diagnostics
from lbctl.compile.allowed_files import allow
from lbctl.compile.files import files_on_disk
from lbctl.ir.address import Address
from lbctl.ir.snapshot import Snapshot
from lbctl.lint.ignores import silenced_by_comments
from lbctl.model.fleet import parse
from lbctl.model.load import texts
from lbctl.serve.picker.generated_key import needs_own_key, own_key
from lbctl.targets import target
from lbctl.targets.load import Loaded, complete
from lbctl.targets.prepare import prepare
from lbctl.up.fleet_additions import KeyFiles, added_file, key_files_by_route, make_missing
from lbctl.up.launchers import LAUNCHERS, NAME

OVERLAY = "up.yaml"


@dataclass(frozen=True, slots=True)
class Program:
    """The chosen proxy's program."""

    kind: str
    binary: str
    version: tuple[int, ...]
    """Version; empty if the program does not print one."""


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """Result of the preparation."""

    command: list[str]
    paths: tuple[str, ...]
    """The fleet's files, including the overlay."""
    loaded: Loaded
    """The fleet, including the overlay."""
    keys: KeyFiles
    """Key files of the fleet, with the new keys."""
    own_key_file: Path | None
    """Key file belonging to `up` itself; None if the fleet has `auth`."""


def prepare_run(
    loaded: Loaded,
    paths: tuple[str, ...],
    program: Program,
    place: Path,
    diagnostics: Diagnostics,
    own_key_file: Path | None = None,
    picker: Address | None = None,
    state: Path | None = None,
) -> PreparedRun | None:
    """Write all files needed for a run.

    Return None if there are errors in `diagnostics`. Raises OSError and MissingBinaryError.

    With `own_key_file`, every route requires one of its keys. `picker` is the picker's address, or None to use the
    fleet's setting. `state` is the state directory of `serve`, which contains the picker's key; None if no pool uses
    the picker.
    """
    by_route = key_files_by_route(loaded, own_key_file)
    keys = make_missing(by_route, plain=not target(program.kind).compares_hashes)
    if own_key_file is not None:
        allow(own_key_file)
    file = place / OVERLAY
    file.write_text(added_file(program.kind, program.binary, program.version, place, own_key_file), encoding="utf-8")
    whole = _load((*paths, str(file)), diagnostics)
    if whole is None:
        return None
    key = own_key(state) if state is not None and needs_own_key(whole.compiled.topology) else ""
    command = _configure(whole, program, place, diagnostics, picker, key)
    if diagnostics.failed:
        return None
    return PreparedRun(command, (*paths, str(file)), whole, keys, own_key_file)


def _load(paths: tuple[str, ...], diagnostics: Diagnostics) -> Loaded | None:
    source_texts = texts(paths, diagnostics)
    diagnostics.silence(silenced_by_comments(source_texts))
    source = parse(source_texts, diagnostics)
    return complete(source, diagnostics) if source else None


def _configure(
    loaded: Loaded, program: Program, place: Path, diagnostics: Diagnostics, picker: Address | None, picker_key: str
) -> list[str]:
    """Check the rendered configuration, write the proxy's start files, and return its command."""
    compiled, launcher = loaded.compiled, LAUNCHERS.get(program.kind)
    (proxy,) = [item for item in compiled.topology.proxies if item.name == NAME]
    snapshot = Snapshot(compiled.topology, secrets=loaded.secrets, picker=picker, own_picker_key=picker_key)
    prepared = prepare(target(program.kind), compiled, proxy, snapshot)
    diagnostics.extend(check(prepared, compiled, loaded.source, prepared.target.forms[0]).findings)
    _link_files(files_on_disk(loaded.source), place)
    write_bundle(launcher.files(prepared, place), str(place))
    return launcher.command(program.binary, place)


def _link_files(files: Mapping[str, Path], place: Path) -> None:
    """Link the fleet's relative files into the directory of the proxy's configuration, where the proxy expects them."""
    for written, file in files.items():
        link = place / written
        if not Path(written).is_absolute() and not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(file.absolute())
