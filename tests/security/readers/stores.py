"""The stores that control planes share: etcd, Redis."""

from __future__ import annotations

import base64
import json
import socket
from unittest.mock import patch

from redis.exceptions import RedisError

from lbctl.base import foreign_json
from lbctl.ir.proxies import Store
from lbctl.store import etcd_client, redis_client
from lbctl.store.interface import StoreError
from tests.support.bounds import Reader, Script, against, endlessly, inputs, json_peers, mib, sends, trickles

_SECONDS = 0.5
_OK = b"HTTP/1.1 200 OK\r\n\r\n"
_ROW = {"key": base64.b64encode(b"a").decode(), "value": "", "mod_revision": "7"}


async def _range(port: int) -> bool:
    client = etcd_client.EtcdClient(Store(f"etcd://127.0.0.1:{port}"), _SECONDS)
    try:
        return bool(await client.call("kv/range", {}, etcd_client.rows))
    except StoreError:
        return False
    finally:
        await client.close()


async def _watch(port: int) -> bool:
    client = etcd_client.EtcdClient(Store(f"etcd://127.0.0.1:{port}"), _SECONDS)
    try:
        return bool([row async for events in client.watch("a", "b", 1, _SECONDS) for row in events])
    except StoreError:
        return False
    finally:
        await client.close()


def _line(**event: object) -> bytes:
    return json.dumps({"result": {"events": [event]}}).encode() + b"\n"


_MESSAGES = {
    "malformed row": sends(_OK + _line(kv=[1])),
    "malformed key": sends(_OK + _line(kv={**_ROW, "key": "?"})),
    "malformed number": sends(_OK + _line(kv={**_ROW, "mod_revision": "9" * 5000})),
    "malformed event": sends(_OK + b'{"result":{"events":[7]}}\n'),
}


async def _get(port: int) -> bool:
    redis = redis_client.connected(Store(f"redis://127.0.0.1:{port}"), 5 * _SECONDS)
    try:
        return bool(await redis.get("key") == "fine")
    except (RedisError, OSError, ValueError, RecursionError):
        return False
    finally:
        await redis_client.disconnect(redis)


def _redis(answer: bytes, repeated: bytes = b"", handshake: bytes = b"+OK\r\n") -> Script:
    """Return a Redis server that answers a GET with `answer`."""

    def script(connection: socket.socket) -> None:
        while True:
            commands = connection.recv(1 << 16)
            if not commands:
                return
            for _ in range(commands.count(b"\r\nHELLO\r\n")):
                connection.sendall(b"%1\r\n$5\r\nproto\r\n:3\r\n" if handshake == b"+OK\r\n" else handshake)
            for _ in range(commands.count(b"\r\nCLIENT\r\n")):
                connection.sendall(handshake)
            if b"\r\nGET\r\n" in commands:
                connection.sendall(answer)
                endlessly(connection, repeated)

    return script


_VALUES = {
    "endless values": _redis(b"*2000000000\r\n", b"$1000000\r\n" + b"x" * 1_000_000 + b"\r\n"),
    "endless numbers": _redis(b"*2000000000\r\n", b":1\r\n"),
    "endless value": _redis(b"$2000000000\r\n", b"x"),
    "endless line": _redis(b"+", b"x"),
    "endless error": _redis(b"-", b"x"),
    "slow": _redis(b"$4\r\nfi"),
    "slow value": trickles(b"$100\r\n", after=b"\r\n"),
    "deep": _redis(b"", b"*1\r\n"),
    "malformed type": _redis(b"?1\r\n"),
    "malformed length": _redis(b"$-7\r\n"),
    "malformed number": _redis(b":" + b"9" * 5000 + b"\r\n"),
    "malformed bytes": _redis(b"$2\r\n\xff\xff\r\n"),
    "malformed handshake": _redis(b"", handshake=b"$2000000000\r\nx"),
}
READERS = (
    Reader(
        "etcd, response",
        f"{mib(etcd_client.MAX_ANSWER_BYTES)}, {foreign_json.MAX_VALUES} values, {foreign_json.MAX_DEPTH} levels, "
        "a quarter of `control.store.lease` in total",
        against(sends(_OK + json.dumps({"kvs": [_ROW]}).encode()), _range),
        inputs(_range, json_peers(b'{"kvs":')),
        _SECONDS,
    ),
    Reader(
        "etcd, watch message",
        f"{mib(etcd_client.MAX_MESSAGE_BYTES)}, {foreign_json.MAX_VALUES} values, {foreign_json.MAX_DEPTH} levels, "
        f"{etcd_client.WATCH_TIMEOUT:g} s in total",
        against(sends(_OK + _line(kv=_ROW)), _watch),
        inputs(_watch, json_peers(b'{"result":') | _MESSAGES),
        _SECONDS,
        patched=lambda: patch.object(etcd_client, "WATCH_TIMEOUT", 2 * _SECONDS),
    ),
    Reader(
        "Redis, response",
        f"{mib(redis_client.MAX_ANSWER_BYTES)}, {mib(redis_client.MAX_VALUE_BYTES)} per value, "
        "a fifth of `control.store.lease` in total",
        against(_redis(b"$4\r\nfine\r\n"), _get),
        inputs(_get, _VALUES),
        3 * _SECONDS,
        patched=lambda: patch.object(redis_client, "MAX_ANSWER_BYTES", 16 << 20),
    ),
)
