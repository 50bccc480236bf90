"""The toy proxy's program: `proxy.py CONFIG` serves, `proxy.py --check CONFIG` checks, `proxy.py -v` prints its
version.

It accepts one request per connection, uses smooth weighted balancing, and reloads CONFIG when it has changed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

_CHUNK = 1 << 16


class Balancer:
    """Smooth weighted round robin over the replicas in the current file."""

    def __init__(self, config: Path) -> None:
        self._config = config
        self._read = 0
        self._replicas: list[dict[str, Any]] = []
        self._credit: dict[str, float] = {}

    def next(self) -> tuple[str, int]:
        changed = self._config.stat().st_mtime_ns
        if changed != self._read:
            self._read = changed
            self._replicas = json.loads(self._config.read_text())["listeners"][0]["replicas"]
            self._credit = {item["address"]: 0.0 for item in self._replicas}
        for item in self._replicas:
            self._credit[item["address"]] += item["weight"]
        address = max(self._credit, key=self._credit.__getitem__)
        self._credit[address] -= sum(item["weight"] for item in self._replicas)
        host, _, port = address.rpartition(":")
        return host, int(port)


async def _serve(config: Path) -> None:
    balancer = Balancer(config)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        upstream_reader, upstream = await asyncio.open_connection(*balancer.next())
        upstream.write(head[:-2] + b"connection: close\r\n\r\n")
        body = asyncio.create_task(pump(reader, upstream))
        try:
            await pump(upstream_reader, writer)
        finally:
            body.cancel()
            writer.close()
            upstream.close()

    host, _, port = json.loads(config.read_text())["listeners"][0]["bind"].rpartition(":")
    async with await asyncio.start_server(handle, host, int(port)) as server:
        await server.serve_forever()


def main(arguments: list[str]) -> int:
    if arguments in (["-v"], ["--version"]):
        print("toyproxy 1.0.0")
        return 0
    if arguments[0] == "--check":
        listeners = json.loads(Path(arguments[1]).read_text())["listeners"]
        return 0 if all("replicas" in item for item in listeners) else 1
    asyncio.run(_serve(Path(arguments[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
