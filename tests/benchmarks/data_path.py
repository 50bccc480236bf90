"""`python -m tests.benchmarks.data_path`: processor time of a proxy for each request, with a configuration written by
hand and with what lbctl renders, by turns in one run.

The time is that of the proxy's own threads, from /proc, so that it holds on a busy machine and neither client nor
replica counts. The configuration by hand does what a careful operator writes for inference: least connections, kept
connections, no buffering, a JSON access log of the same fields as far as the proxy has them. `--requests N` (default
2000) in each of `--rounds N` (default 5) turns; `-k WORD` takes the proxies whose name holds the word. It judges
nothing.
"""

from __future__ import annotations

import argparse
import socket
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.e2e.support.binaries import Kind
from tests.e2e.support.fleet import Gateway, fleet_of, pool_of, running, serving
from tests.e2e.support.ports import HOST, free_port
from tests.e2e.support.replicas import Replica, replicas

_SMALL, _LARGE = 1_000, 100_000
_HEAD = f"{'PROXY':<10} {'REQUEST':<22} {'BY HAND':>9} {'RENDERED':>9} {'RATIO':>6}   µs a request, median of the turns"


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of request; `share` of the requests of a turn are sent, since it costs more than a small one."""

    name: str
    path: str
    body: int
    share: float = 1.0


CASES = (
    Case("POST of 1 KB", "/v1/completions", _SMALL),
    Case("POST of 100 KB", "/v1/completions", _LARGE, 0.25),
)


def main() -> int:
    """Print a line for each proxy and kind of request."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.data_path", description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-k", default="", dest="word")
    options = parser.parse_args()
    print(_HEAD, flush=True)
    for kind in HAND:
        if options.word in kind:
            for case, by_hand, rendered in compared(kind, options.requests, options.rounds):
                print(
                    f"{kind:<10} {case.name:<22} {by_hand:>9.1f} {rendered:>9.1f} {by_hand / rendered:>6.2f}",
                    flush=True,
                )
    return 0


