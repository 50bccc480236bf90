"""`lbctl simulate --calibrate` measures the engine of a running replica by its metrics, or reports an error."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lbctl.cli import run
from lbctl.demo.load import LoadGenerator, poisson
from lbctl.demo.replica import PacedReplica
from lbctl.simulate.engine import CostModel, saturated_rate
from lbctl.simulate.load import lognormal
from tests.support.simulate_command import synthetic

FAST = CostModel(a=3e-3, b=0.05e-3, c=2e-8, p=0.01e-3, sequences=24)


@contextmanager
def busy_replica(rate: float) -> Iterator[int]:
    """Run a replica under load, and yield its port."""
    ready, over, ports = threading.Event(), threading.Event(), []

    async def serve() -> None:
        replica = PacedReplica("a", 1.0, FAST)
        await replica.start()
        load = LoadGenerator([replica.port], "/v1")
        arrivals = poisson(rate, 120.0, lognormal(300.0, 40.0, 0.8), "calibration") if rate else []
        sending = asyncio.create_task(load.run(arrivals, time.monotonic()))
        ports.append(replica.port)
        ready.set()
        while not over.is_set():
            await asyncio.sleep(0.05)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await load.close()
        await replica.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    ready.wait()
    try:
        yield ports[0]
    finally:
        over.set()
        thread.join()


@pytest.mark.slow
def test_calibration_measures_the_engine_of_the_replica(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with busy_replica(100.0) as port:
        url = f"http://127.0.0.1:{port}/metrics"
        command = [*synthetic(tmp_path), "--policy", "nginx:random", "--calibrate", url, "--calibrate-for", "4s"]
        assert run(command) == 0
    out, err = capsys.readouterr()
    assert "nginx:random" in out
    fitted = re.search(r"--engine (a=\S+,b=\S+,c=\S+,p=\S+) \(\d+ intervals, median error \d", err)
    assert fitted is not None
    costs = {key: float(value) for key, _, value in (part.partition("=") for part in fitted[1].split(","))}
    rate = saturated_rate(1.0, 300, 40, replace(FAST, **costs))
    assert rate == pytest.approx(saturated_rate(1.0, 300, 40, FAST), rel=0.3)


@pytest.mark.slow
def test_idle_replica_cannot_be_calibrated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with busy_replica(0.0) as port:
        url = f"http://127.0.0.1:{port}/metrics?token=secret"
        assert run([*synthetic(tmp_path), "--calibrate", url, "--calibrate-for", "500ms"]) == 1
        assert "send requests to the replica, and observe it for longer" in capsys.readouterr().err
        health = f"http://127.0.0.1:{port}/health?token=secret"
        assert run([*synthetic(tmp_path), "--calibrate", health, "--calibrate-for", "500ms"]) == 1
    err = capsys.readouterr().err
    assert "does not have the counters of iterations" in err
    assert run([*synthetic(tmp_path), "--calibrate", url, "--calibrate-for", "500ms"]) == 1
    err += capsys.readouterr().err
    assert "cannot be read" in err
    assert "secret" not in err


@pytest.mark.parametrize(
    "head", ["Content-Length: 99", "Content-Encoding: gzip\r\nContent-Length: 3", "Transfer-Encoding: chunked"]
)
def test_incomplete_metrics_page_is_an_error(head: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\nabc".encode())

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/metrics"
        assert run([*synthetic(tmp_path), "--calibrate", f"{url}?token=secret"]) == 1
        thread.join()
    err = capsys.readouterr().err
    assert f"--calibrate: {url}?token=… cannot be read" in err
    assert "secret" not in err
