"""Checks whether the addresses in the fleet are free and, if not, which program is using them.

The check binds a socket to each address and closes it without listening.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from lbctl.apply.listening_sockets import bind_error, listening_sockets, owner
from lbctl.base.errors import reason_of
from lbctl.base.paths import exists, is_directory
from lbctl.cli.doctor.check import DoctorResult
from lbctl.ir.address import Address
from lbctl.ir.proxies import picker_asked, picker_http
from lbctl.ir.topology import Topology
from lbctl.targets import KINDS, is_kubernetes, target

SERVE = frozenset({"lbctl"})
PICKER = "control.picker.bind"
"""Config path of the picker's address."""
_NAMES = ("lbctl", "lbctl.picker")
"""Names by which lbctl and its picker appear in command lines."""
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_PROGRAM = 3
"""Number of leading command-line arguments in which to search for lbctl. In `python -m lbctl`, for example, lbctl is
not the first argument."""


@dataclass(frozen=True, slots=True)
class BoundAddress:
    """An address that the fleet binds at `path`, and the `programs` that are expected to use it."""

    path: str
    address: Address
    programs: frozenset[str]


def of_fleet(topology: Topology, *, picker_is_elsewhere: bool) -> Iterator[BoundAddress]:
    """Yield the addresses that the fleet's listeners, proxies and picker bind.

    If `picker_is_elsewhere`, this fleet's `serve` runs without a picker, so an lbctl process on the picker's ports
    belongs to another fleet.
    """
    proxies = frozenset(target(kind).binary for kind in KINDS)
    elsewhere = _in_clusters(topology)
    for listener in topology.listeners:
        if listener.name in elsewhere:
            continue
        yield BoundAddress(f"listeners.{listener.name}.bind", listener.bind, proxies)
    for proxy in topology.proxies:
        if proxy.agent_check is not None:
            yield BoundAddress(f"proxies.{proxy.name}.agent_check.bind", proxy.agent_check, SERVE)
        if proxy.admin is not None:
            yield BoundAddress(f"proxies.{proxy.name}.admin", proxy.admin, proxies)
    if any(pool.balance.pick is not None for pool in topology.pools):
        picker_bind = topology.control.picker_bind
        for bind in dict.fromkeys((picker_bind, picker_http(picker_bind), picker_asked(picker_bind))):
            yield BoundAddress(PICKER, bind, frozenset() if picker_is_elsewhere else SERVE)


def _in_clusters(topology: Topology) -> set[str]:
    """Return the listeners that exist only on Kubernetes gateways and not on any machine."""
    carriers = {
        listener.name: {item.kind for item in topology.proxies if not item.listeners or listener.name in item.listeners}
        for listener in topology.listeners
    }
    return {name for name, kinds in carriers.items() if kinds and all(map(is_kubernetes, kinds))}


def port(bound: BoundAddress) -> DoctorResult:
    """Check whether the intended program can listen at the address."""
    what, place = f"{bound.path} {bound.address}", bound.address
    if place.path:
        return _socket_file(what, Path(place.path))
    error = bind_error(place)
    if error is None:
        return _outgoing_port_warning(what, bound) or DoctorResult(what, "ok", "free")
    if error.errno == errno.EADDRINUSE or (error.errno == errno.EACCES and listening_sockets(place.port)):
        return _in_use(what, bound)
    if error.errno == errno.EACCES:
        return DoctorResult(what, "ok", "free; ports below 1024 need root privileges")
    if error.errno == errno.EADDRNOTAVAIL:
        return DoctorResult(
            what,
            "warn",
            "this address does not belong to this machine",
            "run doctor on the machine where the proxy runs",
        )
    return DoctorResult(what, "warn", reason_of(error).lower(), "check the address")


def _outgoing_port_warning(what: str, bound: BoundAddress) -> DoctorResult | None:
    """Warn if an agent check listens on ports in the range for outgoing connections.

    An agent check needs many consecutive ports, and outgoing connections may occupy some of them when `serve` starts.
    """
    with suppress(OSError, ValueError):
        low, high = map(int, _RANGE.read_text(encoding="ascii").split())
        if bound.path.endswith(".agent_check.bind") and low <= bound.address.port <= high:
            finding = f"free, but this machine uses ports {low} to {high} for outgoing connections"
            return DoctorResult(
                what, "warn", finding, f"choose ports below {low}: the agent check needs one port per replica"
            )
    return None


def _in_use(what: str, bound: BoundAddress) -> DoctorResult:
    sockets = listening_sockets(bound.address.port)
    if sockets is not None and not sockets:  # a bound socket is not listed in /proc before it listens
        return DoctorResult(what, "warn", "in use by a program that is not listening", _reserved_hint(bound))
    pid = owner(sockets or ())
    if pid is None:
        return DoctorResult(
            what,
            "warn",
            "in use by another user's program",
            f"run `ss -ltnp 'sport = :{bound.address.port}'` as root",
        )
    name = _program_name(pid)
    if name in bound.programs:
        return DoctorResult(what, "ok", f"in use by {name} (process {pid})")
    return DoctorResult(what, "failed", f"in use by {name} (process {pid})", f"stop it, or change {bound.path}")


def _reserved_hint(bound: BoundAddress) -> str:
    if bound.path == PICKER:
        return "`serve` reserves it while its picker restarts: see `lbctl status`"
    return f"stop the program, or change {bound.path}"


def _socket_file(what: str, path: Path) -> DoctorResult:
    folder = path.parent
    if not is_directory(folder):
        return DoctorResult(what, "warn", f"the directory {folder} does not exist", f"mkdir -p {folder}")
    return DoctorResult(what, "ok", "exists" if exists(path) else "its directory exists")


def _program_name(pid: int) -> str:
    """Return the name of a process's program. lbctl is recognised by its command line, because it runs in Python."""
    process = Path("/proc") / str(pid)
    with suppress(OSError):
        arguments = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
        if any(Path(argument).name in _NAMES for argument in arguments[:_PROGRAM]):
            return "lbctl"
        return (process / "comm").read_text(encoding="utf-8", errors="replace").strip()
    return "a process that has just ended"
