"""A client keeps its variant: a cookie names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.certs import Authority, client_context
from tests.support.processes.fleet import fleet_of, pool_of, running, side_by_side
from tests.support.processes.http1 import Request, Response
from tests.support.processes.replicas import Replica, replicas

_NAME = "lb_variant"


def _split_fleet(
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
    """Return the cookie's `name=value`, or None if the proxy did not set it."""
    ours = [value for value in answer.header_list("set-cookie") if value.startswith(f"{_NAME}=")]
    assert len(ours) < 2
    return ours[0].split(";")[0] if ours else None


def _attributes(answer: Response) -> set[str]:
    (ours,) = [value for value in answer.header_list("set-cookie") if value.startswith(f"{_NAME}=")]
    return {word.strip().lower() for word in ours.split(";")[1:]}


def test_cookie_keeps_the_variant(kind: Kind) -> None:
    with replicas("old", "new") as pair, running(kind, _split_fleet(pair, share=30)) as gateway:
        first = gateway.load(1000, 4)  # 0.08 is more than five standard deviations
        drawn = {answer.replica: _given(answer) for answer in first.responses}
        for name, cookie in drawn.items():
            assert cookie
            again = gateway.load(30, 2, Request(headers={"cookie": f"a=1; {cookie}; b=2"}))
            assert again.by_replica == {name: 30}
            assert not any(answer.header_list("set-cookie") for answer in again.responses)
    first.assert_no_failure()
    assert first.shares() == pytest.approx({"new": 0.3, "old": 0.7}, abs=0.08)
    assert all(_given(answer) == drawn[answer.replica] for answer in first.responses)
    assert len(set(drawn.values())) == 2


def test_pinned_request_gets_no_cookie(kind: Kind) -> None:
    """The pin does not decide which variant the client keeps."""
    with replicas("old", "new") as pair:
        fleet = _split_fleet(pair)
        fleet["routes"]["everything"]["pin"] = [{"header": "x-pin", "equals": "yes", "pool": "new.v2"}]
        with running(kind, fleet) as gateway:
            pinned = gateway.load(40, 2, Request(headers={"x-pin": "yes"}))
            drawn = gateway.load(40, 2)
    assert pinned.by_replica == {"new": 40}
    assert not any(map(_given, pinned.responses))
    assert all(map(_given, drawn.responses))


def test_cookie_covers_the_site_and_is_hidden_from_scripts(kind: Kind) -> None:
    with replicas("old", "new") as pair, running(kind, _split_fleet(pair)) as gateway:
        attributes = _attributes(gateway.get("/deep/path"))
    assert {"path=/", "max-age=7200", "httponly", "samesite=lax"} <= attributes
    assert "secure" not in attributes  # over HTTP the client would not keep it


