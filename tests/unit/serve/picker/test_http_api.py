"""What HAProxy and nginx tell the picker of a picked request changes whom it picks next."""

from __future__ import annotations

from random import Random

import pytest

from lbctl.ir.pools import Locality, PickPolicy, SessionKey
from lbctl.ir.proxies import Proxy
from lbctl.pick.table import Candidate, PoolTable
from lbctl.serve.picker.http_api import HttpApi, RequestEnds
from lbctl.serve.picker.http_protocol import HttpRequest
from lbctl.serve.picker.question import Caller, Question
from lbctl.serve.picker.service import PickService
from lbctl.targets import picker

HAPROXY = (
    "<134>1 2026-11-23T18:40:00+00:00 - haproxy 77 - "
    '[lbctl@0 proxy="ha" backend="pool_p" status="200" {rest} pick="{pick}"] x'
)
NGINX = '<190>Nov 23 18:40:00 lbctl: {{"pick":"{pick}","status":200,"unreached":{rest}}}'
QUESTION = Question(Caller("p"), {"x-session-id": ["s"]}, b"", 0)


def _service() -> PickService:
    service = PickService(lambda: 1000.0, Random(1))
    replicas = tuple(Candidate(name, f"10.0.0.{number}:80") for number, name in enumerate("ab", 1))
    service.set_table("p", PoolTable("p", PickPolicy((SessionKey(header="x-session-id"),)), replicas))
    return service


@pytest.mark.parametrize(
    ("line", "rest", "suspected"),
    [
        (NGINX, "true", True),
        (NGINX, "false", False),
        (HAPROXY, 'end="--" retries="+1"', True),
        (HAPROXY, 'end="--" timers="0 0 1 2 3" retries="+1"', True),
        (HAPROXY, 'end="SC" retries="3"', True),
        (HAPROXY, 'end="sC" timers="0 0 1 2 3" retries="0"', True),
        (HAPROXY, 'end="CD" timers="0 0 1 2 3" retries="0"', False),
        (HAPROXY, 'end="--" retries="0"', False),
    ],
)
def test_a_replica_that_was_not_reached_is_not_picked_for_a_moment(line: str, rest: str, *, suspected: bool) -> None:
    service = _service()
    ends = RequestEnds(service)
    first = service.pick(QUESTION)
    ends.datagram_received(line.format(rest=rest, pick=first.id).encode(), None)
    assert (service.open_picks, ends.malformed) == (0, 0)
    later = [service.pick(QUESTION).names[0] for _ in range(10)]
    assert (first.names[0] not in later) is suspected


def test_a_request_without_a_pick_is_nobodys_end() -> None:
    service = _service()
    ends = RequestEnds(service)
    service.pick(QUESTION)
    ends.datagram_received(HAPROXY.format(rest='end="SC" retries="0"', pick="-").encode(), None)
    assert (service.open_picks, ends.malformed) == (1, 0)


@pytest.mark.parametrize(("region", "zone", "replica"), [("us", None, "b"), ("eu", "a%", "a"), (None, None, "a")])
def test_the_nearest_replica_to_the_proxy_that_asks_is_picked(
    region: str | None, zone: str | None, replica: str
) -> None:
    places = (Candidate("a", "10.0.0.1:80", region="eu", zone="a%"), Candidate("b", "10.0.0.2:80", region="us"))
    spare = Candidate("c", "10.0.0.3:80", region="us", priority=1)
    proxy = Proxy("h", "haproxy", (), region=region, zone=zone)
    service, target = PickService(), picker.target("p", ("eu", "us"), proxy)
    table = PoolTable("p", PickPolicy(()), (*places, spare), locality=Locality("zone", 70.0))
    service.set_table("p", table if region else PoolTable("p", PickPolicy(()), places[:1]))
    answer = HttpApi(service, bytes).handle(HttpRequest("GET", target, {}, b""))
    assert answer.headers["x-lbctl-pick"] == replica
