"""The picker fails under 200 requests a second: `python -m tests.benchmarks.pick_faults [TIMES] [PROXY …]`.

Each fault lasts 1.2 s and occurs twenty times with each proxy, which queries the picker again before the next one.
HAProxy queries it by SPOP, Envoy and nginx by HTTP. A row has the failed requests, the added latency against a working
picker, the requests that waited for it, and the shares of the replicas. The exit status is 1 if a request failed.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from lbctl.picker import spop_frames
from tests.support.processes.binaries import Binary
from tests.support.processes.client import Load
from tests.support.processes.fleet import Gateway, fleet_of, pool_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.ports import free_pair
from tests.support.processes.replicas import replicas
from tests.support.processes.scripted_picker import Asked, ScriptedPicker, scripted_picker
from tests.support.processes.waiting import eventually

RATE, TIMES = 200, int(sys.argv[1]) if len(sys.argv) > 1 else 20
_KINDS: tuple[Binary, ...] = ("envoy", "haproxy", "nginx")
_FAULT_SECONDS, _WORKING_SECONDS = 1.2, 0.2
_REQUEST = Request(
    "POST", "/v1/completions", {"x-session-id": "a", "content-type": "application/json"}, b'{"prompt": "x"}'
)
_BALANCE: dict[str, Any] = {"algorithm": "pick", "pick": {"otherwise": "round_robin"}}

Fault = Callable[[ScriptedPicker, Binary], None]


def by_session(asked: Asked) -> str | None:
    """Return the replica that has the name of the session."""
    return asked.headers.get("x-session-id")


def respond(http: bytes, spop: bytes) -> Fault:
    """Return the fault of a picker that responds to each query with these bytes."""

    def fault(picker: ScriptedPicker, kind: Binary) -> None:
        picker.raw = spop if kind == "haproxy" else http

    return fault


def unknown(picker: ScriptedPicker, _: Binary) -> None:
    """Name a replica that the pool does not have; its name is also an address, for Envoy."""
    picker.pick = lambda _: "127.0.0.1:1"


_GARBAGE = b"\x00\xff nonsense\r\n\r\n"
_HTTP_ERROR = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n"
FAULTS: dict[str, Fault] = {
    "killed": lambda picker, _: picker.kill(),
    "hung": lambda picker, _: picker.hang(),
    "responds after 5 s": lambda picker, _: picker.slow(),
    "responds with an error": respond(_HTTP_ERROR, spop_frames.disconnect(99, "error")),
    "responds with garbage": respond(_GARBAGE, _GARBAGE),
    "sends a malformed message": respond(b"HTTP/1.1 999 What\r\n\r\n", b"\x00\x00\x00\x08nonsense"),
    "closes the connection": respond(b"", b""),
    "a web server uses its port": lambda picker, _: picker.lose_port(),
    "names an unknown replica": unknown,
    "restarted": lambda picker, _: picker.heal(),
}


def report(name: str, load: Load, calm: float) -> None:
    """Print a row about these requests; `calm`: the median of a request while the picker works, in seconds."""
    seconds = sorted(item.seconds for item in load.responses)
    added = [(seconds[min(len(seconds) - 1, len(seconds) * part // 1000)] - calm) * 1e3 for part in (500, 990, 1000)]
    waited = sum(each > 0.15 for each in seconds)
    shares = " ".join(f"{replica} {share:.2f}" for replica, share in load.shares().items())
    print(
        f"{name:<36} {len(seconds):6} requests  {len(load.failures)} failed  added p50 {added[0]:6.1f}  "
        f"p99 {added[1]:6.1f}  max {added[2]:6.1f} ms  {waited:4} over 150 ms  {shares}",
        flush=True,
    )
    for failure in load.failures[:5]:
        print(f"    {failure}", flush=True)


def heal(picker: ScriptedPicker) -> None:
    """Make the picker work, and wait until the proxy queries it again."""
    picker.pick = by_session
    picker.heal()
    before = len(picker.asked)
    eventually(lambda: len(picker.asked) > before)
    time.sleep(_WORKING_SECONDS)


def often(gateway: Gateway, picker: ScriptedPicker, fault: Callable[[], None]) -> Load:
    """Return the requests of `TIMES` faults; between them the picker works."""
    with gateway.steady(RATE, _REQUEST) as steady:
        for _ in range(TIMES):
            fault()
            time.sleep(_FAULT_SECONDS)
            heal(picker)
    return steady.load


def trial(kind: Binary) -> int:
    """Print the rows of one proxy, and return the number of failed requests."""
    port, failed = free_pair(), 0
    with (
        replicas("a", "b", "c") as three,
        scripted_picker(port, by_session, {item.name: item.address for item in three}) as picker,
        running(
            kind, fleet_of(pool_of(three, balance=_BALANCE), control={"picker": {"bind": f"127.0.0.1:{port}"}})
        ) as gateway,
    ):
        with gateway.steady(RATE, _REQUEST) as steady:
            time.sleep(3.0)
        calm = steady.load.percentile(50)
        report(f"{kind}: works ({calm * 1e3:.1f} ms)", steady.load, calm)
        for name, fault in FAULTS.items():
            load = often(gateway, picker, lambda fault=fault: fault(picker, kind))  # type: ignore[misc]
            report(f"{kind}: {name}", load, calm)
            failed += len(load.failures)
    return failed


def main() -> None:
    """Print every row."""
    failed = sum(trial(kind) for kind in _KINDS if kind in (sys.argv[2:] or _KINDS))
    print(f"{failed} failed requests", flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