def compared(kind: Kind, requests: int, rounds: int) -> Iterator[tuple[Case, float, float]]:
    """Yield each case with the microseconds of both configurations."""
    with ExitStack() as stack:
        members = stack.enter_context(replicas("a", "b", "c"))
        both = (
            stack.enter_context(_by_hand(kind, members)),
            stack.enter_context(running(kind, fleet_of(pool_of(members, balance={"algorithm": "least_request"})))),
        )
        for case in CASES:
            count = max(1, int(requests * case.share))
            for gateway in both:
                _send(gateway.port, case, count // 10 + 1)
            turns = [[_cost(gateway, case, count) for gateway in both] for _ in range(rounds)]
            by_hand, rendered = (statistics.median(each) for each in zip(*turns, strict=True))
            yield case, by_hand, rendered


@contextmanager
def _by_hand(kind: Kind, members: list[Replica]) -> Iterator[Gateway]:
    port = free_port()
    with serving(kind, HAND[kind](port, members), port) as gateway:
        yield gateway


def _cost(gateway: Gateway, case: Case, count: int) -> float:
    """Return the microseconds of processor time that the proxy took for each request."""
    before = _busy(gateway.proxy.process.pid)
    _send(gateway.port, case, count)
    return (_busy(gateway.proxy.process.pid) - before) / count / 1000


def _busy(pid: int) -> int:
    """Return the nanoseconds that the threads of a process and of its children were on a processor."""
    process = Path(f"/proc/{pid}")
    own = sum(int(each.read_text().split()[0]) for each in process.glob("task/*/schedstat"))
    children = (process / f"task/{pid}/children").read_text().split()
    return own + sum(_busy(int(child)) for child in children)


def _send(port: int, case: Case, count: int) -> None:
    """Send the requests one after the other on one connection."""
    request = (
        f"POST {case.path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {case.body}\r\n\r\n"
    ).encode() + b" " * case.body
    with socket.create_connection((HOST, port), 30) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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


def _nginx(port: int, members: list[Replica]) -> str:
    servers = "".join(f"server {each.address}; " for each in members)
    temporary = "".join(f"{name}_temp_path t-{name}; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    log = (
        '{"ts":"$time_iso8601","request_id":"$request_id","client":"$remote_addr","method":"$request_method",'
        '"path":"$uri","replica":"$upstream_addr","status":$status,"bytes_in":$request_length,'
        '"bytes_out":$body_bytes_sent,"t_connect":"$upstream_connect_time","t_first_byte":"$upstream_header_time",'
        '"t_total":$request_time,"flags":"$upstream_status"}'
    )
    return f"""worker_processes auto; error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
  {temporary}
  log_format json escape=json '{log}';
  upstream pool {{ zone pool 128k; least_conn; {servers} keepalive 64; keepalive_timeout 4s; }}
  server {{
    listen {HOST}:{port};
    access_log /dev/stdout json;
    client_max_body_size 0; client_body_buffer_size 256k;
    location / {{
      proxy_http_version 1.1; proxy_buffering off; proxy_read_timeout 5m;
      proxy_set_header connection ""; proxy_set_header host $host; proxy_set_header x-request-id $request_id;
      proxy_set_header x-forwarded-for $remote_addr; proxy_set_header x-forwarded-proto $scheme;
      proxy_pass http://pool;
    }}
  }}
}}
"""


def _haproxy(port: int, members: list[Replica]) -> str:
    servers = "".join(f"  server {each.name} {each.address} check inter 10s\n" for each in members)
    log = (
        '{"ts":"%tr","request_id":"%ID","client":"%ci","method":"%HM","path":"%[capture.req.uri,json(utf8s)]",'
        '"pool":"%b","replica":"%s","status":%ST,"bytes_in":%U,"bytes_out":%B,"t_queue":%Tw,"t_connect":%Tc,'
        '"t_first_byte":%Tr,"t_total":%Ta,"retries":"%rc","flags":"%tsc"}'
    )
    return f"""global
  log stdout len 65535 format raw local0 info
defaults
  mode http
  log global
  option http-no-delay
  option http-keep-alive
  timeout connect 2s
  timeout client 5m
  timeout server 5m
  timeout http-request 15s
frontend main
  bind {HOST}:{port}
  unique-id-format %[uuid()]
  unique-id-header x-request-id
  option forwardfor
  log-format '{log}'
  default_backend pool
backend pool
  balance leastconn
  http-reuse safe
{servers}"""


def _envoy(port: int, members: list[Replica]) -> str:
    endpoints = "".join(
        f"\n        - endpoint: {{address: {{socket_address: {{address: {each.host}, port_value: {each.port}}}}}}}"
        for each in members
    )
    fields = {
        "ts": "%START_TIME%", "request_id": "%REQ(X-REQUEST-ID)%",
        "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%", "method": "%REQ(:METHOD)%", "path": "%PATH(NQ:PATH)%",
        "replica": "%UPSTREAM_HOST%", "status": "%RESPONSE_CODE%", "bytes_in": "%BYTES_RECEIVED%",
        "bytes_out": "%BYTES_SENT%", "t_total": "%DURATION%", "flags": "%RESPONSE_FLAGS%",
    }  # fmt: skip
    log = ", ".join(f'{name}: "{value}"' for name, value in fields.items())
    return f"""static_resources:
  listeners:
  - address: {{socket_address: {{address: {HOST}, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: main
          access_log:
          - name: stdout
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog
              log_format: {{json_format: {{{log}}}}}
          route_config:
            virtual_hosts:
            - {{name: all, domains: ["*"], routes: [{{match: {{prefix: /}}, route: {{cluster: pool, timeout: 0s}}}}]}}
          http_filters:
          - name: router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: pool
    connect_timeout: 2s
    lb_policy: LEAST_REQUEST
    load_assignment:
      cluster_name: pool
      endpoints:
      - lb_endpoints:{endpoints}
"""


HAND: Mapping[Kind, Callable[[int, list[Replica]], str]] = {"nginx": _nginx, "haproxy": _haproxy, "envoy": _envoy}

if __name__ == "__main__":
    raise SystemExit(main())
