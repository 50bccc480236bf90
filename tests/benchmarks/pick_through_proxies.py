"""The cost of a pick for requests through a real Envoy, HAProxy and nginx: a part of `tests.benchmarks.picks`.

Each proxy runs twice under `lbctl serve`, with `least_request` and with `pick`, and both get load in turns: `wrk` sends
a POST of 4 KiB with a session header on each of two connections, each request after the response to the one before. The
replicas are an nginx that responds at once. Processor times are from /proc, with the children of a proxy.
"""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.peers import processes
from tests.benchmarks.peers.systems import Started, under_serve
from tests.support.fleets import Fleet
from tests.support.processes.binaries import KINDS, Kind
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.waiting import eventually

LOAD_SECONDS = 15
"""Seconds of load for each proxy and each algorithm."""
_TURN, _WARM_UP, _CONNECTIONS = 5, 1, 2
_BALANCE: dict[str, Fleet] = {
    "static": {"algorithm": "least_request"},
    "pick": {"algorithm": "pick", "pick": {"prefix": "off", "session": ["x-session-id"]}},
}
_REPLICAS = """\
daemon off; master_process off; pid {directory}/pid; error_log /dev/null; events {{}}
http {{
  access_log off; default_type application/json; keepalive_requests 10000000;
  client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy; fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;
  server {{ {listen} location / {{ return 200 "{{}}"; }} }}
}}
"""
_SCRIPT = """\
local body, number = '{"model":"m","prompt":"' .. string.rep("hello ", 680) .. '"}', 0
function request()
  number = (number + 1) % 1000
  local headers = {["content-type"] = "application/json", ["x-session-id"] = "s" .. number}
  return wrk.format("POST", "/v1/completions", headers, body)
end
"""
_MEDIAN = re.compile(r" 50% +([0-9.]+)(us|ms|s)\n")
_COUNT = re.compile(r"([0-9]+) requests in ")
_FAILED = re.compile(r"Non-2xx or 3xx responses: ([0-9]+)|Socket errors: (.+)")
_MILLISECONDS = {"us": 1e-3, "ms": 1.0, "s": 1e3}


class _Goal(NamedTuple):
    """Upper bounds in milliseconds: processor time of proxy and picker, and the growth of the median."""

    processor: float
    added_median: float


_GOALS: dict[Kind, _Goal] = {"envoy": _Goal(0.40, 0.35), "haproxy": _Goal(0.32, 0.25), "nginx": _Goal(0.25, 0.35)}


@dataclass(slots=True)
class _Cost:
    """The requests of one proxy."""

    requests: int = 0
    failed: int = 0
    medians: list[float] = field(default_factory=list)
    """Median of a request in milliseconds, for each turn."""
    processor: list[float] = field(default_factory=list)
    """Seconds of processor time of each process of the data path."""

    def milliseconds(self) -> tuple[list[float], float, float]:
        """Return the processor time of each process and of all of them for a request, and the median of a request."""
        each = [value / self.requests * 1e3 for value in self.processor]
        return each, sum(each), statistics.median(self.medians)


# ── The load ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _replicas(count: int, directory: Path) -> Iterator[list[Fleet]]:
    """Run replicas in one nginx, and yield the items of a pool."""
    ports = [free_port() for _ in range(count)]
    file = directory / "nginx.conf"
    file.write_text(_REPLICAS.format(directory=directory, listen=" ".join(f"listen {HOST}:{port};" for port in ports)))
    process = subprocess.Popen(["nginx", "-c", file, "-e", "/dev/null"])
    try:
        yield [{"name": f"r{number}", "address": f"{HOST}:{port}"} for number, port in enumerate(ports)]
    finally:
        process.terminate()
        process.wait(20)


def _take_turn(started: Started, seconds: int, script: Path, cost: _Cost) -> None:
    """Send requests, and add their cost."""
    before = [processes.seconds([pid]) for pid in started.data_path]
    command = [
        "wrk",
        "-t1",
        f"-c{_CONNECTIONS}",
        f"-d{seconds}s",
        "--latency",
        "-s",
        script,
        f"http://{HOST}:{started.port}",
    ]
    report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    used = [processes.seconds([pid]) - value for pid, value in zip(started.data_path, before, strict=True)]
    median, count = _MEDIAN.search(report), _COUNT.search(report)
    assert median is not None, report
    assert count is not None, report
    cost.medians.append(float(median[1]) * _MILLISECONDS[median[2]])
    cost.requests += int(count[1])
    for status, errors in _FAILED.findall(report):
        cost.failed += int(status or 0) + sum(map(int, re.findall("[0-9]+", errors)))
    cost.processor = [old + new for old, new in zip(cost.processor or [0.0] * len(used), used, strict=True)]


# ── The table ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _measure(kind: Kind, members: list[Fleet], seconds: int, script: Path) -> tuple[_Cost, _Cost]:
    """Return the costs with `least_request` and with `pick`. Fails if a request of the second was not picked."""
    static, pick = ({"replicas": members, "balance": balance} for balance in _BALANCE.values())
    with under_serve(kind, static, "static") as plain, under_serve(kind, pick, "pick") as picked:
        assert picked.plane is not None
        plane = picked.plane
        costs = _Cost(), _Cost()
        for started in (plain, picked):
            _take_turn(started, _WARM_UP, script, _Cost())
        picks = plane.metric("lbctl_pick_decisions_total")
        for _ in range(0, seconds, _TURN):
            for started, cost in zip((plain, picked), costs, strict=True):
                _take_turn(started, _TURN, script, cost)
        eventually(lambda: plane.metric("lbctl_pick_decisions_total") - picks >= costs[1].requests - costs[1].failed)
    return costs


def through_proxies(seconds: int = LOAD_SECONDS) -> None:
    """Print a row for each proxy: milliseconds for a request, with the goals in parentheses."""
    if shutil.which("wrk") is None:
        raise SystemExit("this part needs wrk: apt-get install wrk")
    print(
        f"{seconds} s of load for each: processor time and median of a request in ms\n"
        f"{'':9}{'static':>8}{'proxy':>8} + {'picker':>6} = {'pick':<15}{'added':>6}"
        f"{'static p50':>13}{'pick p50':>10}{'added':>8}{'failed':>17}",
        flush=True,
    )
    with tempfile.TemporaryDirectory(prefix="lbctl-picks-") as name, _replicas(3, Path(name)) as members:
        script = Path(name) / "post.lua"
        script.write_text(_SCRIPT)
        for kind in KINDS:
            static, pick = _measure(kind, members, seconds, script)
            _, plain, plain_median = static.milliseconds()
            (proxy, picker), whole, median = pick.milliseconds()
            goal = _GOALS[kind]
            print(
                f"{kind:<9}{plain:8.3f}{proxy:8.3f} + {picker:6.3f} = {whole:5.3f} (<= {goal.processor:.2f}) "
                f"{whole - plain:6.3f}{plain_median:13.2f}{median:10.2f}{median - plain_median:8.2f} "
                f"(<= {goal.added_median:.2f}){static.failed + pick.failed:6}",
                flush=True,
            )
