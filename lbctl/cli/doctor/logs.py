"""Checks whether the fleet's proxies can open their access logs when they start on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from stat import S_ISDIR

from lbctl.cli.doctor.check import DoctorResult
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, view
from lbctl.ir.topology import Topology
from lbctl.targets import target
from lbctl.targets.target import in_system_directory


def logs(topology: Topology) -> Iterator[DoctorResult]:
    """Check the access logs of each proxy that has a `config`, because this path indicates where the proxy runs."""
    for proxy in topology.proxies:
        if proxy.config is not None:
            for path in target(proxy.kind).log_files(view(Snapshot(topology), proxy)):
                yield _log(f"proxies.{proxy.name} access log {path}", proxy, path)


def _log(what: str, proxy: Proxy, path: str) -> DoctorResult:
    if path.startswith("/dev/"):
        if not in_system_directory(proxy.config or ""):
            return DoctorResult(what, "ok", "standard output, which is not a systemd socket here")
        finding = "in a systemd service, this is a socket that the proxy cannot open, so the proxy does not start"
        return DoctorResult(what, "warn", finding, "remove `access_log.path`, or set a file")
    directory = Path(path).parent
    try:
        is_there = S_ISDIR(directory.stat().st_mode)
    except PermissionError:
        return DoctorResult(what, "skipped", f"this user cannot access {directory}", "run doctor as root")
    except OSError:
        is_there = False
    if is_there:
        return DoctorResult(what, "ok", f"{directory} exists")
    return DoctorResult(what, "warn", f"{directory} does not exist, so the proxy does not start", f"mkdir {directory}")
