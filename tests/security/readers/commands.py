"""Responses that commands read from a running `serve`, or from any other program that listens at its address."""

from __future__ import annotations

import asyncio
from unittest.mock import patch

from lbctl.api import client as api_client
from lbctl.api import schema
from lbctl.api.client import NO_TOKEN, ApiError, ServeClient
from lbctl.base import foreign_json
from lbctl.init import probe
from lbctl.init.probe_target import ProbeTarget
from tests.support.bounds import Reader, against, inputs, json_peers, mib, sends

_SECONDS = 1.0
_OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
_HEAD = b"HTTP/1.1 200 OK\r\n"


def _answer(port: int) -> bool:
    client = ServeClient(f"http://127.0.0.1:{port}", NO_TOKEN, None)
    try:
        return client.get("/api/v1/pools", schema.Pools) == schema.Pools(())
    except ApiError:
        return False


async def _probe(port: int) -> bool:
    (answers,) = await probe.probe([ProbeTarget("http", "127.0.0.1", port)], _SECONDS)
    return answers.data("/v1/models") == {"data": []}


async def _read(port: int) -> bool:
    return await asyncio.to_thread(_answer, port)


READERS = (
    Reader(
        "API response to a command",
        f"{mib(api_client.MAX_ANSWER_BYTES)}, {api_client.MAX_VALUES} values, {foreign_json.MAX_DEPTH} levels, "
        f"{api_client.TIMEOUTS['GET']:g} s in total, {api_client.WRITE_TIMEOUT:g} s for writes",
        against(sends(_OK + b'{"pools":[]}'), _read),
        inputs(
            _read,
            json_peers(b'{"pools":')
            | {
                "endless headers": sends(_HEAD, b"a: b\r\n"),
                "endless interim answers": sends(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
                "malformed types": sends(_OK + b"[]"),
                "malformed values": sends(_OK + b"[" * 3 + b"1]"),
            },
        ),
        _SECONDS,
        patched=lambda: patch.dict(api_client.TIMEOUTS, {"GET": _SECONDS}),
    ),
    Reader(
        "server's response to `lbctl init`",
        f"{mib(probe.MAX_BYTES)}, {foreign_json.MAX_VALUES} values, {foreign_json.MAX_DEPTH} levels, "
        f"{probe.TIMEOUT:g} s for all responses",
        against(sends(_OK + b'{"data":[]}'), _probe),
        inputs(_probe, json_peers(b'{"data":')),
        2 * _SECONDS,
    ),
)
