"""The picker beside a control plane: its process, and the fleet section that gives it ports of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.e2e.support.control import ControlPlane
from tests.e2e.support.fleet import Fleet
from tests.e2e.support.ports import HOST, free_pair
from tests.e2e.support.waiting import eventually
from tests.e2e.support.xds_envoy import XdsEnvoy

CLUSTER = "picker|lbctl"
"""The picker's cluster in an Envoy."""


def picker_section() -> Fleet:
    """The section `control` of a fleet whose picker has ports of its own."""
    return {"control": {"picker": {"bind": f"{HOST}:{free_pair()}"}}}


def pid_of(control: ControlPlane) -> int:
    """The process of the picker that a control plane has started; fails until it runs."""
    assert control.process is not None
    children = Path(f"/proc/{control.process.pid}/task/{control.process.pid}/children").read_text().split()
    for child in children:
        with suppress(OSError):
            if b"lbctl.serve.picker" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise AssertionError(f"no picker runs\n{control.tail()}")


def await_picker(envoy: XdsEnvoy, *, fit: bool = True) -> None:
    """Waits until the Envoy's health check finds the picker fit, or unfit."""
    eventually(lambda: envoy.stat(f"cluster.{CLUSTER}.membership_healthy") == int(fit))


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """The process is stopped (SIGSTOP) inside the block."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
