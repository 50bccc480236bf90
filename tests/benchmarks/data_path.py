"""`python -m tests.benchmarks.data_path`: processor time of a proxy for each request, with a configuration written by
hand and with what lbctl renders, by turns in one run.

The time is that of the proxy's own threads, from /proc, so that neither client nor replica counts. A busy machine only
adds to it, by caches that others used and by more switches, so the turns are short and many and their lower quartile
counts. What is written by hand is in `data_path_by_hand`. `--requests N` (default 400) in each of `--rounds N` (default
21) turns; `-k WORD` takes the lines that hold the word. It judges nothing.
"""

from __future__ import annotations

import argparse
import socket
import ssl
import statistics
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.benchmarks.data_path_by_hand import (
    BUNDLE,
    BY_HAND,
    CERTIFICATE,
    COOKIE,
    KEY,
    MAP,
    PER_SECOND,
    TENANTS,
    Wanted,
)
from tests.support.fleets import Fleet
from tests.support.processes.binaries import KINDS, Kind
from tests.support.processes.certs import Authority, client_context
from tests.support.processes.fleet import Gateway, fleet_of, pool_of, running, serving
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.replicas import Replica, replicas

_SMALL, _LARGE = 1_000, 100_000
_TOKENS = "/sse?n=100&gap=0.001&pad=20"
_COMPLETIONS = "/v1/completions"
_KEYS = "keys"
_HEAD = f"{'PROXY':<10} {'REQUEST':<34} {'BY HAND':>9} {'RENDERED':>9} {'RATIO':>6}   µs a request, lower quartile"


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of request; `share` of the requests of a turn are sent, since it costs more than a small one."""

    name: str
    path: str = _COMPLETIONS
    body: int = _SMALL
    share: float = 1.0
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Setting:
    """What both configurations do, and the requests that are sent to them."""

    cases: tuple[Case, ...]
    tls: bool = False
    keys: bool = False
    canary: bool = False


SETTINGS = (
    Setting(
        (
            Case("POST of 1 KB"),
            Case("POST of 100 KB", body=_LARGE, share=0.25),
            Case("SSE of 100 tokens", _TOKENS, share=0.02),
        )
    ),
    Setting((Case("TLS: POST of 1 KB"),), tls=True),
    Setting((Case("keys and a limit: POST of 1 KB", headers={"authorization": "Bearer sk-7"}),), keys=True),
    Setting((Case("canary by cookie: POST of 1 KB", headers={"cookie": f"{COOKIE}=old"}),), canary=True),
)


def main() -> int:
    """Print a line for each proxy and kind of request."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.data_path", description=__doc__)
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("-k", default="", dest="word")
    options = parser.parse_args()
    print(_HEAD, flush=True)
    for kind in KINDS:
        for setting in SETTINGS:
            cases = [case for case in setting.cases if options.word in _name(kind, case)]
            for case, by_hand, rendered in compared(kind, setting, cases, options.requests, options.rounds):
                print(f"{_name(kind, case)} {by_hand:>9.1f} {rendered:>9.1f} {by_hand / rendered:>6.2f}", flush=True)
    return 0


def _name(kind: Kind, case: Case) -> str:
    return f"{kind:<10} {case.name:<34}"


