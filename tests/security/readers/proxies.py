"""Reports of the proxies: HAProxy's Runtime API, Envoy's admin interface, the traffic log."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from lbctl.apply.haproxy import running, runtime
from lbctl.base import foreign_json
from lbctl.ir.address import Address
from lbctl.ir.pools import Pool, Replica
from lbctl.runtime.net import http_client
from lbctl.serve.traffic import envoy_conditions, log_line
from lbctl.serve.traffic.haproxy import HaproxySource
from lbctl.serve.traffic.log_receiver import LogReceiver
from tests.support.bounds import Case, Reader, against, inputs, json_peers, kib, mib, sends, trickles

_SECONDS = 1.0
_COLUMNS = (
    "# pxname,svname,qcur,scur,stot,econ,eresp,wretr,wredis,hrsp_5xx,status,check_status,last_chk,"
    "hrsp_1xx,hrsp_2xx,hrsp_3xx,hrsp_4xx,hrsp_other,cli_abrt,"
)
_HEAD = f"Name: HAProxy\nPid: 7\n\n{_COLUMNS}\n".encode()
_ROW = b"pool_llama,a,0,0,1,0,0,0,0,0,UP,L7OK,,0,1,0,0,0,0,\n"


async def _query(port: int) -> bool:
    return await HaproxySource(runtime.Runtime(f"ipv4@127.0.0.1:{port}", _SECONDS)).poll() is not None


async def _send(port: int) -> bool:
    replies = await runtime.Runtime(f"ipv4@127.0.0.1:{port}", _SECONDS).send(["set weight a/b 1"])
    return not replies.failure and replies.texts == ("",)


_ANSWERS = {
    "endless empty lines": sends(_HEAD, b"\n", after=b"\n"),
    "endless rows": sends(_HEAD, _ROW, after=b"\n"),
    "endless bytes": sends(_HEAD, b"\xff", after=b"\n"),
    "slow": trickles(_HEAD, after=b"\n"),
    "malformed row that does not end": sends(_HEAD + b'"', b"a,b\n", times=90_000, after=b"\n"),
    "malformed cells": sends(_HEAD, b",", times=9_000_000, after=b"\n"),
    "malformed number": sends(_HEAD + _ROW.replace(b",1,", b"," + b"9" * 5000 + b",", 1), after=b"\n"),
    "malformed text": sends(b"", b"\xff\0", times=4_000_000, after=b"\n"),
}
_REPLIES = {
    "endless empty lines": sends(b"\n> ", b"\n", after=b"\n"),
    "endless bytes": sends(b"\n> ", b"\xff", after=b"\n"),
    "slow": trickles(b"\n> x", after=b"\n"),
    "malformed prompt": sends(b"\0\0\0", after=b"\n"),
}


async def _envoy(port: int) -> bool:
    ledger: Any = SimpleNamespace(written=[], set_conditions=lambda *written: ledger.written.append(written))
    reader = envoy_conditions.EnvoyConditions(ledger, lambda _: ())
    async with http_client.session() as client:
        await reader._read(client, "edge", Address("127.0.0.1", port), is_connected=False)
    return bool(ledger.written)


_OK = b"HTTP/1.1 200 OK\r\n\r\n"
_PAGE = json.dumps({"cluster_statuses": [{"name": "p", "host_statuses": []}]}).encode()


def _logged(flood: bytes) -> Case:
    """Return the case in which a process sends datagrams as fast as it can.

    It returns whether one of them was counted.
    """

    async def case() -> bool:
        receiver = LogReceiver()
        receiver.open(Address("127.0.0.1", 0))
        pool = Pool("llama", (Replica("a", Address("10.0.0.1", 8000)),))
        receiver.use_proxies(["edge"], log_line.ReplicaAddresses([pool], {}))
        assert receiver.address is not None
        thread = threading.Thread(target=_flood, args=(receiver.address.port, flood), daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.1)
            return bool(receiver.collect())
        finally:
            receiver.close()
            await asyncio.to_thread(thread.join)

    return case


def _flood(port: int, datagram: bytes) -> None:
    ends = time.monotonic() + 0.3
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending:
        while time.monotonic() < ends:
            try:
                sending.sendto(datagram, ("127.0.0.1", port))
            except OSError:
                return


_LINE = b"<190>Nov 29 00:00:00 lbctl: edge|llama|200|10.0.0.1:8000|200|0.010|0.020"
READERS = (
    Reader(
        "HAProxy's Runtime API, response",
        f"{mib(runtime.MAX_ANSWER_BYTES)}, {runtime.MAX_LINES} lines of {running.MAX_LINE_CHARACTERS} characters, "
        f"2 to 5 s in total",
        against(sends(_HEAD + _ROW, after=b"\n"), _query),
        inputs(_query, _ANSWERS),
        _SECONDS,
    ),
    Reader(
        "HAProxy's Runtime API, reply to a command",
        f"{kib(runtime.MAX_REPLY_BYTES)}, 5 s for all commands",
        against(sends(b"\n> \n> ", after=b"\n"), _send),
        inputs(_send, _REPLIES),
        _SECONDS,
    ),
    Reader(
        "Envoy's admin interface",
        f"{mib(envoy_conditions.MAX_BYTES)}, {envoy_conditions.MAX_VALUES} values, {foreign_json.MAX_DEPTH} levels, "
        f"{envoy_conditions.TIMEOUT:g} s in total",
        against(sends(_OK + _PAGE), _envoy),
        inputs(_envoy, json_peers(b'{"cluster_statuses":')),
        _SECONDS,
        patched=lambda: patch.object(envoy_conditions, "TIMEOUT", _SECONDS),
    ),
    Reader(
        "nginx and HAProxy traffic logs",
        f"{log_line.MAX_LINE_BYTES} B per line, 500 lines in 5 ms",
        _logged(_LINE),
        {
            "endless lines": _logged(b"<190>" + b"x" * 4000),
            "endless long lines": _logged(_LINE + b" " * 30_000),
            "malformed": _logged(b"\xff" * 100),
        },
    ),
)
