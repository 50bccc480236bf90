"""Checks the `serve` state directory, and the certificates and keys to which the fleet refers.

The contents of these files are never shown.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lbctl.api.token_guard import user_name
from lbctl.base.diagnostics import dotted, show
from lbctl.base.errors import reason_of
from lbctl.cli.doctor.check import DoctorResult
from lbctl.compile.files import file_of, named_files, replaced_by_secrets
from lbctl.model.fleet import FleetSource
from lbctl.serve.settings import ServeSettings
from lbctl.store.sqlite import DATABASE, VERSION
from lbctl.xds.build.key_pairs import authority_problem, crl_problem, pair_problem

_MAX_FILE_BYTES = 1 << 20
"""Maximum size of a file, in bytes."""
_SECRET = frozenset({"key", "file", "token_file"})
"""Config keys of files that only the owner should be able to read."""
_PAIR = 2
_HEAD = 100
_FORM = slice(60, 64)
"""Position of `user_version` in a SQLite file. Reading the file directly does not lock a running `serve`'s database."""


def state(place: Path, needed: bool) -> DoctorResult:
    """Check the `serve` state directory.

    If it is `needed` because the user, the fleet or a running `serve` specifies it, a problem counts as a failure.
    """
    what = f"state {place}"
    try:
        return _state(what, place, needed)
    except OSError as error:
        finding = f"{error.filename}: {reason_of(error).lower()}"
        return DoctorResult(
            what, "failed" if needed else "warn", finding, "change its owner, or choose another directory with --state"
        )


def _state(what: str, place: Path, needed: bool) -> DoctorResult:
    if not place.exists():
        return _new_state(what, place, needed)
    if not place.is_dir():
        return DoctorResult(what, "failed", "not a directory", "choose another directory with --state")
    if not os.access(place, os.R_OK | os.X_OK) or not _can_be_written(place):
        user = place.stat().st_uid
        if user != os.geteuid():
            finding = f"it belongs to {user_name(user)}: only a serve process of that user can use it"
            todo = f"run doctor as {user_name(user)} to check it, or choose another directory with --state"
            return DoctorResult(what, "failed" if needed else "skipped", finding, todo)
        finding = "this user cannot write to it"
        return DoctorResult(
            what, "failed" if needed else "warn", finding, "change its owner, or choose another directory with --state"
        )
    mode = stat.S_IMODE(place.stat().st_mode)
    if mode & 0o077:
        return DoctorResult(what, "warn", f"other users can read it (mode {mode:04o})", f"chmod 700 {place}")
    return _database(what, place)


def _new_state(what: str, place: Path, needed: bool) -> DoctorResult:
    ancestor = next(item for item in place.parents if item.exists())
    if ancestor.is_dir() and _can_be_written(ancestor):
        return DoctorResult(what, "ok", "does not exist yet; serve creates it")
    finding = f"does not exist and cannot be created in {ancestor}"
    return DoctorResult(
        what, "failed" if needed else "skipped", finding, "only serve needs it: set --state or control.state"
    )


def _can_be_written(directory: Path) -> bool:
    """Return whether a file can be created in the directory.

    The check creates an unnamed file, because for root, permissions are not conclusive, for example in /proc.
    """
    try:
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def _database(what: str, place: Path) -> DoctorResult:
    """Check whether this lbctl version can read the database."""
    file = place / DATABASE
    if not file.exists():
        return DoctorResult(what, "ok", "writable and private; still empty")
    with file.open("rb") as opened:
        head = opened.read(_HEAD)
    version = int.from_bytes(head[_FORM], "big")
    if version > VERSION:
        finding = f"written by a newer lbctl (schema version {version}, supported: {VERSION})"
        return DoctorResult(what, "failed", finding, "install the lbctl that wrote it")
    damaged = sorted(item.name for item in place.glob(f"{DATABASE}.damaged-*Z"))
    if damaged:
        finding = f"the database was damaged; serve kept the damaged data in {', '.join(damaged)}"
        todo = "see the log of `serve` for lost data, then remove the file"
        return DoctorResult(what, "warn", finding, todo)
    return DoctorResult(what, "ok", "writable and private")


def named(source: FleetSource, settings: ServeSettings) -> Iterator[DoctorResult]:
    """Yield a result for each file that has a problem, and one result for all other files."""
    in_cluster = replaced_by_secrets(source)
    files = [
        (dotted(path), str(path[-1]), file_of(source, node))
        for path, node in named_files(source.root)
        if path not in in_cluster
    ]
    files += list(_control_plane_files(settings))
    problems = [check for what, key, place in files if (check := _file(what, key, place)) is not None]
    problems += list(_pairs(files))
    yield from problems
    if len(files) > len({item.what for item in problems}):
        yield DoctorResult("files", "ok", f"{len(files) - len({item.what for item in problems})} usable")


_Named = tuple[str, str, Path]
"""Config path that names a file, that path's last key, and the file."""


def _control_plane_files(settings: ServeSettings) -> Iterator[_Named]:
    """Yield the control plane's own files."""
    for endpoint, tls in (("xds", settings.control.xds_tls), ("api", settings.control.api_tls)):
        for key in ("certificate", "key", "client_ca"):
            value = getattr(tls, key, None)
            if value:
                yield f"control.{endpoint}.tls.{key}", key, Path(value)
    if settings.control.api_token_file:
        yield "control.api.token_file", "token_file", settings.token


def _file(what: str, key: str, place: Path) -> DoctorResult | None:
    """Return the problem with the file, or None if there is none."""
    try:
        mode = place.stat().st_mode
        with place.open("rb") as opened:
            data = opened.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        return DoctorResult(
            what,
            "failed",
            f"{show(str(place))}: {reason_of(error).lower()}",
            "create the file and make it readable by this user",
        )
    if key in ("ca", "client_ca") and (problem := authority_problem(data)):
        return DoctorResult(
            what, "failed", f"{show(str(place))}: {problem}", "use a PEM file with the CA's certificate"
        )
    if key == "client_crl" and (problem := crl_problem(data)):
        return DoctorResult(
            what, "failed", f"{show(str(place))}: {problem}", "use a PEM file with the CA's revocation list"
        )
    if key in _SECRET and stat.S_IMODE(mode) & 0o077:
        finding = f"{show(str(place))} can be read by other users (mode {stat.S_IMODE(mode):04o})"
        return DoctorResult(
            what, "warn", finding, f"run `chmod 600 {place}`; the proxy's user must still be able to read it"
        )
    return None


def _pairs(files: list[_Named]) -> Iterator[DoctorResult]:
    """Check that certificates match their keys, if both can be read."""
    groups: dict[str, dict[str, Path]] = {}
    for what, key, place in files:
        if key in ("certificate", "key"):
            groups.setdefault(what.rpartition(".")[0], {})[key] = place
    for what, pair in groups.items():
        try:
            data = [pair[key].read_bytes() for key in ("certificate", "key") if key in pair]
        except OSError:
            continue
        if len(data) == _PAIR and (problem := pair_problem(*data)):
            yield DoctorResult(
                f"{what}.certificate",
                "failed",
                problem,
                "use a matching certificate and key in PEM format; the key must not have a password",
            )
