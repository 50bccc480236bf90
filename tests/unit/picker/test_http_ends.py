"""The datagrams in which HAProxy and nginx report the end of a picked request: valid, forged and malformed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from lbctl.ir.address import Address
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker.datagrams import DatagramReceiver, bound
from lbctl.picker.http_api import HttpApi, RequestEnds
from lbctl.picker.http_protocol import HttpRequest
from lbctl.picker.service import PickService
from tests.unit.picker.test_service import POLICY

HAPROXY = (
    '<134>1 2026-11-23T19:00:00.000000+00:00 host haproxy 12 - [lbctl@0 proxy="edge" backend="p:chat" status="200" '
    'end="--"{timers} retries="0" pick="{id}"] {{"ts": "x"}}'
)
NGINX = '<190>Nov 23 19:00:00 lbctl: {{"pick":"{id}","status":200,"bytes":12}}'


@pytest.fixture
def service() -> PickService:
    with_one_replica = PickService()
    with_one_replica.set_table("chat", PoolTable("chat", POLICY, (Candidate("a", "10.0.0.1:80"),)))
    return with_one_replica


def pick_id(service: PickService) -> str:
    answer = HttpApi(service, bytes).handle(HttpRequest("POST", "/pick/chat", {}, b"{}"))
    return answer.headers["x-lbctl-pick-id"]


def test_report_of_a_proxy_ends_exactly_one_pick(service: PickService) -> None:
    ends = RequestEnds(service)
    lines: list[Callable[[str], str]] = [
        lambda name: HAPROXY.format(id=name, timers=""),
        lambda name: HAPROXY.format(id=name, timers=' timers="0 1 2 3 4"'),
        lambda name: NGINX.format(id=name),
    ]
    for line in lines:
        first, _ = pick_id(service), pick_id(service)
        before = service.open_picks
        ends.received(line(first).encode())
        ends.received(line(first).encode())
        assert service.open_picks == before - 1
    assert ends.malformed == 0


NAMED = "0b5c9a1e-6f0d-4a52-9c83-1d2e3f4a5b6c"


def _pick_named(service: PickService, name: str) -> str:
    question = HttpRequest("GET", "/pick/chat", {"x-lbctl-pick-id": [name]}, b"")
    return HttpApi(service, bytes).handle(question).headers["x-lbctl-pick-id"]


def test_end_of_a_named_pick_may_precede_its_question(service: PickService) -> None:
    ends = RequestEnds(service)
    assert _pick_named(service, NAMED) == NAMED
    ends.received(HAPROXY.format(id=NAMED, timers="").encode())
    assert service.open_picks == 0
    other = NAMED.replace("0", "f")
    ends.received(HAPROXY.format(id=other, timers="").encode())
    assert _pick_named(service, other) == other
    assert service.open_picks == 0


def test_late_pick_ends_without_suspecting_its_replica(service: PickService) -> None:
    ends = RequestEnds(service)
    _pick_named(service, NAMED)
    ends.received(HAPROXY.format(id=f"late-{NAMED}", timers="").replace('end="--"', 'end="SC"').encode())
    assert (service.open_picks, len(service.suspects), ends.malformed) == (0, 0, 0)


@pytest.mark.parametrize("name", ["x", NAMED.upper(), NAMED + "0", 'a"b', ""])
def test_invalid_pick_id_is_replaced(service: PickService, name: str) -> None:
    assert _pick_named(service, name) not in (name, "")


def test_ends_without_a_question_are_bounded(service: PickService) -> None:
    ends = RequestEnds(service)
    for number in range(11_000):
        ends.received(HAPROXY.format(id=f"{number:036x}", timers="").encode())
    _pick_named(service, f"{0:036x}")
    assert service.open_picks == 1, "forgotten"
    _pick_named(service, f"{10_999:036x}")
    assert service.open_picks == 1, "remembered"


def test_pick_of_an_abandoned_pool_ends_and_is_suspected(service: PickService) -> None:
    left, kept = pick_id(service), pick_id(service)
    line = NGINX.format(id=kept).replace('"status"', f'"left":"{left}","status"')
    ends = RequestEnds(service)
    ends.received(line.encode())
    assert (service.open_picks, ends.malformed) == (0, 0)
    assert HttpApi(service, bytes).handle(HttpRequest("POST", "/pick/chat", {}, b"{}")).status == 204


@pytest.mark.parametrize("line", [HAPROXY, NGINX])
def test_report_without_a_pick_is_valid(service: PickService, line: str) -> None:
    ends = RequestEnds(service)
    pick_id(service)
    ends.received(line.format(id="", timers="").encode())
    assert (service.open_picks, ends.malformed) == (1, 0)


def test_dash_of_haproxy_ends_no_pick(service: PickService) -> None:
    ends = RequestEnds(service)
    pick_id(service)
    ends.received(HAPROXY.format(id="-", timers="").encode())
    assert (service.open_picks, ends.malformed) == (1, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<134>1 2026 host haproxy 12 -",
        b"\xff\xfe{\xff}",
        b'<190>lbctl: {"pick":"\xff\xfe"}',
        b'<190>lbctl: {"pick":7}',
        b'<190>lbctl: ["pick"]',
        b'<190>lbctl: {"pick":"' + b"i" * 10_000 + b'"}',
        b"<190>lbctl: " + b'{"a":' * 1200,
        b"<190>lbctl: " + b'{"pick":"x"} trailing',
        HAPROXY.format(id="ID\\", timers="").encode(),
    ],
    ids=lambda data: repr(data[:30]),
)
def test_malformed_report_is_counted_and_ends_no_pick(service: PickService, data: bytes) -> None:
    ends = RequestEnds(service)
    pick_id(service)
    ends.received(data)
    assert (service.open_picks, ends.malformed) == (1, 1)


def test_client_text_in_a_log_line_ends_no_other_pick(service: PickService) -> None:
    ends, victim = RequestEnds(service), pick_id(service)
    forged = f'[lbctl@0 proxy="x" pick="{victim}"] {{"pick":"{victim}"}}'
    escaped = forged.replace("\\", "\\\\").replace('"', '\\"')
    behind = HAPROXY.format(id="", timers="").replace('{"ts": "x"}', f'{{"path": "{escaped}"}}')
    ends.received(behind.encode())
    ends.received(NGINX.format(id="").replace("12}", f'12,"path":"{escaped}"}}').encode())
    assert service.open_picks == 1


@pytest.mark.parametrize("name", ["unknown", "-", "0" * 40])
def test_unknown_id_ends_no_pick(service: PickService, name: str) -> None:
    ends = RequestEnds(service)
    pick_id(service)
    ends.received(NGINX.format(id=name).encode())
    assert service.open_picks == 1


def test_waiting_datagrams_are_read_in_one_turn(service: PickService) -> None:
    """The event loop answers many connections in one turn."""

    async def run() -> None:
        receiver = DatagramReceiver(bound(Address("127.0.0.1", 0)), RequestEnds(service).received)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(100):
                sender.sendto(NGINX.format(id=pick_id(service)).encode(), ("127.0.0.1", receiver.port))
        assert service.open_picks == 100
        while service.open_picks == 100:
            await asyncio.sleep(0)
        receiver.close()

    asyncio.run(run())
    assert service.open_picks == 0
