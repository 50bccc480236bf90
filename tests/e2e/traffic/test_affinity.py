"""A cookie keeps a client on its replica, reveals nothing about the fleet, and cannot be forged."""

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
from tests.support.processes.fleet import fleet_of, pool_of, running, side_by_side
from tests.support.processes.http1 import Request, Response
from tests.support.processes.replicas import Replica, Seen, replicas
from tests.support.processes.waiting import eventually

_NAME = "lb_replica"
_WITH_AFFINITY = pytest.mark.parametrize(
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
    """Return the value of the cookie, or None if the proxy did not set it."""
    ours = [value for value in answer.header_list("set-cookie") if value.startswith(f"{_NAME}=")]
    assert len(ours) < 2
    return ours[0].split(";")[0].removeprefix(f"{_NAME}=").strip('"') if ours else None


def _with(value: str) -> dict[str, str]:
    return {"cookie": f"a=1; {_NAME}={value}; b=2"}


@_WITH_AFFINITY
def test_clients_spread_and_stay_with_their_replica(kind: Kind) -> None:
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
    )  # no cookie is shared by two replicas
    assert stays == {name: {name: 30} for name in homes}


@_WITH_AFFINITY
def test_cookie_is_hidden_from_scripts_and_other_sites(kind: Kind) -> None:
    with replicas("a", "b") as pool, running(kind, _fleet(pool)) as gateway:
        (cookie,) = gateway.get("/deep/path").header_list("set-cookie")
    words = {word.strip().lower() for word in cookie.split(";")[1:]}
    assert {"path=/", "httponly", "samesite=lax"} <= words
    assert "secure" not in words


@_WITH_AFFINITY
def test_cookie_is_secure_on_tls_listeners(kind: Kind, tmp_path: Path) -> None:
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


@_WITH_AFFINITY
def test_cookie_reveals_nothing_of_the_replica(kind: Kind) -> None:
    with replicas("replica-a", "replica-b") as pool, running(kind, _fleet(pool)) as gateway:
        values = {_given(gateway.get()) or "" for _ in range(4)}
    assert len({value.partition("|")[0] for value in values}) == 2, "HAProxy adds the time behind a bar"
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
    """Return the value as it is, and decoded in each applicable way."""
    plain = unquote(value).encode()
    readings = [value.encode(), plain]
    for decode in (base64.b64decode, base64.urlsafe_b64decode, bytes.fromhex):
        try:
            readings.append(decode(plain.decode() + ("" if decode is bytes.fromhex else "===")))
        except ValueError:
            continue
    return readings


@_WITH_AFFINITY
def test_forged_cookie_is_ignored(kind: Kind) -> None:
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


@_WITH_AFFINITY
def test_client_of_a_dead_replica_moves_without_failures(kind: Kind) -> None:
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


@_WITH_AFFINITY
def test_drained_replica_loses_its_clients(kind: Kind) -> None:
    with replicas("a", "b", "c") as pool, running(kind, fleet := _fleet(pool)) as gateway:
        first = gateway.get()
        for entry in fleet["pools"]["pool"]["replicas"]:
            entry["drain"] = entry["name"] == first.replica
        gateway.reload(fleet)
        eventually(lambda: gateway.get(headers=_with(_given(first) or "")).replica != first.replica, pause=0.2)
        load = gateway.load(30, 2, Request(headers=_with(_given(first) or "")))
    load.assert_no_failure()
    assert first.replica not in load.by_replica


@_WITH_AFFINITY
def test_clients_stay_if_other_replicas_change(kind: Kind) -> None:
    with replicas("a", "b", "c", "d") as pool, running(kind, fleet := _fleet(pool[:3])) as gateway:
        homes = {answer.replica: _given(answer) or "" for answer in gateway.load(30).responses}
        gateway.reload({**fleet, "pools": {"pool": {**_fleet([pool[3], *pool[1:3]])["pools"]["pool"]}}})
        eventually(lambda: pool[3].name in gateway.load(12).by_replica)
        stays = {name: gateway.load(10, 1, Request(headers=_with(homes[name]))).by_replica for name in ("b", "c")}
    assert stays == {"b": {"b": 10}, "c": {"c": 10}}


@_WITH_AFFINITY
def test_pools_of_a_split_keep_their_own_clients(kind: Kind) -> None:
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
            home, (cookie,) = next((name, values) for name, values in cookies.items() if name in ("a", "b"))
            held = {"cookie": cookie.split(";")[0]}
            stays = gateway.load(40, 1, Request(headers=held))
            pinned = gateway.load(10, 1, Request(headers={**held, "x-pool": "one"}))
    drawn.assert_no_failure()
    assert set(drawn.by_replica) == {"a", "b", "c", "d"}
    assert (cookies["c"], cookies["d"]) == ([], [])
    assert set(stays.by_replica) == {home, "c", "d"}
    assert pinned.by_replica == {home: 10}


@_WITH_AFFINITY
def test_application_cookies_pass_both_ways(kind: Kind) -> None:
    with replicas("a", "b") as pool, running(kind, _fleet(pool)) as gateway:
        for replica in pool:
            replica.behave(headers=(("set-cookie", "session=s; Path=/"),))
        answer = gateway.get(headers={"cookie": "session=s; theme=dark"})
    assert "session=s; Path=/" in answer.header_list("set-cookie")
    assert _given(answer)
    sent = "; ".join(value for name, value in answer.json["headers"] if name.lower() == "cookie")
    assert {"session=s", "theme=dark"} <= {word.strip() for word in sent.split(";")}