def compared(
    kind: Kind, setting: Setting, cases: list[Case], requests: int, rounds: int
) -> Iterator[tuple[Case, float, float]]:
    """Yield each case with the microseconds of both configurations; start nothing where there is no case."""
    if not cases:
        return
    with ExitStack() as stack:
        members = stack.enter_context(replicas("a", "b", "c"))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        authority = Authority(directory)
        pair = authority.issue("localhost")
        files = {
            CERTIFICATE: pair.certificate.read_bytes(),
            KEY: pair.key.read_bytes(),
            BUNDLE: pair.bundle.read_bytes(),
            MAP: "".join(f"{key} {name}\n" for key, name in TENANTS.items()),
            _KEYS: "".join(f"{key}: {name}\n" for key, name in TENANTS.items()),
        }
        tls = client_context(authority.ca) if setting.tls else None
        both = (
            stack.enter_context(_by_hand(kind, setting, members, files)),
            stack.enter_context(running(kind, _fleet(setting, members), files=files)),
        )
        for case in cases:
            count = max(1, int(requests * case.share))
            for gateway in both:
                _send(gateway.port, tls, case, count // 10 + 1)
            turns = [[_cost(gateway, tls, case, count) for gateway in both] for _ in range(rounds)]
            by_hand, rendered = (statistics.quantiles(each)[0] for each in zip(*turns, strict=True))
            yield case, by_hand, rendered


def _pools(setting: Setting, members: list[Replica]) -> dict[str, list[Replica]]:
    return {"old": members[:2], "new": members[2:]} if setting.canary else {"pool": members}


def _fleet(setting: Setting, members: list[Replica]) -> Fleet:
    pools = {
        name: pool_of(part, balance={"algorithm": "least_request"}) for name, part in _pools(setting, members).items()
    }
    listener: dict[str, Any] = {}
    route: dict[str, Any] = {"match": {"path_prefix": "/"}, "pool": "pool"}
    if setting.tls:
        listener["tls"] = {"certificates": [{"certificate": CERTIFICATE, "key": KEY}]}
    if setting.keys:
        route["auth"] = {"api_keys": {"file": _KEYS}, "forward_tenant": "x-tenant"}
        route["rate_limit"] = [{"by": "tenant", "rate": f"{PER_SECOND}/s", "burst": PER_SECOND}]
    if setting.canary:
        del route["pool"]
        route |= {"split": {"old": 95, "new": 5}, "sticky_split": {"cookie": COOKIE, "ttl": "1h"}}
    return {**fleet_of(members, listener=listener), "routes": {"everything": route}, "pools": pools}


@contextmanager
def _by_hand(
    kind: Kind, setting: Setting, members: list[Replica], files: Mapping[str, str | bytes]
) -> Iterator[Gateway]:
    port = free_port()
    wanted = Wanted(port, _pools(setting, members), setting.tls, setting.keys)
    with serving(kind, BY_HAND[kind](wanted), port, files=files) as gateway:
        yield gateway


def _cost(gateway: Gateway, tls: ssl.SSLContext | None, case: Case, count: int) -> float:
    """Return the microseconds of processor time that the proxy took for each request."""
    before = _busy(gateway.proxy.process.pid)
    _send(gateway.port, tls, case, count)
    return (_busy(gateway.proxy.process.pid) - before) / count / 1000


def _busy(pid: int) -> int:
    """Return the nanoseconds that the threads of a process and of its children were on a processor."""
    process = Path(f"/proc/{pid}")
    own = sum(int(each.read_text().split()[0]) for each in process.glob("task/*/schedstat"))
    children = (process / f"task/{pid}/children").read_text().split()
    return own + sum(_busy(int(child)) for child in children)


def _send(port: int, tls: ssl.SSLContext | None, case: Case, count: int) -> None:
    """Send the requests one after the other on one connection."""
    headers = "".join(f"{name}: {value}\r\n" for name, value in case.headers.items())
    request = (
        f"POST {case.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}"
        f"Content-Length: {case.body}\r\n\r\n"
    ).encode() + b" " * case.body
    with ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection((HOST, port), 30))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            connection = stack.enter_context(tls.wrap_socket(connection, server_hostname="localhost"))
        stream = connection.makefile("rb")
        for _ in range(count):
            connection.sendall(request)
            _read(stream)


def _read(stream: IO[bytes]) -> None:
    """Read one response, whose body has a length or is chunked; fail where it is no 200."""
    line = stream.readline()
    assert b" 200 " in line, line
    length, chunked = 0, False
    while (header := stream.readline().lower().strip()) != b"":
        if header.startswith(b"content-length:"):
            length = int(header.split(b":")[1])
        chunked = chunked or header == b"transfer-encoding: chunked"
    if not chunked:
        stream.read(length)
        return
    while size := int(stream.readline(), 16):
        stream.read(size + 2)
    stream.readline()


if __name__ == "__main__":
    raise SystemExit(main())
