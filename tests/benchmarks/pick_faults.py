"""The picker fails under 200 requests a second: `python -m tests.benchmarks.pick_faults [TIMES] [PROXY …]`.

Through each proxy, twenty times each: it is killed, hangs, answers late, answers nonsense and names an unknown
replica. A row has the failed requests, the added latency against a working picker, and the shares of the replicas while
it fails.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from tests.support.processes.binaries import Binary
from tests.support.processes.client import Load
from tests.support.processes.fleet import Gateway, fleet_of, pool_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import replicas
from tests.support.processes.scripted_picker import Asked, ScriptedPicker, free_port_pair, scripted_picker

RATE, TIMES = 200, int(sys.argv[1]) if len(sys.argv) > 1 else 20
_REQUEST = Request(
    "POST", "/v1/completions", {"x-session-id": "a", "content-type": "application/json"}, b'{"prompt": "x"}'
)
_BALANCE: dict[str, Any] = {"algorithm": "pick", "pick": {"otherwise": "round_robin"}}


def nonsense(picker: ScriptedPicker) -> None:
    """Answer what is no HTTP."""
    picker.raw = b"\x00\xff nonsense\r\n\r\n"


def unknown(picker: ScriptedPicker) -> None:
    """Name a replica that nobody has."""
    picker.raw = (
        b"HTTP/1.1 200 OK\r\nx-lbctl-pick: nobody\r\nx-lbctl-replicas: 10.255.255.1:9,127.0.0.1:1\r\n"
        b"x-lbctl-pick-id: 1\r\ncontent-length: 0\r\n\r\n"
    )


def foreign(picker: ScriptedPicker) -> None:
    """Answer as a web server that knows no such path."""
    picker.raw = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"


FAULTS: dict[str, Callable[[ScriptedPicker], None]] = {
    "dead": ScriptedPicker.kill,
    "hung": ScriptedPicker.hang,
    "late": ScriptedPicker.slow,
    "nonsense": nonsense,
    "unknown replica": unknown,
    "404": foreign,
    "restarted": ScriptedPicker.heal,
}


def report(name: str, load: Load, calm: float) -> None:
    """Print a row about these requests; `calm`: the median of a request while the picker works, in seconds."""
    seconds = sorted(item.seconds for item in load.responses)
    added = [(seconds[min(len(seconds) - 1, len(seconds) * part // 1000)] - calm) * 1e3 for part in (500, 990, 1000)]
    waited = sum(each > 0.15 for each in seconds)
    shares = " ".join(f"{replica} {share:.2f}" for replica, share in load.shares().items())
    print(
        f"{name:<28} {len(seconds):6} requests  {len(load.failures)} failed  added p50 {added[0]:6.1f}  "
        f"p99 {added[1]:6.1f}  max {added[2]:6.1f} ms  {waited:4} over 150 ms  {shares}",
        flush=True,
    )


def often(gateway: Gateway, picker: ScriptedPicker, fault: Callable[[ScriptedPicker], None]) -> Load:
    """Return the requests of `TIMES` faults, of 1.2 s each, with pauses in which the picker works."""
    with gateway.steady(RATE, _REQUEST) as steady:
        for _ in range(TIMES):
            fault(picker)
            time.sleep(1.2)
            picker.heal()
            time.sleep(0.4)
    return steady.load


def by_session(asked: Asked) -> str | None:
    """Name the replica that has the name of the session."""
    return asked.headers.get("x-session-id")


def trial(kind: Binary) -> None:
    """Print the rows of one proxy."""
    port = free_port_pair()
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
            report(f"{kind}: {name}", often(gateway, picker, fault), calm)


def main() -> None:
    """Print every row."""
    kinds: tuple[Binary, ...] = ("envoy", "haproxy", "nginx")
    for kind in kinds:
        if kind in (sys.argv[2:] or kinds):
            trial(kind)


if __name__ == "__main__":
    main()
