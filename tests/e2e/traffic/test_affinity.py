"""A client stays with its replica by a cookie that says nothing of the fleet, and chooses nothing by itself."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind, is_rendered_for
from tests.support.processes.certs import Authority, client_context
from tests.support.processes.checks import TCP
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.http1 import Request, Response
from tests.support.processes.replicas import Replica, Seen, replicas
from tests.support.processes.waiting import eventually

_NAME = "lb_replica"
_KEEPS = pytest.mark.parametrize(
    "kind", [*(["nginx"] if is_rendered_for("nginx", "1.29.6") else []), "haproxy", "envoy"]
)


def _fleet(pool: list[Replica], **more: Any) -> Fleet:
    keys: dict[str, Any] = {
        "affinity": {"cookie": _NAME, "ttl": "30m"},
        "health": TCP,
        "balance": {"algorithm": "round_robin"},
    }
    return fleet_of(pool_of(pool, **keys), **more)


def _given(answer: Response) -> str | None:
    """The cookie's value, where the proxy set it."""
    ours = [value for value in answer.header_list("set-cookie") if value.startswith(f"{_NAME}=")]
    assert len(ours) < 2
    return ours[0].split(";")[0].removeprefix(f"{_NAME}=").strip('"') if ours else None


def _with(value: str) -> dict[str, str]:
    return {"cookie": f"a=1; {_NAME}={value}; b=2"}


@_KEEPS
def test_clients_are_spread_and_each_stays_with_its_replica(kind: Kind) -> None:
    with replicas("a", "b", "c") as pool, running(kind, _fleet(pool)) as gateway:
        first = gateway.load(30)
        homes = {answer.replica: _given(answer) for answer in first.responses}
        stays = {
            name: gateway.load(30, 3, Request("POST", headers=_with(value or "")), keep_alive=False).by_replica
            for name, value in homes.items()
        }
    assert set(homes) == {"a", "b", "c"}
    assert len({(answer.replica, _given(answer)) for answer in first.responses}) == len(
        {_given(answer) for answer in first.responses}
    )  # none stands for two
    assert stays == {name: {name: 30} for name in homes}


@_KEEPS
def test_the_cookie_is_out_of_reach_of_scripts_and_of_other_sites(kind: Kind) -> None:
    with replicas("a", "b") as pool, running(kind, _fleet(pool)) as gateway:
        (cookie,) = gateway.get("/deep/path").header_list("set-cookie")
    words = {word.strip().lower() for word in cookie.split(";")[1:]}
    assert {"path=/", "httponly", "samesite=lax"} <= words
    assert "secure" not in words


