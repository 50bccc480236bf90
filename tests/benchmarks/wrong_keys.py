"""`python -m tests.benchmarks.wrong_keys`: measure the processor time of a proxy for a request with a wrong API key.

Each proxy has a row: with one key, with 10,000 keys, and their ratio; then the same for a header with 7,900 blanks
before the beginning of a key. The cost matters because clients without a key can send any number of such requests.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.support.processes.fleet import Gateway, fleet_of, running
from tests.support.processes.replicas import replicas

KINDS = ("nginx", "haproxy", "envoy")
_REQUESTS = 2000
_TICKS = os.sysconf("SC_CLK_TCK")
_HEADERS = {"a wrong key": "Bearer sk-wrong-0123456789abcdef", "7,900 blanks": f"Bearer{' ' * 7900}sk-0000"}


def main() -> None:
    """Print the table."""
    print(f"{'PROXY':<9} {'HEADER':<14} {'1 KEY':>9} {'10,000 KEYS':>12} {'RATIO':>7}")
    for kind in KINDS:
        few, many = _costs(kind, 1), _costs(kind, 10_000)
        for name in _HEADERS:
            ratio = many[name] / max(few[name], 1e-9)
            print(f"{kind:<9} {name:<14} {few[name] * 1e3:>6.3f} ms {many[name] * 1e3:>9.3f} ms {ratio:>7.1f}")


def _costs(kind: str, size: int) -> dict[str, float]:
    """Return header → processor seconds for a request with it, if the route has this number of keys."""
    keys = "".join(f"sk-{number:06}-abcdefghijklmnopqrstuvwxyz: t{number}\n" for number in range(size))
    with replicas("a") as (a,):
        fleet = fleet_of([a], route={"auth": {"api_keys": {"file": "keys"}}})
        with running(kind, fleet, files={"keys": keys}) as gateway:  # type: ignore[arg-type]
            return {name: _cost(gateway, value) for name, value in _HEADERS.items()}


def _cost(gateway: Gateway, value: str) -> float:
    before = _seconds(gateway.proxy.process.pid)
    for _ in range(_REQUESTS):
        answer = gateway.get(headers={"authorization": value})
        if answer.status not in (400, 401, 431):
            sys.exit(f"{answer.status} in place of a refusal")
    return (_seconds(gateway.proxy.process.pid) - before) / _REQUESTS


def _seconds(pid: int) -> float:
    """Return the processor seconds of a process and its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (int(fields[11]) + int(fields[12])) / _TICKS + sum(_seconds(int(child)) for child in children)


if __name__ == "__main__":
    main()
