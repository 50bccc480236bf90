"""The process of `lbctl agent`: its size, its end, and faults after which it must not report "healthy" too early."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes.agents import CLIENT_PATH, WARMUP, agents
from tests.support.processes.client import Client
from tests.support.processes.waiting import eventually

_MAX_MEMORY = 60
"""Resident memory in MB."""
_UNUSED = (
    "google._upb",
    "google.protobuf",
    "grpc",
    "jinja2",
    "msgspec",
    "numpy",
    "pydantic",
    "pydantic_core",
    "rich",
    "yaml",
)
"""Packages that the agent must not import."""


def test_process_is_small_and_imports_little() -> None:
    with agents("a") as (agent,):
        process = Path(f"/proc/{agent.process.pid}")
        maps = (process / "maps").read_text()
        assert [name for name in _UNUSED if f"site-packages/{name.replace('.', '/')}/" in maps] == []
        (resident,) = re.findall(r"VmRSS:\s+(\d+) kB", (process / "status").read_text())
        assert int(resident) / 1024 <= _MAX_MEMORY
    program = "import sys, lbctl.agent.process; print(*sys.modules)"
    listed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert [name for name in listed.stdout.split() if name in _UNUSED] == []


def test_sigterm_drains_before_the_process_ends() -> None:
    with agents("a") as (agent,):
        agent.engine.wedged = True
        request = Client(agent.engine.port).send("POST", f"{CLIENT_PATH}?n=2", timeout=120)
        eventually(lambda: agent.engine.in_flight == 1)
        agent.process.terminate()
        agent.await_state("draining")
        for _ in range(20):
            assert agent.health()["state"] == "draining"
        assert agent.process.poll() is None
        agent.engine.wedged = False
        assert request.result(120).ok
        eventually(lambda: agent.health() == {} and agent.process.poll() is not None)
        assert agent.process.returncode == 0


def test_readmit_ends_a_drain() -> None:
    with agents("a") as (agent,):
        drain = agent.command("drain", "--wait", "100s")
        agent.await_state("draining")
        eventually(lambda: bool(agent.health()) and drain.poll() is not None, 90)
        assert agent.health()["state"] == "draining"
        assert agent.command("readmit").wait(60) == 0
        agent.await_state("healthy")


def test_fault_survives_a_restart_of_the_agent() -> None:
    with agents("a") as (agent,):
        agent.gpus.xid(0, 79)
        agent.await_state("unhealthy", "xid")
        agent.kill()
        agent.start()
        with agent.never_healthy():
            agent.await_state("unhealthy", "xid")
        assert agent.command("readmit").wait(60) == 0
        agent.await_state("healthy")


@pytest.mark.parametrize(
    ("device", "fault", "code"),
    [("driver", "down", "driver"), ("gpu0", "hang", "driver"), ("gpu0", "lost", "gpu_lost")],
)
def test_unreadable_gpu_is_unhealthy_until_a_restart(device: str, fault: str, code: str) -> None:
    """The GPU can be read again, but the engine does not answer requests until it restarts."""
    with agents("a") as (agent,):
        agent.gpus.set(device, **{fault: 1})
        agent.await_state("unhealthy", code)
        with agent.never_healthy():
            agent.engine.is_loading = True
            before = agent.engine.own_requests
            agent.gpus.set(device, **{fault: None})
            eventually(lambda: agent.engine.own_requests > before)
            agent.await_state("unhealthy", code)
        agent.engine.is_loading = False
        agent.engine.restart()
        agent.await_state("healthy")


def test_restarted_engine_is_warmed_up_again() -> None:
    with agents("a") as (agent,):
        before = agent.engine.own_requests
        assert before >= WARMUP
        agent.engine.restart()
        eventually(lambda: agent.engine.own_requests >= before + WARMUP)
        agent.await_state("healthy")


def test_dead_engine_is_unhealthy_until_it_is_warm() -> None:
    with agents("a") as (agent,):
        agent.engine.refuse()
        agent.await_state("unhealthy", "engine")
        with agent.never_healthy():
            agent.engine.is_loading = True
            agent.engine.restart()
            agent.await_state("warming_up")
        agent.engine.is_loading = False
        agent.await_state("healthy")
