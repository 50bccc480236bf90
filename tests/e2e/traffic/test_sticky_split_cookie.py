"""A client keeps the variant that it was given: a cookie names it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.certs import Authority, client_context
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.http1 import Request, Response
from tests.support.processes.replicas import Replica, replicas

_NAME = "lb_variant"


def _fleet(
    pair: list[Replica],
    share: int = 50,
    listener: dict[str, Any] | None = None,
    headers: dict[str, Any] | None = None,
) -> Fleet:
    old, new = pair
    route: dict[str, Any] = {
        "match": {"path_prefix": "/"},
        "split": {"old-v1": 100 - share, "new.v2": share},
        "sticky_split": {"cookie": _NAME, "ttl": "2h"},
        "headers": headers or {},
    }
    pools = {"old-v1": pool_of([old]), "new.v2": pool_of([new])}
    return {**fleet_of([old], listener=listener), "routes": {"everything": route}, "pools": pools}


def _given(answer: Response) -> str | None:
    """The cookie's `name=value`, where the proxy set it."""
    ours = [value for value in answer.header_list("set-cookie") if value.startswith(f"{_NAME}=")]
    assert len(ours) < 2
    return ours[0].split(";")[0] if ours else None


def _attributes(answer: Response) -> set[str]:
    (ours,) = [value for value in answer.header_list("set-cookie") if value.startswith(f"{_NAME}=")]
    return {word.strip().lower() for word in ours.split(";")[1:]}


def test_the_draw_is_told_once_and_then_holds(kind: Kind) -> None:
    with replicas("old", "new") as pair, running(kind, _fleet(pair, share=30)) as gateway:
        first = gateway.load(1000, 4)
        drawn = {answer.replica: _given(answer) for answer in first.responses}
        for name, cookie in drawn.items():
            assert cookie
            again = gateway.load(60, 2, Request(headers={"cookie": f"a=1; {cookie}; b=2"}))
            assert again.by_replica == {name: 60}
            assert not any(answer.header_list("set-cookie") for answer in again.responses)
    first.assert_no_failure()
    assert first.shares() == pytest.approx({"new": 0.3, "old": 0.7}, abs=0.08)
    assert all(_given(answer) == drawn[answer.replica] for answer in first.responses)
    assert len(set(drawn.values())) == 2


def test_a_pinned_request_gets_no_cookie(kind: Kind) -> None:
    """It says nothing of the variant that its client is to keep."""
    with replicas("old", "new") as pair:
        fleet = _fleet(pair)
        fleet["routes"]["everything"]["pin"] = [{"header": "x-pin", "equals": "yes", "pool": "new.v2"}]
        with running(kind, fleet) as gateway:
            pinned = gateway.load(40, 2, Request(headers={"x-pin": "yes"}))
            drawn = gateway.load(40, 2)
    assert pinned.by_replica == {"new": 40}
    assert not any(map(_given, pinned.responses))
    assert all(map(_given, drawn.responses))


def test_the_cookie_is_for_the_whole_site_and_out_of_reach_of_scripts(kind: Kind) -> None:
    with replicas("old", "new") as pair, running(kind, _fleet(pair)) as gateway:
        attributes = _attributes(gateway.get("/deep/path"))
    assert {"path=/", "max-age=7200", "httponly", "samesite=lax"} <= attributes
    assert "secure" not in attributes  # over HTTP the client would not keep it