def test_cookie_is_secure_on_tls_listeners(kind: Kind, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    identity = authority.issue("a.example.com")
    files = {"tls/a.crt": identity.certificate.read_bytes(), "tls/a.key": identity.key.read_bytes()}
    listener = {"tls": {"certificates": [{"certificate": "tls/a.crt", "key": "tls/a.key"}]}}
    trust = client_context(authority.ca)
    with replicas("old", "new") as pair:
        fleet = _split_fleet(pair, listener=listener)
        with running(kind, fleet, files=files, tls=trust, server_name="a.example.com") as gateway:
            attributes = _attributes(gateway.get())
    assert {"secure", "path=/", "httponly", "samesite=lax"} <= attributes


def test_unknown_value_is_replaced(kind: Kind) -> None:
    with replicas("old", "new") as pair, running(kind, _split_fleet(pair)) as gateway:
        for value in ("zzz", "", "new", "newxv2", "old-v1x", "new.v2|else|x", "%6eew.v2"):
            load = gateway.load(30, 2, Request(headers={"cookie": f"{_NAME}={value}"}))
            load.assert_no_failure()
            assert len(load.by_replica) == 2, value
            assert None not in map(_given, load.responses), value


def test_variant_without_a_share_loses_its_clients(kind: Kind) -> None:
    with replicas("old", "new") as pair, running(kind, _split_fleet(pair, share=0)) as gateway:
        load = gateway.load(20, 1, Request(headers={"cookie": f"{_NAME}=new.v2"}))
    assert load.by_replica == {"old": 20}


def test_application_cookies_pass_both_ways(kind: Kind) -> None:
    own = (("set-cookie", "session=s; Path=/"), ("set-cookie", "theme=dark"))
    with replicas("old", "new") as pair, running(kind, _split_fleet(pair)) as gateway:
        for replica in pair:
            replica.behave(headers=own)
        answer = gateway.get(headers={"cookie": f"session=s; {_NAME}=zzz; theme=dark"})
    assert {value for _, value in own} <= set(answer.header_list("set-cookie"))
    assert len(answer.header_list("set-cookie")) == 3
    sent = "; ".join(value for name, value in answer.json["headers"] if name.lower() == "cookie")
    assert {"session=s", "theme=dark"} <= {word.strip() for word in sent.split(";")}


def test_request_header_rules_keep_the_variant(kind: Kind) -> None:
    rules = {"request": {"remove": ["cookie"]}}
    with replicas("old", "new") as pair, running(kind, _split_fleet(pair, headers=rules)) as gateway:
        first = gateway.get()
        stays = gateway.load(40, 1, Request(headers={"cookie": f"a=1; {_given(first)}"}))
    assert stays.by_replica == {first.replica: 40}
    assert not any(seen.header("cookie") for replica in pair for seen in replica.seen)


def test_response_header_rules_keep_the_cookie(kind: Kind) -> None:
    cases: dict[str, tuple[dict[str, Any], list[str]]] = {
        "remove": ({"remove": ["set-cookie"]}, []),
        "set": ({"set": {"set-cookie": "site=1"}}, ["site=1"]),
        "pool": ({"set": {"set-cookie": "pool={pool}"}}, ["pool=%s"]),
        "tenant": ({"set": {"set-cookie": "{tenant}"}}, []),
    }
    with replicas("old", "new") as pair:
        for replica in pair:
            replica.behave(headers=(("set-cookie", "session=s"), ("set-cookie", "theme=dark")))
        fleets = {case: _split_fleet(pair, headers={"response": rules}) for case, (rules, _) in cases.items()}
        with running(kind, side_by_side(fleets)) as gateway:
            for case, (_, cookies) in cases.items():
                client = gateway.connect(case)
                first = client.get()
                pool = f"{case}-" + {"old": "old-v1", "new": "new.v2"}[first.replica or ""]
                ours = [value for value in first.header_list("set-cookie") if value.startswith(f"{_NAME}={pool};")]
                expected = [*ours, *(cookie.replace("%s", pool) for cookie in cookies)]
                assert (case, sorted(first.header_list("set-cookie"))) == (case, sorted(expected))
                assert len(ours) == 1, case
                again = client.load(20, 1, Request(headers={"cookie": _given(first) or ""}))
                assert again.by_replica == {first.replica: 20}, case
                replaced = [cookie.replace("%s", pool) for cookie in cookies]
                assert [answer.header_list("set-cookie") for answer in again.responses] == [replaced] * 20, case


@pytest.mark.parametrize("kind", ["envoy"])
def test_envoy_replaces_the_cookie_of_such_a_variant(kind: Kind) -> None:
    """Otherwise the next rollout would begin with all of its old clients."""
    with replicas("old", "new") as pair, running(kind, _split_fleet(pair, share=0)) as gateway:
        answer = gateway.get(headers={"cookie": f"{_NAME}=new.v2"})
        assert (answer.replica, _given(answer)) == ("old", f"{_NAME}=old-v1")
        assert _given(gateway.get(headers={"cookie": f"{_NAME}=old-v1"})) is None
        assert _given(gateway.get()) is None
