"""How many requests a replica has, by what HAProxy's sockets say; a socket of each HAProxy stands here as a file."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from lbctl.apply.haproxy import running
from lbctl.apply.haproxy.runtime import Runtime
from lbctl.serve.drivers.haproxy import HaproxyRequestCounter
from lbctl.serve.drivers.in_flight import in_flight, with_websockets
from tests.support.fleet import compiled

_HEAD = "# pxname,svname,qcur,qmax,scur,smax,slim,stot,\n"


@asynccontextmanager
async def _haproxy(path: Path, stat: str) -> AsyncIterator[HaproxyRequestCounter]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == f"{running.SESSIONS}\n".encode()
        writer.write(stat.encode())
        writer.close()

    async with await asyncio.start_unix_server(answer, path):
        yield HaproxyRequestCounter(Runtime(str(path), 1.0))


def test_a_replica_has_what_all_proxies_and_all_backends_have_there(tmp_path: Path) -> None:
    async def ask() -> None:
        one = f"{_HEAD}pool_llama,a,0,0,3,9,,70,\npool_llama,b,0,0,0,9,,70,\npool_llama.IN.0f0f0f0f,a,0,0,2,9,,7,\n"
        two = f"{_HEAD}pool_llama,a,5,5,4,9,,70,\npool_other,a,0,0,1,9,,70,\n"
        async with _haproxy(tmp_path / "one", one) as first, _haproxy(tmp_path / "two", two) as second:
            found = await in_flight([first, second])
        assert found == {("llama", "a"): 9, ("llama", "b"): 0, ("other", "a"): 1}

    asyncio.run(ask())


def test_what_a_proxy_does_not_tell_is_unknown(tmp_path: Path) -> None:
    async def ask() -> None:
        async with _haproxy(tmp_path / "odd", "Unknown command.\n") as odd:
            found = await in_flight([odd, HaproxyRequestCounter(Runtime(str(tmp_path / "nobody"), 1.0))])
        assert found.get(("llama", "a")) is None

    asyncio.run(ask())


def test_a_silent_websocket_is_no_sign_of_a_request() -> None:
    found = compiled("""\
version: 1
listeners: {main: {bind: "127.0.0.1:80"}}
routes:
  live: {match: {path_prefix: /live}, pool: talk, fallback: spare, websocket: true}
  all: {match: {path_prefix: /}, pool: plain}
pools:
  talk: {replicas: [{address: "10.0.0.1:80"}]}
  spare: {replicas: [{address: "10.0.0.2:80"}]}
  plain: {replicas: [{address: "10.0.0.3:80"}]}
""")
    assert with_websockets(found.topology) == {"talk", "spare"}
