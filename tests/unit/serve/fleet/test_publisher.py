"""A publication that is cancelled leaves nothing behind that runs on."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.serve.fleet.publisher import Publisher
from lbctl.serve.metrics.instruments import Metrics
from lbctl.targets.load import load

FLEET = """version: 1
listeners: {gateway: {bind: "127.0.0.1:8080"}}
routes: {chat: {match: {path_prefix: /}, pool: chat}}
pools: {chat: {replicas: [{address: "10.9.9.9:8000"}]}}
proxies: {edge: {kind: envoy}}
"""


def test_a_cancelled_publication_ends_only_after_its_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(FLEET)
    fleet = load([str(path)], Diagnostics())
    assert fleet is not None
    begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()
    build = Publisher._build

    def slow(self: Publisher, *arguments: Any) -> Any:
        begun.set()
        assert goes_on.wait(20)
        try:
            return build(self, *arguments)
        finally:
            ended.set()

    monkeypatch.setattr(Publisher, "_build", slow)

    async def work() -> None:
        publisher = Publisher(Metrics(), {})
        serving = asyncio.create_task(publisher.serve(fleet, "files"))
        assert await asyncio.to_thread(begun.wait, 20)
        serving.cancel()
        asyncio.get_running_loop().call_later(0.1, goes_on.set)
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert ended.is_set()
        assert publisher.served is None
        await publisher.discovery.stop()

    try:
        asyncio.run(asyncio.wait_for(work(), 120))
    finally:
        goes_on.set()
