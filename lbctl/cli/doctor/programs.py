"""Checks whether lbctl and the proxies are installed on this machine, and in which versions."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence

from lbctl import __version__
from lbctl.apply.binaries import find_binary
from lbctl.apply.check import MissingBinaryError, version_of
from lbctl.base import resources
from lbctl.cli.doctor.check import DoctorResult
from lbctl.compile.proxies import version_text
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, view
from lbctl.ir.topology import Topology
from lbctl.targets import KINDS, is_kubernetes, target
from lbctl.targets.advisories import Advisory, described, known_faults
from lbctl.targets.target import Target


def programs(topology: Topology | None) -> Iterator[DoctorResult]:
    """Check lbctl and the binary for each kind of proxy. `topology` is the fleet, if any."""
    yield _lbctl()
    for kind in KINDS:
        proxies = [item for item in topology.proxies if item.kind == kind] if topology else []
        result, version = _program(kind, proxies)
        yield result
        if topology and (faults := _faults(kind, version, proxies, topology)):
            yield DoctorResult(f"{kind} {version_text(version)}", "warn", *described(faults, version))
    if topology and (proxies := [item for item in topology.proxies if is_kubernetes(item.kind)]):
        yield _kubectl(target(proxies[0].kind))


def _kubectl(program: Target) -> DoctorResult:
    """Check the program that validates Kubernetes objects. Its version does not matter."""
    path = find_binary(program)
    if path is None:
        todo = f"`render --check` needs it: {program.install_hint}"
        return DoctorResult(program.binary, "warn", "not installed", todo)
    return DoctorResult(program.binary, "ok", path)


def _lbctl() -> DoctorResult:
    finding = f"{__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    try:
        resources.templates()
        resources.schemas()
    except FileNotFoundError as error:
        return DoctorResult("lbctl", "failed", f"{finding}: {error}", "pip install --force-reinstall lbctl")
    return DoctorResult("lbctl", "ok", finding)


def _program(kind: str, proxies: Sequence[Proxy]) -> tuple[DoctorResult, tuple[int, ...]]:
    """Check a proxy's program, and return the result and the program's version (empty if unknown)."""
    driven = [item for item in proxies if item.config and item.reload]
    program = target(kind)
    path = find_binary(program)
    if path is None:
        return _missing(kind, proxies, driven), ()
    try:
        version = version_of(path)
    except MissingBinaryError as error:
        finding, todo = str(error).removeprefix("--check "), f"reinstall it: {program.install_hint}"
        return DoctorResult(kind, "failed", finding, todo, True), ()
    if not version:
        return DoctorResult(kind, "warn", f"{path} does not report its version", f"run `{path} -v`"), ()
    return _version_check(kind, f"{version_text(version)}, {path}", version, proxies, driven), version


def _faults(kind: str, version: tuple[int, ...], proxies: Sequence[Proxy], topology: Topology) -> list[Advisory]:
    """Return known bugs in this version that can be triggered by one of these proxies' configurations."""
    if not version:
        return []
    snapshot = Snapshot(topology)
    found = {item.name: item for proxy in proxies for item in known_faults(kind, version, view(snapshot, proxy))}
    return list(found.values())


def _missing(kind: str, proxies: Sequence[Proxy], driven: Sequence[Proxy]) -> DoctorResult:
    program = target(kind)
    if driven:
        names = ", ".join(item.name for item in driven)
        finding = f"not installed, but serve manages it here: proxies.{names}"
        return DoctorResult(
            kind,
            "failed",
            finding,
            f"{program.install_hint}, or set LBCTL_{program.binary.upper()} to its path",
            True,
        )
    todo = f"`render --check` needs it: {program.install_hint}"
    return DoctorResult(kind, "warn" if proxies else "skipped", "not installed", todo)


def _version_check(
    kind: str, finding: str, version: tuple[int, ...], proxies: Sequence[Proxy], driven: Sequence[Proxy]
) -> DoctorResult:
    """Compare a program's version with the version in the fleet and with the oldest supported version."""
    oldest = target(kind).versions[0]
    if version[: len(oldest)] < oldest:
        todo = f"lbctl supports {version_text(oldest)} and later"
        return DoctorResult(kind, "failed" if driven else "warn", finding, todo)
    newest = max((item for item in proxies), key=lambda item: item.version, default=None)
    if newest is not None and version[: len(newest.version)] < newest.version:
        expected = f"proxies.{newest.name}.version is {version_text(newest.version)}"
        todo = f"{expected}: install this version, or correct the value"
        return DoctorResult(kind, "failed" if newest in driven else "warn", finding, todo)
    return DoctorResult(kind, "ok", finding)