@_WITH_AFFINITY
def test_request_header_rules_keep_the_clients(kind: Kind) -> None:
    cases: dict[str, tuple[dict[str, Any], set[str]]] = {
        "remove": ({"remove": ["cookie"]}, set()),
        "set": ({"set": {"cookie": "theme=dark"}}, {"theme=dark"}),
    }
    with replicas("a", "b", "c") as pool:
        fleets = {case: _fleet(pool, route={"headers": {"request": rules}}) for case, (rules, _) in cases.items()}
        with running(kind, side_by_side(fleets)) as gateway:
            for case, (_, cookies) in cases.items():
                client = gateway.connect(case)
                for replica in pool:
                    replica.forget()
                first = client.get()
                stays = client.load(20, 1, Request(headers=_with(_given(first) or "")))
                spread = [client.load(12, 1, Request(headers=_with(forged))) for forged in ("x", '"%[src]', "")]
                assert stays.by_replica == {first.replica: 20}, case
                assert [set(load.by_replica) for load in spread] == [{"a", "b", "c"}] * 3, case
                seen = [request for replica in pool for request in replica.seen]
                assert [_cookies(request) for request in seen] == [cookies] * len(seen), case


def _cookies(seen: Seen) -> set[str]:
    return {value for name, value in seen.headers if name.lower() == "cookie"}


@_WITH_AFFINITY
def test_response_header_rules_keep_the_cookie(kind: Kind) -> None:
    cases: dict[str, tuple[dict[str, Any], list[str]]] = {
        "remove": ({"remove": ["set-cookie"]}, []),
        "set": ({"set": {"set-cookie": "site=1"}}, ["site=1"]),
    }
    with replicas("a", "b") as pool:
        fleets = {case: _fleet(pool, route={"headers": {"response": rules}}) for case, (rules, _) in cases.items()}
        with running(kind, side_by_side(fleets)) as gateway:
            for replica in pool:
                replica.behave(headers=(("set-cookie", "session=s"), ("set-cookie", f"{_NAME}=mine")))
            for case, (_, cookies) in cases.items():
                answer = gateway.connect(case).get()
                stays = gateway.connect(case).load(20, 1, Request(headers=_with(_given(answer) or "")))
                assert (case, _others(answer)) == (case, cookies)
                assert stays.by_replica == {answer.replica: 20}, case
            for replica in pool:
                replica.refuse()
            for case, (_, cookies) in cases.items():
                refused = gateway.connect(case).get()
                assert (case, refused.status, _others(refused)) == (case, 503, cookies)


def _others(answer: Response) -> list[str]:
    """Return the cookies other than the affinity cookie."""
    return [value for value in answer.header_list("set-cookie") if not value.startswith(f"{_NAME}=")]


@_WITH_AFFINITY
def test_hosted_api_keeps_clients_and_gets_no_cookie(kind: Kind) -> None:
    with replicas("a", "b") as pool:
        fleet = _fleet(pool)
        fleet["pools"]["pool"]["upstream"] = {"host": "api.example.com"}
        with running(kind, fleet) as gateway:
            first = gateway.get()
            again = gateway.load(20, 2, Request(headers={"cookie": f"a=1; {_NAME}={_given(first)}"}))
        assert again.by_replica == {first.replica: 20}
        assert all(request.header("cookie") is None for replica in pool for request in replica.seen)


@_WITH_AFFINITY
def test_header_rules_of_a_split_keep_the_cookie_of_a_pool(kind: Kind) -> None:
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


@_WITH_AFFINITY
def test_cookie_does_not_override_regions(kind: Kind) -> None:
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


def test_haproxy_keeps_clients_with_a_fallback() -> None:
    with replicas("a", "b", "spare") as (a, b, spare):
        fleet = _fleet([a, b], route={"fallback": "spare"}, pools={"spare": pool_of([spare])})
        with running("haproxy", fleet) as gateway:
            first = gateway.get()
            load = gateway.load(20, 1, Request(headers=_with(_given(first) or "")))
    assert load.by_replica == {first.replica: 20}


def test_envoy_reports_no_affinity_with_a_fallback() -> None:
    with replicas("a", "b", "spare") as (a, b, spare):
        fleet = _fleet([a, b], route={"fallback": "spare"}, pools={"spare": pool_of([spare])})
        with running("envoy", fleet) as gateway:
            assert "LB463" in gateway.messages
            load = gateway.load(20, 1)
    assert set(load.by_replica) == {"a", "b"}
    assert not any(answer.header_list("set-cookie") for answer in load.responses)


def test_envoy_reports_no_affinity_for_host_names() -> None:
    with replicas("a", "b") as pool:
        fleet = _fleet(pool)
        for entry, replica in zip(fleet["pools"]["pool"]["replicas"], pool, strict=True):
            entry["address"] = f"localhost:{replica.port}"
        with running("envoy", fleet) as gateway:
            assert "LB463" in gateway.messages
            eventually(lambda: gateway.get().ok)
            assert not gateway.get().header_list("set-cookie")


def test_nginx_reports_that_it_has_no_affinity() -> None:
    with replicas("a", "b") as pool, running("nginx", _fleet(pool)) as gateway:
        assert "LB463" in gateway.messages
        load = gateway.load(20, 1, Request(headers=_with("a")))
    assert set(load.by_replica) == {"a", "b"}
    assert not any(answer.header_list("set-cookie") for answer in load.responses)
