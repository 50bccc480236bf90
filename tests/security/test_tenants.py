"""A tenant learns nothing about the sessions and prompts of another tenant from the replicas that the picker names."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lbctl.ir.pools import PickPolicy, Prefix, SessionKey
from lbctl.pick.affinity import AffinityMemory
from lbctl.pick.features import Features, read
from lbctl.pick.table import PoolTable
from tests.support.processes.binaries import KINDS, Kind
from tests.support.processes.fleet import entry, fleet_of, running
from tests.support.processes.ports import free_pair
from tests.support.processes.replicas import replicas
from tests.support.processes.scripted_picker import scripted_picker
from tests.support.processes.tokens import ISSUER, Issuer, bearer
from tests.support.processes.waiting import eventually

_POLICY = PickPolicy(session=(SessionKey(header="x-session-id"),), prefix=Prefix(block=16, blocks=64))
_TABLE = PoolTable("p", _POLICY, ())
_PROMPT = json.dumps({"prompt": "You are a helpful assistant. " * 8}).encode()


def _request(tenant: str, session: str = "", body: bytes = b"") -> Features:
    headers = {"x-session-id": [session]} if session else {}
    return read(_TABLE, headers, body, len(body), tenant=tenant)


def test_session_of_another_tenant_has_no_home() -> None:
    memory = AffinityMemory()
    memory.remember(_request("alpha", "s"), "a", 0.0)
    home = memory.home(_request("alpha", "s"), 1.0)
    assert home is not None
    assert home.replica == "a"
    for other in ("beta", "", "alpha\0s"):
        assert memory.home(_request(other, "s"), 1.0) is None


def test_prompt_of_another_tenant_has_no_holder() -> None:
    memory = AffinityMemory()
    memory.remember(_request("alpha", body=_PROMPT), "a", 0.0)
    assert [item.replica for item in memory.holders(_request("alpha", body=_PROMPT), 1.0)] == ["a"]
    for other in ("beta", ""):
        assert memory.holders(_request(other, body=_PROMPT), 1.0) == ()


def test_requests_without_a_tenant_share_their_prompts() -> None:
    memory = AffinityMemory()
    memory.remember(_request("", body=_PROMPT), "a", 0.0)
    assert [item.replica for item in memory.holders(_request("", body=_PROMPT), 1.0)] == ["a"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix", ["off", {"block": 64, "blocks": 16}], ids=["headers", "bodies"])
def test_proxies_name_the_tenant_to_the_picker(kind: Kind, prefix: Any) -> None:
    """The key determines the tenant, whatever the client claims. A route without keys has no tenant."""
    port = free_pair()
    pick = {"session": ["x-session-id"], "prefix": prefix, "otherwise": "round_robin", "timeout": "10s"}
    forged = (("x-lbctl-tenant", "beta"), ("X_Lbctl_Tenant", "beta"), ("content-type", "application/json"))
    keys = {"file": "keys", "header": "x-key"}
    with replicas("a", "b") as pool:
        fleet = fleet_of(
            {"replicas": list(map(entry, pool)), "balance": {"algorithm": "pick", "pick": pick}},
            route={"auth": {"api_keys": keys}},
            routes={"open": {"match": {"path_prefix": "/open"}, "pool": "pool"}},
            control={"picker": {"bind": f"127.0.0.1:{port}"}},
        )
        addresses = {item.name: item.address for item in pool}
        files = {"keys": "sk-alpha-0123456789abcdef: alpha\nsk-beta-0123456789abcdef: beta\n"}
        with (
            scripted_picker(port, lambda _: "a", addresses) as picker,
            running(kind, fleet, files=files) as gateway,
        ):
            eventually(lambda: gateway.get("/open").status == 200 and bool(picker.asked))
            picker.asked.clear()
            for name in ("alpha", "beta"):
                answer = gateway.post("/", _PROMPT, [*forged, ("x-key", f"sk-{name}-0123456789abcdef")])
                assert (answer.status, answer.replica) == (200, "a")
            assert gateway.post("/open", _PROMPT, forged).replica == "a"
    assert [asked.headers.get("x-lbctl-tenant", "") for asked in picker.asked] == ["alpha", "beta", ""]


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_claim_of_a_token_names_the_tenant_to_the_picker(kind: Kind) -> None:
    """A valid token without the claim has no tenant."""
    port, issuer = free_pair(), Issuer()
    pick = {"session": ["x-session-id"], "prefix": "off", "otherwise": "round_robin", "timeout": "10s"}
    with replicas("a", "b") as pool:
        fleet = fleet_of(
            {"replicas": list(map(entry, pool)), "balance": {"algorithm": "pick", "pick": pick}},
            route={"auth": {"jwt": {"issuer": ISSUER, "jwks_file": "jwks.json", "tenant_claim": "org"}}},
            control={"picker": {"bind": f"127.0.0.1:{port}"}},
        )
        addresses = {item.name: item.address for item in pool}
        with (
            scripted_picker(port, lambda _: "a", addresses) as picker,
            running(kind, fleet, files={"jwks.json": issuer.jwks()}) as gateway,
        ):
            named, unnamed = bearer(issuer.rs256()), bearer(issuer.rs256(org=None))
            eventually(lambda: gateway.get(headers=[*named.items()]).status == 200 and bool(picker.asked))
            picker.asked.clear()
            for headers in (named, unnamed):
                assert gateway.get(headers=[("x-lbctl-tenant", "beta"), *headers.items()]).replica == "a"
    assert [asked.headers.get("x-lbctl-tenant", "") for asked in picker.asked] == ["acme", ""]
