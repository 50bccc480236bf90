"""`python -m tests.benchmarks.request_logs`: what it costs that an Envoy sends its request log to `lbctl serve`.

The same load goes through one Envoy of a real `serve`, with a rollout that is judged by latencies and with the same
rollout without `max_latency`. The processor time of both processes is divided by the requests.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage

from lbctl.xds.protocol import request_logs
from tests.support.fleets import Fleet
from tests.support.processes.control import controlling, driven
from tests.support.processes.fleet import pool_of
from tests.support.processes.http1 import Request
from tests.support.processes.replicas import Replica, replicas

_REQUESTS, _CONNECTIONS, _ROUNDS = 8_000, 8, 2
_TICKS = os.sysconf("SC_CLK_TCK")
_DECODED = 50_000


def main() -> None:
    print(f"decoding: {1e6 * _decoding():.1f} µs a request")
    for rounds in range(_ROUNDS):
        for latency in ((False, True), (True, False))[rounds % 2]:
            with replicas("old", "new") as (old, new):
                _measure(_fleet(old, new, measured=latency), "measured" if latency else "not measured")


def _decoding() -> float:
    """Seconds of the processor to read one entry of a message with thirty."""
    common = {
        "upstream_cluster": "new",
        "time_to_last_rx_byte": {"nanos": 10_000},
        "time_to_first_upstream_rx_byte": {"nanos": 80_000_000},
        "time_to_last_upstream_rx_byte": {"nanos": 90_000_000},
        "route_name": "chat",
        "stream_id": "c957dda2-b936-4d6a-9d9a-82d72ddc9fda",
    }
    request = {"path": "/v1/completions", "authority": "model.example.com", "user_agent": "client/1.0"}
    entry: Any = {"common_properties": common, "request": request, "response": {"response_code": {"value": 200}}}
    message = StreamAccessLogsMessage(http_logs={"log_entry": [entry] * 30}).SerializeToString()
    began = time.process_time()
    for _ in range(_DECODED // 30):
        list(request_logs.read(message))
    return (time.process_time() - began) / _DECODED


def _fleet(old: Replica, new: Replica, *, measured: bool) -> Fleet:
    analysis = {"interval": "1h", **({"max_latency": {"percentile": "p90"}} if measured else {})}
    rollout = {"to": "new", "steps": [{"percent": "50%"}], "analysis": analysis}
    return {
        "version": 1,
        **driven("edge"),
        "routes": {"chat": {"match": {"path_prefix": "/"}, "split": {"old": 100, "new": 0}, "rollout": rollout}},
        "pools": {name: pool_of([replica]) for name, replica in (("old", old), ("new", new))},
    }


def _measure(fleet: Fleet, name: str) -> None:
    with controlling(fleet) as control, control.envoy("edge", ["edge"], by_socket=True) as envoy:
        assert control.process is not None
        client, pids = envoy.client(), (envoy.process.pid, control.process.pid)
        client.load(500, _CONNECTIONS, Request("POST", "/v1/completions"))
        before = list(map(_seconds, pids))
        began = time.monotonic()
        load = client.load(_REQUESTS, _CONNECTIONS, Request("POST", "/v1/completions"))
        time.sleep(2)
        spent = [after - earlier for after, earlier in zip(map(_seconds, pids), before, strict=True)]
        load.assert_no_failure()
        times = sorted(_latencies(load))
        cells = [f"{1e6 * each / _REQUESTS:5.0f} µs" for each in spent]
        rate = _REQUESTS / (time.monotonic() - began - 2)
        tail = f"p50 {1e3 * times[len(times) // 2]:.2f} ms, p99 {1e3 * times[len(times) * 99 // 100]:.2f} ms"
        print(f"{name:<14} Envoy {cells[0]}, serve {cells[1]} a request; {rate:.0f} requests/s, {tail}", flush=True)


def _latencies(load: Any) -> Iterator[float]:
    return (item.finished - item.started for item in load.responses)


def _seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


if __name__ == "__main__":
    main()
