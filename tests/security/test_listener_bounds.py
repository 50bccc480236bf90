"""Clients cannot exhaust the memory of a listener, which keeps serving an honest client meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pytest

from tests.security.listeners import LISTENERS, NODE, Listener
from tests.support.hostile_clients import Target, attacking, peak_of
from tests.support.processes.control import controlling, driven
from tests.support.processes.fleet import fleet_of
from tests.support.processes.picker import key_of, picker_section, pid_of
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.waiting import eventually

MAX_MEMORY = 64.0
"""Megabytes by which hostile clients may make a process grow."""
_DURATION = 1.5
"""Minimum seconds of an attack."""
_TIMEOUT = 60.0
"""Seconds within which an honest client must be answered, including retries."""


@dataclass(frozen=True, slots=True)
class _Plane:
    targets: Mapping[str, Target]
    serve: int
    """The process id of `serve`."""
    picker: int


@pytest.fixture(scope="module")
def plane() -> Iterator[_Plane]:
    section = picker_section()
    picker = int(section["control"]["picker"]["bind"].rsplit(":", 1)[1])
    replicas = [{"name": name, "address": f"{HOST}:{free_port()}"} for name in ("a", "b")]
    pool = {"replicas": replicas, "balance": {"algorithm": "pick"}}
    with controlling(fleet_of(pool, **driven(NODE), **section)) as control:
        assert control.process is not None
        key = key_of(control)
        targets = {
            "picker": Target(picker, key),
            "picker_http": Target(picker + 1, key),
            "xds": Target(control.xds),
            "api": Target(control.api),
        }
        for listener in LISTENERS:
            eventually(lambda item=listener: item.honest(targets[item.port]))
        yield _Plane(targets, control.process.pid, pid_of(control))


def _cases() -> Iterator[object]:
    for listener in LISTENERS:
        for kind in listener.hostile:
            marks = () if kind == "endless" else (pytest.mark.nightly,)
            yield pytest.param(listener, kind, marks=marks, id=f"{listener.name}: {kind}")


@pytest.mark.parametrize(("listener", "kind"), list(_cases()))
def test_hostile_clients_cost_little_and_keep_no_client_out(plane: _Plane, listener: Listener, kind: str) -> None:
    target = plane.targets[listener.port]

    def attack() -> None:
        with attacking(target, *listener.hostile[kind]):
            time.sleep(_DURATION)
            deadline = time.monotonic() + _TIMEOUT
            while not listener.honest(target):
                assert time.monotonic() < deadline, "an honest client is kept out"

    assert peak_of(plane.picker if listener.by_picker else plane.serve, attack) < MAX_MEMORY


@pytest.mark.parametrize("listener", LISTENERS, ids=[listener.name for listener in LISTENERS])
def test_every_listener_meets_each_kind_of_hostile_client(listener: Listener) -> None:
    assert set(listener.hostile) == {"endless", "slow", "deep", "malformed"}
