"""The picker of a control plane: its process, its ports, and a proxy of any kind that queries it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import requests

from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.client import Client
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.fleet import fleet_of
from tests.support.processes.ports import HOST, free_pair
from tests.support.processes.waiting import eventually
from tests.support.processes.xds_envoy import XdsEnvoy

CLUSTER = "picker|lbctl"
"""Picker's cluster in an Envoy."""
KINDS = ("envoy", "haproxy", "nginx")
EDGE = "edge"
"""Name of the proxy that queries."""
PICK: Mapping[str, Any] = {"algorithm": "pick", "pick": {"timeout": "20s"}}
"""Balance of a pool. The long timeout keeps a proxy on a busy machine from falling back to `otherwise`."""


def picker_section() -> Fleet:
    """Return the section `control` of a fleet whose picker has separate ports."""
    return {"control": {"picker": {"bind": f"{HOST}:{free_pair()}"}}}


@contextmanager
def picked(kind: str, pool: Fleet, **more: Any) -> Iterator[tuple[ControlPlane, Client]]:
    """Run a proxy under `serve` with the fleet and a picker, and yield a client of it. `more` is as for `fleet_of`."""
    if kind == "envoy":
        fleet = fleet_of(pool, **driven(EDGE), **picker_section(), **more)
        with controlling(fleet) as control, control.envoy(EDGE, [EDGE], by_socket=True) as envoy:
            await_picker(envoy)
            yield control, envoy.client()
        return
    start = edges.haproxy if kind == "haproxy" else edges.nginx
    with start(EDGE, min_interval="100ms") as site:
        fleet = fleet_of(pool, **site.sections, **picker_section(), **more)
        del fleet["listeners"]["gateway"]
        with edges.started_edge(site, fleet), controlling(fleet) as control:
            eventually(lambda: control.proxies[EDGE]["state"] == "SYNCED" and control.status["picker"]["running"])
            yield control, site


@contextmanager
def alone(control: ControlPlane, port: int) -> Iterator[int]:
    """Run `lbctl picker`, which follows a control plane, and yield its process id."""
    command = [sys.executable, "-m", "lbctl", "picker", "--bind", f"{HOST}:{port}", "--server", control.url]
    command += ["--token-file", str(control.state / "api-token")]
    with (control.directory / "picker.log").open("ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield process.pid
            assert process.poll() is None, (control.directory / "picker.log").read_text()
        finally:
            process.terminate()
            process.wait(60)


def is_ready(port: int) -> bool:
    """Return whether the picker at this port is ready."""
    try:
        return requests.get(f"http://{HOST}:{port + 1}/ready", timeout=5).status_code == 200
    except requests.ConnectionError:
        return False


def key_of(control: ControlPlane) -> dict[str, str]:
    """Return the header with the picker's key that a control plane has created."""
    return {"x-lbctl-pick-key": (control.state / "picker-key").read_text().strip()}


def open_picks(port: int) -> float:
    """Return how many requests the picker at this port counts as in flight, according to its metrics."""
    lines = requests.get(f"http://{HOST}:{port + 1}/metrics", timeout=30).text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("lbctl_pick_open "))


def pid_of(control: ControlPlane) -> int:
    """Return the process id of the picker that a control plane has started, when it is running."""
    assert control.process is not None
    children = Path(f"/proc/{control.process.pid}/task/{control.process.pid}/children").read_text().split()
    for child in children:
        with suppress(OSError):
            if b"lbctl.picker" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise AssertionError(f"no picker runs\n{control.tail()}")


def await_picker(envoy: XdsEnvoy, *, fit: bool = True) -> None:
    """Wait until the Envoy's health check finds the picker healthy, or unhealthy."""
    eventually(lambda: envoy.stat(f"cluster.{CLUSTER}.membership_healthy") == int(fit))


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Stop the process (SIGSTOP) within the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
