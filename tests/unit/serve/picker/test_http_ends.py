"""The datagrams by which HAProxy and nginx report that a picked request has ended, whole, forged and broken."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import pytest

from lbctl.ir.address import Address
from lbctl.pick.table import Candidate, PoolTable
from lbctl.serve.picker.datagrams import DatagramReceiver
from lbctl.serve.picker.http_api import HttpApi, RequestEnds
from lbctl.serve.picker.http_protocol import HttpRequest
from lbctl.serve.picker.service import PickService
from tests.unit.serve.picker.test_service import POLICY

HAPROXY = (
    '<134>1 2026-11-23T19:00:00.000000+00:00 host haproxy 12 - [lbctl@0 proxy="edge" backend="p:chat" status="200" '
    'end="--"{timers} retries="0" pick="{id}"] {{"ts": "x"}}'
)
NGINX = '<190>Nov 23 19:00:00 lbctl: {{"pick":"{id}","status":200,"bytes":12}}'


@pytest.fixture
def service() -> PickService:
    made = PickService()
    made.set_table("chat", PoolTable("chat", POLICY, (Candidate("a", "10.0.0.1:80"),)))
    return made


def picked(service: PickService) -> str:
    answer = HttpApi(service, bytes).handle(HttpRequest("POST", "/pick/chat", {}, b"{}"))
    return answer.headers["x-lbctl-pick-id"]


def test_both_proxies_reports_end_the_request_and_only_that_one(service: PickService) -> None:
    ends = RequestEnds(service)
    lines: list[Callable[[str], str]] = [
        lambda name: HAPROXY.format(id=name, timers=""),
        lambda name: HAPROXY.format(id=name, timers=' timers="0 1 2 3 4"'),
        lambda name: NGINX.format(id=name),
    ]
    for line in lines:
        first, _ = picked(service), picked(service)
        before = service.open_picks
        ends.received(line(first).encode())
        ends.received(line(first).encode())
        assert service.open_picks == before - 1
    assert ends.malformed == 0


NAMED = "0b5c9a1e-6f0d-4a52-9c83-1d2e3f4a5b6c"


def _picked_as(service: PickService, name: str) -> str:
    question = HttpRequest("GET", "/pick/chat", {"x-lbctl-pick-id": [name]}, b"")
    return HttpApi(service, bytes).handle(question).headers["x-lbctl-pick-id"]


def test_haproxy_names_the_pick_and_its_end_may_come_before_the_question(service: PickService) -> None:
    ends = RequestEnds(service)
    assert _picked_as(service, NAMED) == NAMED
    ends.received(HAPROXY.format(id=NAMED, timers="").encode())
    assert service.open_picks == 0
    other = NAMED.replace("0", "f")
    ends.received(HAPROXY.format(id=other, timers="").encode())
    assert _picked_as(service, other) == other
    assert service.open_picks == 0


def test_a_pick_that_nobody_waited_for_ends_and_casts_no_doubt_on_its_replica(service: PickService) -> None:
    ends = RequestEnds(service)
    _picked_as(service, NAMED)
    ends.received(HAPROXY.format(id=f"late-{NAMED}", timers="").replace('end="--"', 'end="SC"').encode())
    assert (service.open_picks, len(service.suspects), ends.malformed) == (0, 0, 0)


@pytest.mark.parametrize("name", ["x", NAMED.upper(), NAMED + "0", 'a"b', ""])
def test_what_is_no_name_is_replaced(service: PickService, name: str) -> None:
    assert _picked_as(service, name) not in (name, "")


def test_ends_without_a_question_are_remembered_for_a_while_and_not_without_bound(service: PickService) -> None:
    ends = RequestEnds(service)
    for number in range(11_000):
        ends.received(HAPROXY.format(id=f"{number:036x}", timers="").encode())
    _picked_as(service, f"{0:036x}")
    assert service.open_picks == 1, "forgotten"
    _picked_as(service, f"{10_999:036x}")
    assert service.open_picks == 1, "remembered"


def test_the_pick_of_a_pool_that_a_request_has_left_ends_too_and_its_replica_is_suspected(service: PickService) -> None:
    left, kept = picked(service), picked(service)
    line = NGINX.format(id=kept).replace('"status"', f'"left":"{left}","status"')
    ends = RequestEnds(service)
    ends.received(line.encode())
    assert (service.open_picks, ends.malformed) == (0, 0)
    assert HttpApi(service, bytes).handle(HttpRequest("POST", "/pick/chat", {}, b"{}")).status == 204


@pytest.mark.parametrize("line", [HAPROXY, NGINX])
def test_a_request_without_a_pick_is_no_fault(service: PickService, line: str) -> None:
    ends = RequestEnds(service)
    picked(service)
    ends.received(line.format(id="", timers="").encode())
    assert (service.open_picks, ends.malformed) == (1, 0)


def test_haproxy_s_dash_for_an_unset_variable_ends_nothing(service: PickService) -> None:
    ends = RequestEnds(service)
    picked(service)
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
def test_what_cannot_be_read_is_counted_and_ends_nothing(service: PickService, data: bytes) -> None:
    ends = RequestEnds(service)
    picked(service)
    ends.received(data)
    assert (service.open_picks, ends.malformed) == (1, 1)


def test_what_a_client_puts_into_the_log_line_ends_no_other_request(service: PickService) -> None:
    ends, victim = RequestEnds(service), picked(service)
    forged = f'[lbctl@0 proxy="x" pick="{victim}"] {{"pick":"{victim}"}}'
    escaped = forged.replace("\\", "\\\\").replace('"', '\\"')
    behind = HAPROXY.format(id="", timers="").replace('{"ts": "x"}', f'{{"path": "{escaped}"}}')
    ends.received(behind.encode())
    ends.received(NGINX.format(id="").replace("12}", f'12,"path":"{escaped}"}}').encode())
    assert service.open_picks == 1


@pytest.mark.parametrize("name", ["unknown", "-", "0" * 40])
def test_an_id_that_nobody_has_ends_nothing(service: PickService, name: str) -> None:
    ends = RequestEnds(service)
    picked(service)
    ends.received(NGINX.format(id=name).encode())
    assert service.open_picks == 1


def test_all_datagrams_that_have_come_are_read_in_one_turn(service: PickService) -> None:
    """Of the event loop, which answers many connections in a turn."""

    async def run() -> None:
        receiver = DatagramReceiver(Address("127.0.0.1", 0), RequestEnds(service).received)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(100):
                sender.sendto(NGINX.format(id=picked(service)).encode(), ("127.0.0.1", receiver.port))
        assert service.open_picks == 100
        for _ in range(2):
            await asyncio.sleep(0)
        receiver.close()

    asyncio.run(run())
    assert service.open_picks == 0
