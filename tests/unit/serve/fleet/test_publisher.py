"""A cancelled publication, and lookups in a published fleet."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from lbctl.serve.fleet.publisher import Publisher
from lbctl.targets.key_hashes import HashOnly
from tests.support.fleets import fleet_of, load_fleet
from tests.support.publishing import Publishing


def test_cancelled_publication_waits_for_its_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = load_fleet(tmp_path, fleet_of(proxies={"edge": {"kind": "envoy"}}))
    started, unblocked, ended = threading.Event(), threading.Event(), threading.Event()
    build = Publisher._build

    def slow(self: Publisher, *arguments: Any) -> Any:
        started.set()
        assert unblocked.wait(60)
        try:
            return build(self, *arguments)
        finally:
            ended.set()

    monkeypatch.setattr(Publisher, "_build", slow)

    async def work() -> None:
        publishing = Publishing()
        serving = asyncio.create_task(publishing.publish(fleet))
        assert await asyncio.to_thread(started.wait, 60)
        serving.cancel()
        asyncio.get_running_loop().call_later(0.1, unblocked.set)
        with pytest.raises(asyncio.CancelledError):
            await serving
        assert ended.is_set()
        assert publishing.live.served is None
        await publishing.end()

    try:
        asyncio.run(asyncio.wait_for(work(), 120))
    finally:
        unblocked.set()


@pytest.mark.parametrize(("key", "is_refused"), [(f"sha256:{'0' * 64}", True), ("k" * 40, False)])
def test_hashed_api_keys_are_reported_for_envoys(tmp_path: Path, key: str, is_refused: bool) -> None:
    (tmp_path / "keys").write_text(f"{key}: acme\n")
    fleet = load_fleet(tmp_path, fleet_of(route={"auth": {"api_keys": {"file": "keys"}}}))

    async def work() -> None:
        publishing = Publishing()
        served = await publishing.publish(fleet)
        assert served.refused_keys == {"envoy": (HashOnly("everything", 1, 1),) if is_refused else ()}
        assert [item.code for item in served.unsupported] == ["LB443"] * is_refused
        await publishing.end()

    asyncio.run(asyncio.wait_for(work(), 120))