def test_on_a_tls_listener_the_cookie_is_secure(kind: Kind, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    identity = authority.issue("a.example.com")
    files = {"tls/a.crt": identity.certificate.read_bytes(), "tls/a.key": identity.key.read_bytes()}
    listener = {"tls": {"certificates": [{"certificate": "tls/a.crt", "key": "tls/a.key"}]}}
    trust = client_context(authority.ca)
    with replicas("old", "new") as pair:
        fleet = _fleet(pair, listener=listener)
        with running(kind, fleet, files=files, tls=trust, server_name="a.example.com") as gateway:
            attributes = _attributes(gateway.get())
    assert {"secure", "path=/", "httponly", "samesite=lax"} <= attributes


@pytest.mark.parametrize("value", ["zzz", "", "new", "newxv2", "old-v1x", "new.v2|else|x", "%6eew.v2"])
def test_a_value_that_nobody_was_given_is_drawn_anew(kind: Kind, value: str) -> None:
    with replicas("old", "new") as pair, running(kind, _fleet(pair)) as gateway:
        load = gateway.load(60, 2, Request(headers={"cookie": f"{_NAME}={value}"}))
    load.assert_no_failure()
    assert len(load.by_replica) == 2
    assert None not in Counter(map(_given, load.responses))


def test_a_variant_that_gets_nothing_any_more_lets_its_clients_go(kind: Kind) -> None:
    with replicas("old", "new") as pair, running(kind, _fleet(pair, share=0)) as gateway:
        load = gateway.load(20, 1, Request(headers={"cookie": f"{_NAME}=new.v2"}))
    assert load.by_replica == {"old": 20}


def test_cookies_of_the_application_pass_both_ways(kind: Kind) -> None:
    own = (("set-cookie", "session=s; Path=/"), ("set-cookie", "theme=dark"))
    with replicas("old", "new") as pair, running(kind, _fleet(pair)) as gateway:
        for replica in pair:
            replica.behave(headers=own)
        answer = gateway.get(headers={"cookie": f"session=s; {_NAME}=zzz; theme=dark"})
    assert {value for _, value in own} <= set(answer.header_list("set-cookie"))
    assert len(answer.header_list("set-cookie")) == 3
    sent = "; ".join(value for name, value in answer.json["headers"] if name.lower() == "cookie")
    assert {"session=s", "theme=dark"} <= {word.strip() for word in sent.split(";")}


def test_header_rules_about_the_clients_cookies_let_no_client_go(kind: Kind) -> None:
    rules = {"request": {"remove": ["cookie"]}}
    with replicas("old", "new") as pair, running(kind, _fleet(pair, headers=rules)) as gateway:
        first = gateway.get()
        stays = gateway.load(40, 1, Request(headers={"cookie": f"a=1; {_given(first)}"}))
    assert stays.by_replica == {first.replica: 40}
    assert not any(seen.header("cookie") for replica in pair for seen in replica.seen)


@pytest.mark.parametrize(
    ("rules", "cookies"),
    [
        ({"remove": ["set-cookie"]}, []),
        ({"set": {"set-cookie": "site=1"}}, ["site=1"]),
        ({"set": {"set-cookie": "pool={pool}"}}, ["pool=%s"]),
        ({"set": {"set-cookie": "{tenant}"}}, []),
    ],
)
def test_header_rules_about_the_replicas_cookies_leave_that_of_the_variant(
    kind: Kind, rules: dict[str, Any], cookies: list[str]
) -> None:
    fleet_headers = {"response": rules}
    with replicas("old", "new") as pair, running(kind, _fleet(pair, headers=fleet_headers)) as gateway:
        for replica in pair:
            replica.behave(headers=(("set-cookie", "session=s"), ("set-cookie", "theme=dark")))
        first = gateway.get()
        again = gateway.load(40, 1, Request(headers={"cookie": _given(first) or ""}))
    pool = {"old": "old-v1", "new": "new.v2"}[first.replica or ""]
    expected = [cookie.replace("%s", pool) for cookie in cookies]
    ours = [value for value in first.header_list("set-cookie") if value.startswith(f"{_NAME}={pool};")]
    assert sorted(first.header_list("set-cookie")) == sorted([*ours, *expected])
    assert len(ours) == 1
    assert again.by_replica == {first.replica: 40}
    assert [answer.header_list("set-cookie") for answer in again.responses] == [expected] * 40


@pytest.mark.parametrize("kind", ["envoy"])
def test_the_cookie_of_such_a_variant_is_taken_back(kind: Kind) -> None:
    """Else a next rollout would begin with all of its old clients."""
    with replicas("old", "new") as pair, running(kind, _fleet(pair, share=0)) as gateway:
        told = gateway.get(headers={"cookie": f"{_NAME}=new.v2"})
        assert (told.replica, _given(told)) == ("old", f"{_NAME}=old-v1")
        assert _given(gateway.get(headers={"cookie": f"{_NAME}=old-v1"})) is None
        assert _given(gateway.get()) is None
