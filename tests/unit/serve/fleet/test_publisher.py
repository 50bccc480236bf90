"""A cancelled publication leaves no running build behind."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from lbctl.serve.fleet.publisher import Publisher
from lbctl.serve.metrics.instruments import Metrics
from tests.support.fleets import fleet_of, load_fleet


def test_cancelled_publication_waits_for_its_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = load_fleet(tmp_path, fleet_of(proxies={"edge": {"kind": "envoy"}}))
    started, unblocked, ended = threading.Event(), threading.Event(), threading.Event()
    build = Publisher._build

    def slow(self: Publisher, *arguments: Any) -> Any:
        started.set()
        assert unblocked.wait(20)
        try:
            return build(self, *arguments)
        finally:
            ended.set()

    monkeypatch.setattr(Publisher, "_build", slow)

    async def work() -> None:
        publisher = Publisher(Metrics(), {})
        serving = asyncio.create_task(publisher.serve(fleet, "files"))
        assert await asyncio.to_thread(started.wait, 20)
        serving.cancel()
        asyncio.get_running_loop().call_later(0.1, unblocked.set)
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert ended.is_set()
        assert publisher.served is None
        await publisher.discovery.stop()

    try:
        asyncio.run(asyncio.wait_for(work(), 120))
    finally:
        unblocked.set()
