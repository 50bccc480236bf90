"""Each file in examples/ runs on each proxy, and does what its first comment promises.

If a proxy does not support a part, the test shows the replacement, and that lbctl reports it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.client import Client
from tests.support.processes.examples import FOLDER, Site, example
from tests.support.processes.haproxy_queue import waiting, with_runtime_api
from tests.support.processes.http1 import Request, Response
from tests.support.processes.replicas import Replica
from tests.support.processes.waiting import eventually

_CHAT = "/v1/chat/completions"
_ASK = Request("POST", _CHAT, body=b'{"messages": []}')


def _model(name: str, path: str = _CHAT) -> Request:
    body = json.dumps({"model": name, "input": "x"}).encode()
    return Request("POST", path, {"content-type": "application/json"}, body)


def _named(name: str, path: str = _CHAT) -> Request:
    """Return a request with the model in a header, for nginx, which reads no bodies."""
    return Request("POST", path, {"content-type": "application/json", "x-model": name}, _model(name).body)


def _await_serving(client: Client, names: set[str], request: Request = _ASK, count: int = 16) -> None:
    """Wait until these replicas, and no others, answer all requests."""

    def serving() -> bool:
        load = client.load(count, 4, request)
        return not load.failures and set(load.by_replica) == names

    eventually(serving, pause=0.3)


def _refuse(*replicas: Replica) -> None:
    for replica in replicas:
        replica.refuse()


def test_each_example_has_a_test() -> None:
    """The contract has its own test, and the README tests the smallest example."""
    started = set(re.findall(r'example\("([a-z-]+)"', Path(__file__).read_text(encoding="utf-8")))
    assert started == {path.stem for path in FOLDER.glob("*.yaml")} - {"fleet", "quickstart"}


def test_vllm_skips_unready_replicas_and_sheds(kind: Kind) -> None:
    with example("vllm", kind) as site:
        gateway = site.gateway
        assert (gateway.get("/healthz").text, gateway.get("/elsewhere").status) == ("ok", 404)
        _await_serving(gateway, {"h100-0", "h100-1", "h100-2"})
        load = gateway.load(90, 9, _ASK)
        load.assert_no_failure()
        assert set(load.by_replica) == {"h100-0", "h100-1", "h100-2"}
        assert gateway.post(_CHAT, b"x" * (11 << 20)).status == 413
        if kind == "nginx":
            _refuse(site.http["h100-0"], site.http["h100-1"])
            assert {"LB475", "LB484"} <= _warned(site)
            _await_serving(gateway, {"h100-2"})
            return
        site.http["h100-0"].behave(health=503)
        _await_serving(gateway, {"h100-1", "h100-2"})
        site.http["h100-1"].behave(health=503)
        eventually(lambda: gateway.post(_CHAT).status == 503, pause=0.2)
        shed = gateway.post(_CHAT)
        assert (shed.status, shed.header("retry-after")) == (503, "5")


def test_provider_fallback_sends_the_key_of_the_provider(kind: Kind) -> None:
    def unlimited(fleet: Fleet) -> None:
        del fleet["routes"]["chat"]["rate_limit"]

    with example("provider-fallback", kind, files={"secrets/provider-key": "sk-of-us\n"}, change=unlimited) as site:
        _await_serving(site.gateway, {"dp"}, count=8)
        _refuse(site.http["dp"])
        _await_serving(site.gateway, {"provider"}, count=8)
        seen = site.http["provider"].seen[-1]
        assert (seen.path, seen.header("host")) == (f"/openai{_CHAT}", "api.example.com")
        assert seen.header("authorization") == "Bearer sk-of-us"


def test_openai_gateway_sends_each_model_to_its_pool(kind: Kind) -> None:
    ask = _named if kind == "nginx" else _model
    with example("openai-gateway", kind) as site:
        gateway = site.gateway
        own = {name for name in site.http if name.startswith("embed-")}
        _await_serving(gateway, own, ask("bge-m3", "/v1/embeddings"))
        for model, pool in (
            ("llama-3.1-70b", "llama-"),
            ("llama-3.1-70b-sql", "llama-"),
            ("qwen2.5-coder-32b", "coder-"),
        ):
            names = {name for name in site.http if name.startswith(pool)}
            _await_serving(gateway, names, ask(model))
            for replica in site.named(pool):
                replica.forget()
            load = gateway.load(12, 3, ask(model))
            load.assert_no_failure()
            assert {name[: len(pool)] for name in load.by_replica} == {pool}, model
        assert set(gateway.load(12, 3, ask("bge-m3", "/v1/embeddings")).by_replica) == own == {"embed-0", "embed-1"}
        assert gateway.load(2, 1, ask("gpt-17")).statuses == {404: 2}
        listed = [item["id"] for item in gateway.get("/v1/models").json["data"]]
        assert listed == ["llama-3.1-70b", "qwen2.5-coder-32b", "bge-m3"]
        if kind == "nginx":
            assert "LB421" in _warned(site)
            assert gateway.load(2, 1, _model("llama-3.1-70b")).statuses == {404: 2}
        _refuse(*site.named("embed-"))
        _await_serving(gateway, {"spare-0"}, ask("bge-m3", "/v1/embeddings"), 8)
        assert sum(replica.requests for replica in site.named("llama-")) == 12


def _ramp_in_two_seconds(fleet: Fleet) -> None:
    fleet["pools"]["llama"]["slow_start"]["window"] = "2s"


@pytest.mark.parametrize(
    "kind", ["haproxy", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("envoy", "nginx"))]
)
def test_mixed_gpus_share_by_capacity(kind: Kind) -> None:
    """The capacities are 11, 11, 2 × 4 and 2.7, 2.7; each request takes equally long on all of them here.

    A replica whose checks a busy machine answers late is down and ramps up again: its share is correct after that.
    """
    whole = 11 + 11 + 8 + 2.7 + 2.7
    wanted = {"h100-0": 11, "h100-1": 11, "a100-0": 8, "l40s-0": 2.7, "l40s-1": 2.7}
    expected = pytest.approx({name: each / whole for name, each in wanted.items()}, abs=0.05)
    with example("mixed-gpus", kind, change=_ramp_in_two_seconds) as site:
        _await_serving(site.gateway, set(site.http))
        for replica in site.http.values():
            replica.behave(delay=0.1)

        def shares() -> dict[str, float]:
            load = site.gateway.load(450, 36, _ASK)
            load.assert_no_failure()
            return dict(load.shares())

        eventually(lambda: shares() == expected)


def _cookie(response: Response) -> str:
    return (response.header("set-cookie") or "").partition(";")[0]


def test_vllm_canary_splits_clients_and_keeps_them(kind: Kind) -> None:
    with example("vllm-canary", kind) as site:
        eventually(lambda: set(site.gateway.load(24, 4, _ASK).by_replica) >= {"h100-0", "h100-1", "a100-0"}, pause=0.2)
        drawn = site.gateway.load(1200, 8, _ASK)  # 60 are expected at the new version
        drawn.assert_no_failure()
        new = [answer for answer in drawn.responses if answer.replica == "h100-2"]
        old = [answer for answer in drawn.responses if answer.replica != "h100-2"]
        assert 25 <= len(new) <= 110
        assert {answer.replica for answer in old} == {"h100-0", "h100-1", "a100-0"}
        for answers, names in ((new, {"h100-2"}), (old, {"h100-0", "h100-1", "a100-0"})):
            (given,) = {_cookie(answer) for answer in answers}
            again = site.gateway.load(60, 6, Request("POST", _CHAT, {"cookie": given}))
            assert set(again.by_replica) == names
        assert site.gateway.load(20, 2, Request("POST", _CHAT, {"x-model-version": "v2"})).by_replica == {"h100-2": 20}


def test_triton_grpc_uses_tls_and_readiness(kind: Kind) -> None:
    method = "/inference.GRPCInferenceService/ModelInfer"
    with example("triton-grpc", kind) as site:
        eventually(lambda: {call.replica for call in site.gateway.grpc_load(method, 8, 2)} == set(site.grpc), pause=0.3)
        replies = site.gateway.grpc_load(method, 24, 4, b"tensor")
        assert {(reply.code, reply.messages) for reply in replies} == {("OK", (b"tensor",))}
        assert {reply.replica for reply in replies} == {"triton-0", "triton-1"}
        assert site.gateway.grpc(method, b"x", x_model_kind="embedding").ok
        if kind == "nginx":
            assert "LB475" in _warned(site)
            return
        eventually(lambda: len(site.checked.seen) > 2)
        assert {seen.path for seen in site.checked.seen} == {"/v2/health/ready"}
        site.checked.behave(status=503)
        eventually(lambda: site.gateway.grpc(method, b"x").code == "UNAVAILABLE", pause=0.2)


_CONVERSATIONS = 80


def _homes(client: Client) -> dict[str, str]:
    """Return the replica of each conversation, after two turns that went to the same one.

    The requests are sequential: some concurrent ones may go to another replica.
    """
    count = _CONVERSATIONS
    load = client.load(2 * count, 1, lambda number: Request("POST", _CHAT, {"x-session-id": f"s-{number % count}"}))
    load.assert_no_failure()
    turns: dict[str, set[str]] = {}
    for answer in load.responses:
        turns.setdefault(dict(answer.json["headers"])["x-session-id"], set()).add(answer.replica or "")
    assert {len(names) for names in turns.values()} == {1}
    return {session: names.pop() for session, names in turns.items()}


def test_kv_affinity_keeps_a_conversation_at_its_replica(kind: Kind) -> None:
    with example("kv-affinity", kind) as site:
        _await_serving(site.gateway, set(site.http))
        before = _homes(site.gateway)
        assert min(Counter(before.values())[name] for name in site.http) >= 3
        assert len(site.gateway.load(40, 4, _ASK).by_replica) == 4
        if kind == "nginx":
            site.http["h100-3"].refuse()
        else:  # refused connections would eject it for 3 s, which may end before its checks have failed
            site.http["h100-3"].behave(health=503)
        _await_serving(site.gateway, {"h100-0", "h100-1", "h100-2"})
        after = _homes(site.gateway)
        assert ("LB462" in _warned(site)) == (kind == "nginx")
    moved = [session for session, home in before.items() if home not in ("h100-3", after[session])]
    assert len(moved) <= (6 if kind == "envoy" else 0)  # Maglev moves about one in a thousand, each time another


def test_multi_region_keeps_european_data_in_europe(kind: Kind) -> None:
    with example("multi-region", kind, place="edge-eu") as site:
        world = site.gateway
        europe = world.connect("public", site.trust, "eu.inference.example.com")
        _await_serving(world, {"eu-0", "eu-1"})
        assert set(europe.load(40, 4, _ASK).by_replica) == {"eu-0", "eu-1"}
        assert set(world.load(40, 4, _ASK).by_replica) == {"eu-0", "eu-1"}
        _refuse(*site.named("eu-"))
        _await_serving(world, {"us-0", "us-1"})
        for replica in site.named("us-"):
            replica.forget()
        assert europe.load(30, 3, _ASK).statuses == {503: 30}
        assert [replica.requests for replica in site.named("us-")] == [0, 0]


def _assert_served_by_all(site: Site) -> None:
    """Fail unless the proxy uses all replicas without a failure. No picker runs here."""
    _await_serving(site.gateway, set(site.http))
    site.gateway.load(60, 4, _ASK).assert_no_failure()


def test_agents_with_sessions_works_without_a_picker(kind: Kind) -> None:
    with example("agents-with-sessions", kind) as site:
        _assert_served_by_all(site)


def test_shared_system_prompt_works_without_a_picker(kind: Kind) -> None:
    with example("shared-system-prompt", kind) as site:
        _assert_served_by_all(site)


def test_adapters_works_without_a_picker(kind: Kind) -> None:
    with example("adapters", kind) as site:
        _assert_served_by_all(site)


def _keys() -> dict[str, str]:
    """Return tenant → key: the sample file contains the words from which its hashes are computed."""
    text = (FOLDER / "keys" / "tenants.yaml").read_text(encoding="utf-8")
    tenants = re.findall(r"^sha256:\w+: (\w+)$", text, re.MULTILINE)
    return {tenant: f"example-key-of-{tenant}-not-a-secret" for tenant in tenants}


def _keys_file(kind: Kind) -> str:
    if kind == "haproxy":
        return (FOLDER / "keys" / "tenants.yaml").read_text(encoding="utf-8")
    return "".join(f"{key}: {tenant}\n" for tenant, key in _keys().items())


def test_tenants_are_identified_by_key_and_limited(kind: Kind) -> None:
    with example("tenants", kind, files={"keys/tenants.yaml": _keys_file(kind)}) as site:
        gateway = site.gateway
        search, chatbot = ({"authorization": f"Bearer {key}"} for key in _keys().values())
        assert gateway.get("/healthz").text == "ok"
        for unknown in ({}, {"authorization": "Bearer wrong"}):
            assert gateway.post(_CHAT, headers=unknown).status == 401
        assert sum(replica.requests for replica in site.http.values()) == 0
        flood = gateway.load(400, 8, Request("POST", _CHAT, {**search, "x-tenant": "chatbot"}))
        other = gateway.load(20, 1, Request("POST", _CHAT, chatbot))
        tenants = Counter(seen.header("x-tenant") for replica in site.http.values() for seen in replica.seen)
    assert set(flood.statuses) == {200, 429}
    assert flood.statuses[200] <= 41 + 20 * (flood.seconds + 0.5)
    other.assert_no_failure()
    assert tenants == {"search": flood.statuses[200], "chatbot": 20}
    assert not any(seen.header("authorization") for replica in site.http.values() for seen in replica.seen)


@pytest.mark.parametrize(
    "kind", ["haproxy", *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("envoy", "nginx"))]
)
def test_spot_falls_back_to_reserved_replicas(kind: Kind) -> None:
    """With two of three left, 67 % are healthy: Envoy begins to spill below 70 %."""
    with example("spot", kind) as site:
        _await_serving(site.gateway, {"spot-0", "spot-1", "spot-2"})
        assert set(site.gateway.load(60, 6, _ASK).by_replica) == {"spot-0", "spot-1", "spot-2"}
        site.http["spot-0"].refuse()
        eventually(lambda: not site.gateway.load(24, 4, _ASK).by_replica["spot-0"], pause=0.2)
        less = site.gateway.load(120, 6, _ASK)
        less.assert_no_failure()
        spilled = sum(number for name, number in less.by_replica.items() if name.startswith("reserved"))
        assert spilled <= (36 if kind == "envoy" else 0)
        _refuse(*site.named("spot-")[1:])
        _await_serving(site.gateway, {"reserved-0", "reserved-1"})
        for replica in site.named("spot-"):
            replica.accept()
        _await_serving(site.gateway, {"spot-0", "spot-1", "spot-2"})


_JOB = Request("POST", _CHAT, {"x-workload": "batch"})


def test_batch_requests_are_limited(kind: Kind) -> None:
    with example("batch-and-interactive", kind) as site:
        _await_serving(site.gateway, set(site.http))
        jobs = site.gateway.load(240, 4, _JOB)
        people = site.gateway.load(80, 4, _ASK)
        assert ("LB433" in _warned(site)) == (kind != "haproxy")
    assert set(jobs.statuses) == {200, 429}
    assert jobs.statuses[200] <= 21 + 10 * (jobs.seconds + 1)
    people.assert_no_failure()


def test_haproxy_serves_interactive_requests_before_queued_jobs(tmp_path: Path) -> None:
    """One replica, one request at a time: requests at two replicas have no order."""
    socket = str(tmp_path / "admin.sock")

    def one_at_once(fleet: Fleet) -> None:
        pool = fleet["pools"]["llama"]
        pool["circuit_breaker"]["per_replica"]["max_requests"] = 1
        del pool["replicas"][1:]
        fleet.update(with_runtime_api(fleet, socket))

    with example("batch-and-interactive", "haproxy", change=one_at_once) as site:
        replica = site.http["h100-0"]
        replica.held = True
        sent = [site.gateway.send("POST", "/v1/first", timeout=100)]
        eventually(lambda: replica.in_flight == 1)
        for path, headers, before in (("/v1/job", _JOB.headers, 0), ("/v1/person", {}, 6)):
            sent += [site.gateway.send("POST", path, headers, timeout=100) for _ in range(6)]
            eventually(lambda before=before: waiting(socket) == before + 6)  # type: ignore[misc]
        replica.held = False
        assert all(each.result(100).ok for each in sent)
        order = [seen.path for seen in replica.seen]
    assert order == ["/v1/first"] + ["/v1/person"] * 6 + ["/v1/job"] * 6


def _warned(site: Site) -> set[str]:
    """Return the codes of the warnings of `lbctl render`."""
    return set(re.findall(r"warning (LB[0-9]{3})", site.gateway.messages))
