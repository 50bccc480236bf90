"""A token may do only what its role permits: `read` changes no traffic, and `picker` allows only the requests of a
picker."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import requests

from lbctl.ir.address import Address
from lbctl.picker.received_tables import TableFollower
from lbctl.picker.remote_link import ControlPlane, RemoteLink
from lbctl.picker.service import PickService
from lbctl.serve.api.authorization import ApiAccess
from lbctl.serve.api.server import ApiServer
from lbctl.serve.picker.feed import Feed
from lbctl.serve.picker.tables import FleetMeasurements
from tests.support.api import Fleet
from tests.support.api_server import serving

_TABLES = "/api/v1/picks/tables"
_JOIN = {"id": "p1", "address": "127.0.0.1:1"}
_TOKENS = {role: role[0] * 24 for role in ("read", "operate", "picker")}


class _Picking(Fleet):
    """A control plane with one feed of picker tables."""

    def __init__(self) -> None:
        super().__init__()
        self.feed = Feed(lambda: FleetMeasurements(0.0))

    @property
    def pick_feed(self) -> Feed:
        return self.feed


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text("".join(f"{role}-1:{role}:{token}\n" for role, token in _TOKENS.items()))
    return file


@pytest.fixture
def url(tokens: Path) -> Iterator[str]:
    with serving(_Picking(), tokens) as place:
        yield place


def _bearer(role: str) -> dict[str, str]:
    return {"authorization": f"Bearer {_TOKENS[role]}"} if role else {}


def _tables(url: str, role: str, query: dict[str, str]) -> tuple[int, list[str]]:
    """Return the status code and the kinds of the first lines."""
    with requests.get(url + _TABLES, params=query, headers=_bearer(role), stream=True, timeout=60) as answer:
        if answer.status_code != 200:
            return answer.status_code, [answer.json()["error"]]
        first = next(answer.iter_content(65536)).decode()
        lines = [line.removeprefix("data: ") for line in first.splitlines() if line.startswith("data: ")]
        return 200, [json.loads(line)["kind"] for line in lines]


def test_token_that_may_read_cannot_join_the_pickers(url: str) -> None:
    status, (reason,) = _tables(url, "read", _JOIN)
    assert status == 403
    assert "picker role" in reason


@pytest.mark.parametrize("role", ["picker", "operate"])
def test_token_of_a_picker_or_operator_joins(url: str, role: str) -> None:
    assert _tables(url, role, _JOIN) == (200, ["begin", "key", "peers"])


@pytest.mark.parametrize("role", ["", "read", "picker"])
def test_tables_alone_have_no_key_and_no_other_picker(url: str, role: str) -> None:
    with requests.get(url + _TABLES, params=_JOIN, headers=_bearer("picker"), stream=True, timeout=60):
        assert _tables(url, role, {}) == (200, ["begin"])


def test_token_of_a_picker_does_nothing_else(url: str) -> None:
    answer = requests.post(f"{url}/api/v1/reload", json={}, headers=_bearer("picker"), timeout=60)
    assert answer.status_code == 403
    assert "picker role" in answer.json()["error"]


def test_token_of_a_picker_reads_no_status(tokens: Path) -> None:
    """The API listens at an address other than loopback, where every request needs a token."""

    async def asked() -> dict[str, int]:
        server = ApiServer(_Picking(), ApiAccess(Address("0.0.0.0", 0), tokens))
        port = await server.start()
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=_bearer("picker")) as session:
                statuses = {}
                for path in ("/api/v1/status", "/metrics", _TABLES):
                    async with session.get(path) as answer:
                        statuses[path] = answer.status
                return statuses
        finally:
            await server.stop()

    assert asyncio.run(asked()) == {"/api/v1/status": 403, "/metrics": 403, _TABLES: 200}


def test_picker_that_may_only_read_follows_the_tables(url: str, caplog: pytest.LogCaptureFixture) -> None:
    found = asyncio.run(_first_lines(url, _TOKENS["read"], "begin"))
    assert found == {"begin"}
    (record,) = [item for item in caplog.records if "does not exchange counts" in item.getMessage()]
    assert record.levelno == logging.WARNING
    assert "picker role" in str(record.__dict__["fields"])


def test_picker_with_its_role_joins_the_others(url: str) -> None:
    assert asyncio.run(_first_lines(url, _TOKENS["picker"], "peers")) == {"begin", "key", "peers"}


async def _first_lines(url: str, token: str, last: str) -> set[str]:
    """Return the kinds of lines that a picker with this token gets, up to `last` and shortly after it."""
    kinds: set[str] = set()

    class Follower(TableFollower):
        def apply(self, text: bytes) -> None:
            kinds.add(json.loads(text)["kind"])

    def nothing(*_: Any) -> None:
        pass

    link = RemoteLink(ControlPlane(url, lambda: token), "p1", "127.0.0.1:1")
    following = asyncio.create_task(link.run(Follower(nothing), PickService()))
    async with asyncio.timeout(60):
        while last not in kinds:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    return kinds