@_KEEPS
def test_on_tls_listeners_the_cookie_is_secure(kind: Kind, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("a.example.com")
    files = {"tls/a.crt": pair.certificate.read_bytes(), "tls/a.key": pair.key.read_bytes()}
    listener = {"tls": {"certificates": [{"certificate": "tls/a.crt", "key": "tls/a.key"}]}}
    trust = client_context(authority.ca)
    with replicas("a", "b") as pool:
        fleet = _fleet(pool, listener=listener)
        with running(kind, fleet, files=files, tls=trust, server_name="a.example.com") as gateway:
            (cookie,) = gateway.get().header_list("set-cookie")
    assert "secure" in {word.strip().lower() for word in cookie.split(";")[1:]}


@_KEEPS
def test_the_cookie_says_nothing_of_the_replica(kind: Kind) -> None:
    with replicas("replica-a", "replica-b") as pool, running(kind, _fleet(pool)) as gateway:
        values = {_given(gateway.get()) or "" for _ in range(4)}
    assert len(values) == 2
    for value in values:
        seen = b"\n".join(_readings(value))
        for replica in pool:
            host, port = replica.address.split(":")
            number = replica.port.to_bytes(2)
            for secret in (
                host.encode(),
                port.encode(),
                replica.name.encode(),
                bytes(map(int, host.split("."))),
                number,
            ):
                assert secret not in seen, (value, secret)


def _readings(value: str) -> list[bytes]:
    """The value as it is, and as what it could be the encoding of."""
    plain = unquote(value).encode()
    found = [value.encode(), plain]
    for decode in (base64.b64decode, base64.urlsafe_b64decode, bytes.fromhex):
        try:
            found.append(decode(plain.decode() + ("" if decode is bytes.fromhex else "===")))
        except ValueError:
            continue
    return found


@_KEEPS
def test_a_forged_cookie_chooses_no_replica(kind: Kind) -> None:
    with replicas("a", "b", "c") as pool, running(kind, _fleet(pool)) as gateway:
        target = pool[1]
        protobuf = b"\n" + bytes([len(target.address)]) + target.address.encode()
        forged = [
            target.name,
            target.address,
            target.address.replace(":", "%3A"),
            base64.b64encode(target.address.encode()).decode(),
            base64.b64encode(protobuf).decode(),
            base64.urlsafe_b64encode(protobuf).decode().rstrip("="),
            "pool_pool/b",
            "0",
            "",
        ]
        loads = {value: gateway.load(15, 1, Request(headers=_with(value))) for value in forged}
    for value, load in loads.items():
        load.assert_no_failure()
        assert set(load.by_replica) == {"a", "b", "c"}, value
        assert all(_given(answer) for answer in load.responses), value


@_KEEPS
def test_a_client_whose_replica_is_gone_gets_another_and_loses_nothing(kind: Kind) -> None:
    with replicas("a", "b", "c") as pool, running(kind, _fleet(pool)) as gateway:
        first = gateway.get()
        home = next(replica for replica in pool if replica.name == first.replica)
        home.refuse()
        load = gateway.load(60, 2, Request(headers=_with(_given(first) or "")), gap=0.03)
        moved = gateway.get(headers=_with(_given(first) or ""))
        stays = gateway.load(10, 1, Request(headers=_with(_given(moved) or "")))
    load.assert_no_failure()
    assert home.name not in load.by_replica
    assert _given(moved) not in (None, _given(first))
    assert stays.by_replica == {moved.replica: 10}


@_KEEPS
def test_a_drained_replica_lets_its_clients_go(kind: Kind) -> None:
    with replicas("a", "b", "c") as pool, running(kind, fleet := _fleet(pool)) as gateway:
        first = gateway.get()
        for entry in fleet["pools"]["pool"]["replicas"]:
            entry["drain"] = entry["name"] == first.replica
        gateway.reload(fleet)
        eventually(lambda: gateway.get(headers=_with(_given(first) or "")).replica != first.replica)
        load = gateway.load(30, 2, Request(headers=_with(_given(first) or "")))
    load.assert_no_failure()
    assert first.replica not in load.by_replica


@_KEEPS
def test_a_replica_keeps_its_clients_when_others_come_and_go(kind: Kind) -> None:
    with replicas("a", "b", "c", "d") as pool, running(kind, fleet := _fleet(pool[:3])) as gateway:
        homes = {answer.replica: _given(answer) or "" for answer in gateway.load(30).responses}
        gateway.reload({**fleet, "pools": {"pool": {**_fleet([pool[3], *pool[1:3]])["pools"]["pool"]}}})
        eventually(lambda: pool[3].name in gateway.load(12).by_replica)
        stays = {name: gateway.load(10, 1, Request(headers=_with(homes[name]))).by_replica for name in ("b", "c")}
    assert stays == {"b": {"b": 10}, "c": {"c": 10}}


@_KEEPS
def test_in_a_split_each_pool_keeps_its_own_clients(kind: Kind) -> None:
    keys: dict[str, Any] = {"health": TCP, "balance": {"algorithm": "round_robin"}}
    with replicas("a", "b", "c", "d") as (a, b, c, d):
        pools = {
            "one": pool_of([a, b], affinity={"cookie": "lb_one"}, **keys),
            "two": pool_of([c, d], **keys),
        }
        pins = [{"header": "x-pool", "equals": name, "pool": name} for name in pools]
        route = {"match": {"path_prefix": "/"}, "split": {"one": 1, "two": 1}, "pin": pins}
        fleet = {**fleet_of([a]), "routes": {"everything": route}, "pools": pools}
        with running(kind, fleet) as gateway:
            drawn = gateway.load(40)
            cookies = {answer.replica: answer.header_list("set-cookie") for answer in drawn.responses}
            home, (cookie,) = next((name, found) for name, found in cookies.items() if name in ("a", "b"))
            held = {"cookie": cookie.split(";")[0]}
            stays = gateway.load(40, 1, Request(headers=held))
            pinned = gateway.load(10, 1, Request(headers={**held, "x-pool": "one"}))
    drawn.assert_no_failure()
    assert set(drawn.by_replica) == {"a", "b", "c", "d"}
    assert (cookies["c"], cookies["d"]) == ([], [])
    assert set(stays.by_replica) == {home, "c", "d"}
    assert pinned.by_replica == {home: 10}


@_KEEPS
def test_cookies_of_the_application_pass_both_ways(kind: Kind) -> None:
    with replicas("a", "b") as pool, running(kind, _fleet(pool)) as gateway:
        for replica in pool:
            replica.behave(headers=(("set-cookie", "session=s; Path=/"),))
        answer = gateway.get(headers={"cookie": "session=s; theme=dark"})
    assert "session=s; Path=/" in answer.header_list("set-cookie")
    assert _given(answer)
    sent = "; ".join(value for name, value in answer.json["headers"] if name.lower() == "cookie")
    assert {"session=s", "theme=dark"} <= {word.strip() for word in sent.split(";")}


@_KEEPS
@pytest.mark.parametrize(
    ("rules", "cookies"), [({"remove": ["cookie"]}, set()), ({"set": {"cookie": "theme=dark"}}, {"theme=dark"})]
)
def test_header_rules_about_the_clients_cookies_let_no_client_go(
    kind: Kind, rules: dict[str, Any], cookies: set[str]
) -> None:
    fleet = {"route": {"headers": {"request": rules}}}
    with replicas("a", "b", "c") as pool, running(kind, _fleet(pool, **fleet)) as gateway:
        first = gateway.get()
        stays = gateway.load(30, 1, Request(headers=_with(_given(first) or "")))
        spread = [gateway.load(15, 1, Request(headers=_with(forged))) for forged in ("x", '"%[src]', "")]
    assert stays.by_replica == {first.replica: 30}
    assert [set(load.by_replica) for load in spread] == [{"a", "b", "c"}] * 3
    seen = [request for replica in pool for request in replica.seen]
    assert [_cookies(request) for request in seen] == [cookies] * len(seen)


def _cookies(seen: Seen) -> set[str]:
    return {value for name, value in seen.headers if name.lower() == "cookie"}


@_KEEPS
@pytest.mark.parametrize(
    ("rules", "cookies"), [({"remove": ["set-cookie"]}, []), ({"set": {"set-cookie": "site=1"}}, ["site=1"])]
)
def test_header_rules_about_the_replicas_cookies_leave_that_of_the_proxy(
    kind: Kind, rules: dict[str, Any], cookies: list[str]
) -> None:
    fleet = {"route": {"headers": {"response": rules}}}
    with replicas("a", "b") as pool, running(kind, _fleet(pool, **fleet)) as gateway:
        for replica in pool:
            replica.behave(headers=(("set-cookie", "session=s"), ("set-cookie", f"{_NAME}=mine")))
        answer = gateway.get()
        stays = gateway.load(20, 1, Request(headers=_with(_given(answer) or "")))
        for replica in pool:
            replica.refuse()
        refused = gateway.get()
    assert _others(answer) == cookies
    assert stays.by_replica == {answer.replica: 20}
    assert (refused.status, _others(refused)) == (503, cookies)


def _others(answer: Response) -> list[str]:
    """The cookies that are not of the replica."""
    return [value for value in answer.header_list("set-cookie") if not value.startswith(f"{_NAME}=")]


@_KEEPS
def test_clients_of_a_hosted_api_stay_too_and_it_gets_no_cookie(kind: Kind) -> None:
    with replicas("a", "b") as pool:
        fleet = _fleet(pool)
        fleet["pools"]["pool"]["upstream"] = {"host": "api.example.com"}
        with running(kind, fleet) as gateway:
            first = gateway.get()
            again = gateway.load(20, 2, Request(headers={"cookie": f"a=1; {_NAME}={_given(first)}"}))
        assert again.by_replica == {first.replica: 20}
        assert all(request.header("cookie") is None for replica in pool for request in replica.seen)


@_KEEPS
def test_in_a_split_header_rules_leave_the_cookie_to_its_pool_alone(kind: Kind) -> None:
    headers = {"request": {"remove": ["cookie"]}, "response": {"remove": ["set-cookie"]}}
    keys: dict[str, Any] = {"health": TCP, "balance": {"algorithm": "round_robin"}}
    with replicas("a", "b", "c") as (a, b, c):
        pools = {"one": pool_of([a, b], affinity={"cookie": _NAME}, **keys), "two": pool_of([c], **keys)}
        route = {"match": {"path_prefix": "/"}, "split": {"one": 1, "two": 1}, "headers": headers}
        with running(kind, {**fleet_of([a]), "routes": {"everything": route}, "pools": pools}) as gateway:
            for replica in (a, b, c):
                replica.behave(headers=(("set-cookie", "session=s"),))
            drawn = gateway.load(40)
            home = next(answer for answer in drawn.responses if answer.replica in ("a", "b"))
            stays = gateway.load(40, 1, Request(headers=_with(_given(home) or "")))
    assert {(answer.replica, _given(answer) is not None) for answer in drawn.responses} == {
        ("a", True),
        ("b", True),
        ("c", False),
    }
    assert set(stays.by_replica) == {home.replica, "c"}
    assert [_others(answer) for answer in (*drawn.responses, *stays.responses)] == [[]] * 80
    assert [_cookies(request) for replica in (a, b, c) for request in replica.seen] == [set()] * 80


@_KEEPS
def test_a_cookie_leads_nobody_out_of_his_regions(kind: Kind) -> None:
    with replicas("a", "b", "west") as pool:
        fleet = _fleet(
            pool, routes={"bound": {"match": {"path_prefix": "/bound"}, "pool": "pool", "regions": ["east"]}}
        )
        for entry in fleet["pools"]["pool"]["replicas"]:
            entry["region"] = "west" if entry["name"] == "west" else "east"
        with running(kind, fleet) as gateway:
            given = {answer.replica: _given(answer) or "" for answer in gateway.load(12).responses}
            led = gateway.load(20, 1, Request(path="/bound", headers=_with(given["west"])))
            stays = gateway.load(20, 1, Request(path="/bound", headers=_with(given["a"])))
    assert set(led.by_replica) == {"a", "b"}
    assert stays.by_replica == {"a": 20}


def test_beside_a_fallback_haproxy_keeps_clients() -> None:
    with replicas("a", "b", "spare") as (a, b, spare):
        fleet = _fleet([a, b], route={"fallback": "spare"}, pools={"spare": pool_of([spare])})
        with running("haproxy", fleet) as gateway:
            first = gateway.get()
            load = gateway.load(20, 1, Request(headers=_with(_given(first) or "")))
    assert load.by_replica == {first.replica: 20}


def test_beside_a_fallback_envoy_says_that_it_keeps_nobody() -> None:
    with replicas("a", "b", "spare") as (a, b, spare):
        fleet = _fleet([a, b], route={"fallback": "spare"}, pools={"spare": pool_of([spare])})
        with running("envoy", fleet) as gateway:
            assert "LB463" in gateway.messages
            load = gateway.load(20, 1)
    assert set(load.by_replica) == {"a", "b"}
    assert not any(answer.header_list("set-cookie") for answer in load.responses)


def test_replicas_with_a_host_name_keep_nobody_on_envoy_which_says_so() -> None:
    with replicas("a", "b") as pool:
        fleet = _fleet(pool)
        for entry, replica in zip(fleet["pools"]["pool"]["replicas"], pool, strict=True):
            entry["address"] = f"localhost:{replica.port}"
        with running("envoy", fleet) as gateway:
            assert "LB463" in gateway.messages
            eventually(lambda: gateway.get().ok)
            assert not gateway.get().header_list("set-cookie")


def test_nginx_says_that_it_keeps_nobody() -> None:
    with replicas("a", "b") as pool, running("nginx", _fleet(pool)) as gateway:
        assert "LB463" in gateway.messages
        load = gateway.load(20, 1, Request(headers=_with("a")))
    assert set(load.by_replica) == {"a", "b"}
    assert not any(answer.header_list("set-cookie") for answer in load.responses)
