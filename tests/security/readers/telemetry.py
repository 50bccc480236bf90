"""Metrics pages of replicas and GPUs, and queries of Prometheus."""

from __future__ import annotations

import gzip
import json

from lbctl.base import foreign_json
from lbctl.runtime.net import fetch, http_client
from lbctl.serve.operator import promql
from lbctl.signals import exposition
from lbctl.signals.prometheus import NoValueError, single_value
from tests.support.bounds import Reader, against, inputs, json_peers, mib, sends, trickles

_SECONDS = 0.6
_METRICS = exposition.MetricsReader(["vllm:num_requests_running"])
_NAME = b"vllm:num_requests_running"
_OK = b"HTTP/1.1 200 OK\r\n\r\n"
_GZIP = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"


async def _scrape(port: int) -> bool:
    async with http_client.session() as session:
        fetched = await fetch.fetch(session, f"http://127.0.0.1:{port}/metrics", _SECONDS)
    return not fetched.reason and bool(_METRICS.read(fetched.body).samples)


async def _query(port: int) -> bool:
    async with http_client.session() as session:
        fetched = await fetch.fetch(session, f"http://127.0.0.1:{port}", _SECONDS, "up", 1.0)
    try:
        return not fetched.reason and single_value(fetched.body) == 1.0
    except NoValueError:
        return False


def _zeros(count: int) -> bytes:
    return gzip.compress(bytes(count))


_PAGES = {
    "endless nothing": sends(_GZIP + _zeros(0), gzip.compress(b"")),
    "malformed spaces": sends(_OK, _NAME + b" " * 60_000 + b"\n", times=200),
    "malformed labels": sends(_OK, _NAME + b"{" + b'a="",' * 10_000 + b"} 1\n", times=200),
    "endless lines": sends(_OK, _NAME + b" 1\n"),
    "endless line": sends(_OK + _NAME + b'{a="', b"x"),
    "endless other metrics": sends(_OK, b"x 1\n"),
    "endless expansion": sends(_GZIP + _zeros(100 << 20)),
    "slow": trickles(_OK + _NAME),
    "malformed many lines": sends(_OK, _NAME + b" 1\n", times=500_000),
    "malformed quote": sends(_OK, _NAME + b'{a="' + b"\\" * 60_000 + b"\n", times=200),
    "malformed value": sends(_OK + _NAME + b" " + b"9" * 5000 + b"\n"),
    "malformed bytes": sends(_OK, b"\xff", times=1_000_000),
    "malformed compression": sends(_GZIP + b"xyz"),
}
_ANSWER = {"status": "success", "data": {"resultType": "vector", "result": [{"value": [1, "1"]}]}}
_ROUNDS = f"{mib(fetch.MAX_BYTES)} after decompression"
READERS = (
    Reader(
        "metrics page",
        f"{_ROUNDS}, lines of {exposition.MAX_LINE_BYTES} B, {exposition.MAX_LINES} wanted lines of "
        f"{mib(exposition.MAX_WANTED_BYTES)}, `telemetry.timeout` in total",
        against(sends(_OK + _NAME + b" 1\n"), _scrape),
        inputs(_scrape, _PAGES),
        _SECONDS,
    ),
    Reader(
        "response to a PromQL query",
        f"{_ROUNDS}, {foreign_json.MAX_VALUES} values, {foreign_json.MAX_DEPTH} levels, "
        f"{promql.TIMEOUT:g} s or `telemetry.timeout` in total",
        against(sends(_OK + json.dumps(_ANSWER).encode()), _query),
        inputs(_query, json_peers(b'{"status":"success","data":')),
        _SECONDS,
    ),
)
