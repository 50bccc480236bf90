"""Request headers above the listener's limits get a 431 with a JSON body; long headers within the limits pass."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import fleet_of
from tests.support.processes.shared import shared, shared_replicas

_LIMITS = {"headers": {"max_count": 200, "max_bytes": "64KiB"}}


def _answers(
    kind: Kind, listener: dict[str, Any], *requests: list[tuple[str, str]], target: str = "/here"
) -> list[int]:
    route = {"match": {"path": "/here"}, "respond": {"status": 200, "body": "hi"}}
    with (
        shared_replicas("a") as (a,),
        shared(kind, fleet_of([a], listener=listener, routes={"here": route})) as gateway,
    ):
        answers = [gateway.get(target, headers) for headers in requests]
    refused = [answer.json["error"]["type"] for answer in answers if answer.status != 200]
    assert set(refused) <= {"too_large"}
    return [answer.status for answer in answers]


def _lines(count: int) -> list[tuple[str, str]]:
    return [(f"x-{number}", "v") for number in range(count)]


def _cookie(size: int) -> list[tuple[str, str]]:
    return [("cookie", "c" * size)]


def test_long_headers_pass_by_default(kind: Kind) -> None:
    assert _answers(kind, {}, _cookie(60_000), _cookie(120_000), _lines(950)) == [200, 200, 200]


def test_longer_headers_are_a_431(kind: Kind) -> None:
    assert _answers(kind, _LIMITS, _cookie(60_000), _cookie(67_000)) == [200, 431]


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_more_header_lines_are_a_431(kind: Kind) -> None:
    assert _answers(kind, _LIMITS, _lines(190), _lines(205)) == [200, 431]


def test_long_url_passes_by_default(kind: Kind) -> None:
    assert _answers(kind, {}, [], target="/here?" + "q" * 60_000) == [200]
