"""Every rule of lint on the examples of its page: the bad one has exactly that finding, the good one none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lbctl.lint.fleet_view import StatedLoad
from lbctl.lint.rules import rules
from tests.support.fleets import fleet_text, pool, replica
from tests.support.lint import LLM, PAGE_LOAD, TWO, codes, findings, pointed, sample

CODES = list(rules())
POINTS = {
    "LB535": '"1.30.5"',
    "LB327": "1s}}",
    "LB328": "true}",
    "LB245": '"{tenant}"',
    "LB538": '"127.0.0.1:9901"',
    "LB246": '"0.0.0.0:8405"',
    "LB210": "round_robin}",
    "LB211": "least_request}",
    "LB213": "hash: {key: {header: x-session}}}",
    "LB214": "adaptive}",
    "LB215": "key: {prompt_prefix: 4096}",
    "LB216": "4}",
    "LB217": "{name: a,",
    "LB218": "{name: a,",
    "LB219": "50%}}",
    "LB220": "regions: [us]}",
    "LB221": "pools:",
    "LB222": "pools:",
    "LB223": "pick}",
    "LB224": "8}}",
    "LB225": "balance: {algorithm: pick}",
    "LB226": "pick}",
    "LB227": "key: {prompt_prefix: 256}",
    "LB228": '"0.0.0.0:18001"',
    "LB229": "queue: {max_wait",
    "LB230": "http: {path: /v1/models}",
    "LB251": "chat:",
    "LB249": "rate_limit: [{by: client_ip, prompt_tokens",
    "LB250": "queue: {max_wait",
    "LB248": "balance: {algorithm: pick}",
    "LB231": "telemetry: {sources",
    "LB232": "slow_start: {window",
    "LB233": "upstream: {host",
    "LB240": "own/answers.conf]}}",
    "LB241": "own/answers.conf]}}",
    "LB242": "own/adds.conf]}}",
    "LB310": "30s}}",
    "LB311": "60s}}",
    "LB312": "60s}",
    "LB313": "5, budget: 20%}}",
    "LB314": "true, budget: 20%}}",
    "LB315": "retry: {attempts: 1",
    "LB316": "retry: {attempts: 2",
    "LB317": "busy_statuses: [429]}}",
    "LB318": "when: [connect_failure, replica_busy]}}",
    "LB321": "/v2/health/live}}}",
    "LB322": "sources: [{kind: vllm",
    "LB323": "30s, unhealthy_threshold: 5}}",
    "LB324": "10s}}",
    "LB325": "1}}",
    "LB326": "1s}",
    "LB329": "{name: b,",
    "LB330": '"/v1/*"',
    "LB331": "spare:",
    "LB332": '"$upstream_addr"',
    "LB333": "hosts: [old.example.com]}",
    "LB334": "match: {path_prefix: /v1/chat}, pool",
    "LB534": '"0.0.0.0:8443"',
    "LB247": "key: {header: mcp-session-id}",
    "LB520": '"0.0.0.0:8080"}',
    "LB521": "tls: {server_name: llama.internal}",
    "LB522": '"0.0.0.0:18000"',
    "LB523": '"0.0.0.0:18080"',
    "LB524": "Bearer not-a-real-key-1",
    "LB525": "tls/server.key}",
    "LB526": '"http://169.254.169.254:9400/metrics"}',
    "LB532": "secrets/api-keys}}}",
    "LB536": "store:",
    "LB537": '"redis://store.example:6379/0"',
    "LB533": "5/s",
    "LB610": "2m",
    "LB611": "composite}",
    "LB612": "15s",
    "LB613": "0.5, gpu: 0.5}",
    "LB614": '"vllm:gpu_cache_usage_perc"',
    "LB615": "2GiB}}",
    "LB616": 'devices: ["0"]}',
    "LB617": "{name: a,",
    "LB618": "30s",
    "LB703": "rollout:",
    "LB704": "max_latency",
    "LB706": "2s",
    "LB710": "split: {llama: 95, llama-v2: 5}}",
    "LB711": "200,",
}
"""The text to which each rule points in its bad example."""


def page_load(code: str) -> StatedLoad | None:
    return PAGE_LOAD if rules()[code].needs_load else None


@pytest.mark.parametrize("code", CODES)
def test_the_bad_example_has_exactly_this_finding(code: str, tmp_path: Path) -> None:
    fleet = rules()[code].page.before
    (finding,) = findings(fleet, page_load(code), tmp_path)
    assert (finding.code, finding.severity) == (code, rules()[code].severity)
    assert pointed(fleet, finding).startswith(POINTS[code])
    assert finding.hint


@pytest.mark.parametrize("code", CODES)
def test_the_good_example_has_no_findings(code: str, tmp_path: Path) -> None:
    assert findings(rules()[code].page.after, page_load(code), tmp_path) == []


def test_every_rule_has_an_expected_position() -> None:
    assert sorted(POINTS) == CODES


def test_preflights_of_a_keyed_route_are_noted_at_an_open_one() -> None:
    before = rules()["LB334"].page.before
    assert codes(before.replace("model: [small]", "methods: [POST]")) == ["LB334"]
    assert codes(before.replace("path_prefix: /v1/chat}", "path_prefix: /v1/chats}")) == []
    assert codes(before.replace("path_prefix: /v1/chat}", "path_prefix: /v1/chat, methods: [OPTIONS]}")) == []


def test_ranks_and_pools_may_share_an_agent() -> None:
    before = rules()["LB329"].page.before
    ranks = 'replicas: [{address: "10.0.0.1:8000", ports: 2, devices: ["0", "1"]}]'
    agents = "health: {agent: {port: 9500}}"
    same = f'  other:\n    replicas: [{{name: a, address: "10.0.0.1:8000", devices: ["0"]}}]\n    {agents}\n'
    start, listed = before.index("replicas:"), before.index("health:")
    assert "LB329" not in codes(before[:start] + f"{ranks}\n    " + before[listed:])
    assert codes(before + same).count("LB329") == 1


@pytest.mark.parametrize(
    ("port", "engine", "count"), [(9499, 8001, 1), (9501, 8001, 1), (9502, 8001, 0), (9502, 9502, 1), (9502, 9503, 1)]
)
def test_agent_needs_two_free_ports(port: int, engine: int, count: int) -> None:
    after = rules()["LB329"].page.after
    changed = after.replace("9502", str(port)).replace("10.0.0.1:8001", f"10.0.0.1:{engine}")
    assert codes(changed).count("LB329") == count


ONE = "chat: {match: {path_prefix: /v1/chat}, pool: llama}\n"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank"])
def test_routes_without_generation_may_have_a_total_timeout(path: str) -> None:
    routes = f"all: {{match: {{path_prefix: {path}}}, pool: llama, timeouts: {{request: 30s, idle: 30s}}}}\n"
    assert codes(sample(LLM, routes=routes)) == []
    assert codes(sample(LLM, routes=routes.replace(path, "/v1/models"))) == ["LB310", "LB311"]


@pytest.mark.parametrize(
    ("url", "more", "message"),
    [
        ("redis://127.0.0.1:6379", "", ""),
        ("etcd://localhost:2379,[::1]:2379", "", ""),
        ("kubernetes://ns/name", "", ""),
        ("rediss://h:6379", ", password: {file: f}", ""),
        ("etcds://h:2379", ", tls: {certificate: c, key: k}", ""),
        ("redis://h:6379", "", "h:6379 is used without TLS and without a password or a client certificate"),
        ("etcd://127.0.0.1:2379,h:2379", ", password: {file: f}", "127.0.0.1:2379,h:2379 is used without TLS"),
        ("rediss+sentinel://h/main", "", "h:26379 is used without a password or a client certificate"),
    ],
)
def test_store_on_another_machine_needs_tls_and_a_password(url: str, more: str, message: str) -> None:
    found = findings(sample(more=f'control: {{store: {{url: "{url}", key_file: keys{more}}}}}\n'))
    assert [item.message for item in found if item.code == "LB537"] == ([message] if message else [])
    assert "LB536" not in {item.code for item in found}


def test_round_robin_is_right_for_equal_work_on_equal_gpus() -> None:
    routes = "embed: {match: {path_prefix: /v1/embeddings}, pool: llama}\n"
    assert codes(sample("balance: {algorithm: round_robin}\n", routes=routes)) == []
    mixed = '- {address: "10.0.0.1:80", gpu: H100-SXM}\n- {address: "10.0.0.2:80", gpu: L4}\n'
    assert codes(sample("balance: {algorithm: round_robin}\n", routes=routes, replicas=mixed)) == ["LB210"]


def test_least_request_is_a_finding_only_in_haproxy() -> None:
    page = rules()["LB211"].page
    assert codes(page.before.replace("kind: haproxy", "kind: envoy")) == []
    assert codes(page.before.replace("gpu: A10}", "gpu: A100-80GB}")) == []


def test_a_single_replica_is_a_finding_except_in_a_canary() -> None:
    canary = 'canary:\n  replicas: [{name: c, address: "10.0.0.3:8000", gpu: H100-SXM}]\n'
    split = "chat: {match: {path_prefix: /v1/chat}, split: {llama: 95, canary: 5}}\n"
    assert codes(sample(routes=split, pools=canary)) == []
    assert codes(sample(routes=split.replace("95, canary: 5", "5, canary: 95"), pools=canary)) == ["LB218"]
    alone = "chat: {match: {path_prefix: /v1/chat}, pool: canary, fallback: llama}\n"
    assert codes(sample(routes=alone, pools=canary)) == []


def test_a_bad_default_is_reported_once() -> None:
    fleet = sample(pools=f"other:\n  replicas:\n{''.join(f'    {line}' + chr(10) for line in TWO.splitlines())}")
    fleet = fleet.replace("/v1/chat}, pool: llama}", "/v1/chat}, split: {llama: 1, other: 1}}")
    text = f"{fleet}defaults: {{pool: {{health: {{passive: {{consecutive_5xx: 1}}}}}}}}\n"
    (finding,) = findings(text)
    assert (finding.code, pointed(text, finding)) == ("LB325", "1}}}}")


@pytest.mark.parametrize(
    ("health", "expected"),
    [
        ("active: {http: {path: /health}, unhealthy_threshold: 1}", ["LB325"]),
        ("passive: {consecutive_connect_failures: 1}", ["LB325"]),
        ("passive: {error_rate: {min_requests: 1}}", ["LB325"]),
        ("passive: {max_ejection: 0%}", ["LB325"]),
        ("passive: {consecutive_5xx: 31}", ["LB325"]),
        ("passive: {consecutive_5xx: 30}", []),
        ("passive: {consecutive_5xx: 2, consecutive_connect_failures: 2, max_ejection: 10%}", []),
        ("active: {tcp: {}}", []),
        ("active: {http: {path: /livez}}", ["LB321"]),
        ("active: {http: {path: /health}, interval: 20s, unhealthy_threshold: 2}", []),
    ],
)
def test_health_checks_are_judged_by_their_effect(health: str, expected: list[str]) -> None:
    assert codes(sample(f"health: {{{health}}}\n")) == expected


@pytest.mark.parametrize(("path", "expected"), [("/metrics", ["LB321"]), ("/", ["LB321"]), ("/health", [])])
def test_a_generic_page_is_a_poor_health_check(path: str, expected: list[str]) -> None:
    check = f"health: {{active: {{http: {{path: {path}}}}}}}\n"
    assert codes(sample(f"{LLM}{check}")) == expected
    assert codes(sample(check)) == []


def test_idle_timeouts_matter_only_for_uvicorn_servers() -> None:
    idle, image = "connections: {idle: 60s}\n", "images: {match: {path_prefix: /images}, pool: llama}\n"
    assert codes(sample(idle, routes=image)) == []
    assert codes(sample(LLM + idle, routes=image)) == ["LB312"]
    assert codes(sample(LLM.replace("vllm", "tgi") + idle, routes=image)) == []


QUEUED = "balance: {algorithm: pick}\nqueue: {max_wait: 5s, by: client_ip}\n"
RUNNING = LLM.replace("kind: vllm", "kind: custom, signal: running, metric: running_requests")
WAITING = '    - {kind: custom, url: "http://{host}:9101/metrics", signal: queue, metric: depth}\n'


@pytest.mark.parametrize(
    ("pool", "expected"), [(LLM, []), (RUNNING, ["LB229"]), (RUNNING + WAITING, [])], ids=["vLLM", "running", "both"]
)
def test_a_queue_needs_a_limit_or_the_engines_queue(pool: str, expected: list[str]) -> None:
    assert codes(sample(f"{pool}{QUEUED}")) == expected


LIMITED = "chat: {match: {path_prefix: /v1/chat}, pool: llama, rate_limit: [{by: all, prompt_tokens: 5M/h}]}\n"
PICKED = f"{LLM}balance: {{algorithm: pick}}\n"


@pytest.mark.parametrize(
    ("pool", "routes", "words"),
    [
        (PICKED, LIMITED, []),
        (PICKED, LIMITED.replace("]}", "], websocket: true}"), ["does not read WebSockets"]),
        (f"{PICKED}protocol: grpc\n", LIMITED, ["does not read gRPC messages"]),
        (PICKED.replace("pick}", "pick, pick: {prefix: off}}"), LIMITED, ["assumes four bytes per token"]),
        (PICKED.replace("pick}", "pick, pick: {prefix: off, session: [{body: $.user}]}}"), LIMITED, []),
    ],
    ids=["read", "WebSocket", "gRPC", "no prefix", "session in the body"],
)
def test_limit_on_prompts_that_are_not_read(pool: str, routes: str, words: list[str]) -> None:
    found = [item.message for item in findings(sample(pool, routes=routes)) if item.code == "LB249"]
    assert [word for word in words if any(word in message for message in found)] == words
    assert len(found) == len(words)


def test_a_tcp_check_is_a_finding_if_the_engine_has_a_page() -> None:
    assert codes(sample(f"{LLM}health: {{active: {{tcp: {{}}}}}}\n")) == ["LB321"]


@pytest.mark.parametrize(
    "host",
    ["169.254.169.254", "[fe80::1]", "[fd00:ec2::254]", "[::ffff:169.254.169.254]",
     "[::169.254.169.254]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]",
     "metadata.google.internal",
     "metadata.google.internal.", "100.100.100.200", "2852039166", "0xA9FEA9FE", "0xa9.0xfe.43518",
     "0251.0376.0251.0376", "169.254.43518", "169%2e254.169.254", "0.0.0.0", "224.0.0.1"],
)  # fmt: skip
def test_every_spelling_of_the_metadata_address_is_a_finding(host: str) -> None:
    source = f'telemetry: {{sources: [{{kind: dcgm, url: "http://{host}:9400/metrics"}}]}}\n'
    assert codes(sample(source)) == ["LB526"]


@pytest.mark.parametrize("host", ["10.0.0.9", "167772169", "0x0a000009", "a9fea9fe", "9.example", "1.2.3.4.5.example"])
def test_other_hosts_are_not_a_finding(host: str) -> None:
    source = f'telemetry: {{sources: [{{kind: dcgm, url: "http://{host}:9400/metrics"}}]}}\n'
    assert codes(sample(source)) == []


@pytest.mark.parametrize(
    ("sources", "composite", "missing"),
    [
        ('[{kind: dcgm, url: "http://{host}:9400/metrics"}]', "", "provides kv_cache, queue, ttft, which"),
        ('[{kind: dcgm, url: "http://{host}:9400/metrics"}]', ", composite: {gpu: 1, ttft: 1}", "provides ttft"),
        ('[{kind: vllm, url: "http://{host}:{port}/metrics"}]', "", "provides gpu, which"),
    ],
)
def test_missing_signals_of_a_score_are_named(sources: str, composite: str, missing: str) -> None:
    text = sample(f"telemetry: {{sources: {sources}}}\nweighting: {{strategy: composite{composite}}}\n")
    (finding,) = [item for item in findings(text) if item.code == "LB613"]
    assert missing in finding.message


def test_a_rule_reports_a_pool_once_with_the_worst_replica() -> None:
    weights = {7: 100, 8: 60}
    replicas = "".join(
        f'- {{name: r{i}, address: "10.0.0.1:{8000 + i}", gpu: L4, weight: {weights.get(i, 1)}}}\n' for i in range(20)
    )
    text = sample(replicas=replicas)
    (finding,) = [item for item in findings(text) if item.code == "LB216"]
    assert pointed(text, finding).startswith("100}")
    assert "100.0 times the value in the GPU table (and 1 more like it in this pool)" in finding.message
    quiet = text.replace("weight: 100}", "weight: 100}   # lbctl: ignore LB216 (measured)")
    (other,) = [item for item in findings(quiet) if item.code == "LB216"]
    assert (pointed(quiet, other)[:3], "more like it" in other.message) == ("60}", False)


@pytest.mark.parametrize(
    ("health", "code", "words"),
    [
        ("{interval: 120s, unhealthy_threshold: 1}", "LB323", "one failed check at an interval of 120 s"),
        ("{interval: 30s, unhealthy_threshold: 5}", "LB323", "5 failed checks at an interval of 30 s: up to 153 s"),
        ("{interval: 500ms, timeout: 100ms, unhealthy_threshold: 100}", "LB325", "100 consecutive failures"),
        ("{interval: 10ms, timeout: 5ms}", "LB324", "200 health checks per second from one proxy; 200 of them"),
    ],
)
def test_check_messages_are_correct_for_one_and_many(health: str, code: str, words: str) -> None:
    text = sample(f"health: {{active: {{http: {{path: /health}}, {health[1:-1]}}}}}\n")
    assert words in next(item.message for item in findings(text) if item.code == code)


@pytest.mark.parametrize(
    ("more", "is_secret"),
    [
        ("headers: {request: {set: {x-api-key: abcdefgh}}}", True),
        ("headers: {request: {set: {x-note: sk-abcdefgh1jklmnopqrstu}}}", True),
        ("headers: {request: {set: {x-note: sk-proj-abcdefgh_1jklmnopqrstuvwxyz-0}}}", True),
        ("headers: {request: {set: {x-note: Basic YWJjZGVmZ2g6aWprbG1u}}}", True),
        ("headers: {request: {set: {x-note: sk-learn-embeddings-large-v2}}}", False),
        ("headers: {request: {set: {x-note: Basic authentication is needed}}}", False),
        ("match: {path_prefix: /v1/chat, headers: {x-who: hf_abcdefghijklmnopqrstuv}}", True),
        ("headers: {request: {set: {x-team: inference-gateway}}}", False),
    ],
)
def test_a_secret_is_detected_and_never_shown(more: str, is_secret: bool) -> None:
    match = "" if more.startswith("match") else "match: {path_prefix: /v1/chat}, "
    diagnostics = findings(sample(routes=f"chat: {{{match}pool: llama, {more}}}\n"))
    assert [item.code for item in diagnostics] == ["LB524"] * is_secret
    assert [item for item in diagnostics if "abcdefgh" in str(item)] == []


def test_files_with_hashed_keys_may_be_world_readable(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    fleet = sample(routes="chat: {match: {path_prefix: /v1/chat}, pool: llama, auth: {api_keys: {file: keys}}}\n")
    file.write_text(f"sha256:{'0' * 64}: acme\n")
    file.chmod(0o644)
    assert [item.code for item in findings(fleet, None, tmp_path)] == ["LB443"]
    file.write_text("sk-1234567890abcdef: acme\n")
    assert [item.code for item in findings(fleet, None, tmp_path)] == ["LB525"]
    file.chmod(0o600)
    assert findings(fleet, None, tmp_path) == []


def test_a_missing_file_is_not_a_finding(tmp_path: Path) -> None:
    tls = "tls: {certificates: [{certificate: tls/a.crt, key: tls/a.key}]}"
    assert findings(sample(listener=f'gateway: {{bind: "127.0.0.1:8443", {tls}}}\n'), None, tmp_path) == []


@pytest.mark.parametrize("bind", ["127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "unix:/run/gateway.sock"])
def test_loopback_needs_no_tls(bind: str) -> None:
    assert codes(sample(listener=f'gateway: {{bind: "{bind}"}}\n')) == []


def test_retry_amplification_multiplies_across_proxies() -> None:
    inner = 'inner: {bind: "127.0.0.1:9000"}\n'
    routes = (
        "chat: {listeners: [gateway], match: {path_prefix: /v1/chat}, pool: llama}\n"
        "again: {listeners: [inner], match: {path_prefix: /v1/chat}, pool: gpus}\n"
    )
    gpus = "gpus:\n  replicas:\n" + "".join(f"    {line}\n" for line in TWO.splitlines())
    front = '- {name: a, address: "127.0.0.1:9000"}\n- {name: b, address: "10.0.0.9:9000"}\n'
    fleet = sample(replicas=front, listener=f'gateway: {{bind: "127.0.0.1:8080"}}\n{inner}', routes=routes, pools=gpus)
    (finding,) = findings(fleet)
    assert (finding.code, finding.path) == ("LB316", ("routes", "chat", "retry"))
    assert "may become 9 requests: 3 (tries) × 3 (tries of the next proxy)" in finding.message
    assert codes(fleet.replace("[inner], match: {path_prefix: /v1/chat}", "[inner], match: {path_prefix: /v2}")) == []


def test_the_worst_path_behind_a_proxy_counts() -> None:
    routes = (
        "all: {listeners: [gateway], pool: llama}\n"
        "few: {listeners: [inner], match: {path_prefix: /few}, pool: gpus, fallback: more, retry: {attempts: 0}}\n"
        "many: {listeners: [inner], match: {path_prefix: /many}, pool: gpus, retry: {attempts: 2}}\n"
    )
    two = "".join(f"    {line}\n" for line in TWO.splitlines())
    front = '- {name: a, address: "127.0.0.1:9000"}\n- {name: b, address: "10.0.0.9:9000"}\n'
    inner = 'gateway: {bind: "127.0.0.1:8080"}\ninner: {bind: "127.0.0.1:9000"}\n'
    pools = f"gpus:\n  replicas:\n{two}more:\n  replicas:\n{two}"
    (finding,) = findings(sample(replicas=front, listener=inner, routes=routes, pools=pools))
    assert "may become 9 requests: 3 (tries) × 3 (tries of the next proxy)" in finding.message


@pytest.mark.parametrize(("rate", "expected"), [(3.1, []), (3.2, ["LB221"]), (3.99, ["LB221"]), (4.0, ["LB222"])])
def test_the_stated_load_is_compared_with_the_slots(rate: float, expected: list[str]) -> None:
    fleet = sample("circuit_breaker: {per_replica: {max_requests: 4}}\n")
    assert [item.code for item in findings(fleet, StatedLoad(rate, 2.0))] == expected
    assert findings(fleet) == []


@pytest.mark.parametrize(
    ("weighting", "interval", "expected"),
    [
        ("{strategy: adaptive}", "60s", []),
        ("{strategy: adaptive}", "61s", ["LB610"]),
        ("{strategy: static}", "5m", []),
        ("{strategy: composite}", "5s", ["LB611"]),
        ("{strategy: composite, adaptive: {smoothing: 1s}}", "2s", ["LB610", "LB611"]),
    ],
)
def test_the_weighting_gain_is_compared_with_the_delay(weighting: str, interval: str, expected: list[str]) -> None:
    slow = LLM.replace("telemetry:\n", f"telemetry:\n  interval: {interval}\n  stale_after: 15m\n")
    assert sorted(codes(sample(f"{slow}weighting: {weighting}\n"))) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("max(vllm:gpu_cache_usage_perc{x='1'})", ["LB614"]),
        ("rate(vllm:time_per_output_token_seconds_sum[1m])", ["LB614"]),
        ("max(my_vllm:gpu_cache_usage_perc)", []),
        ("max(vllm:kv_cache_usage_perc)", []),
        ("max(vllm:gpu_cache_usage_perc_total)", []),
    ],
)
def test_removed_metrics_are_detected_as_whole_names(query: str, expected: list[str]) -> None:
    source = f'    - {{kind: prometheus, url: "http://prom:9090", signal: kv_cache, query: "{query}"}}\n'
    assert codes(sample(LLM + source)) == expected


def test_contradictory_thresholds_on_one_gpu_are_a_finding() -> None:
    replicas = '- {name: a, address: "10.0.0.1:8000", gpu: L4, devices: ["0"]}\n'
    deep = "health: {deep: {min_free_memory: 16GiB}}\n"
    second = f'other:\n  {deep}  replicas: [{{name: b, address: "10.0.0.1:8001", gpu: L4, devices: ["0"]}}]\n'
    routes = "chat: {match: {path_prefix: /v1/chat}, pool: llama, fallback: other}\n"
    assert codes(sample(deep, replicas=replicas, routes=routes, pools=second)) == ["LB616"]
    assert codes(sample(deep, replicas=replicas, routes=routes, pools=second.replace("16GiB", "2GiB"))) == []


def test_a_rollout_needs_ten_samples_beyond_the_percentile() -> None:
    page = rules()["LB711"].page
    assert codes(page.before.replace("p99", "p95")) == []
    assert codes(page.before.replace("p99", "p95").replace("requests: 200", "requests: 199")) == ["LB711"]


def test_a_gateway_is_not_advised_to_listen_on_loopback() -> None:
    more = "proxies: {edge: {kind: gateway-api, kubernetes: {namespace: ml, gateway_class: eg}}}\n"
    for kind, hint in ((more, "set tls: {certificates: …}"), ("", "set tls: {certificates: …}, or bind to 127.0.0.1")):
        found = findings(sample(listener='public: {bind: "0.0.0.0:80"}\n', more=kind))
        assert [item.hint for item in found if item.code == "LB520"] == [hint]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [(["istio", "envoy-gateway"], []), (["istio", "gateway-api"], ["LB318"]), (["istio", "envoy"], ["LB318"])],
)
def test_some_gateways_retry_a_grpc_status(kinds: list[str], expected: list[str]) -> None:
    entries = [
        f"{kind}: {{kind: {kind}{'' if kind == 'envoy' else f', kubernetes: {{namespace: {kind}}}'}}}" for kind in kinds
    ]
    proxies = f"proxies: {{{', '.join(entries)}}}\n".replace(
        "namespace: gateway-api", "namespace: ml, gateway_class: a"
    )
    found = codes(rules()["LB318"].page.before.replace("127.0.0.1:8080", "0.0.0.0:80") + proxies)
    assert [code for code in found if code == "LB318"] == expected


def test_a_listener_that_only_redirects_to_https_needs_no_tls() -> None:
    listeners = 'plain: {bind: "0.0.0.0:80"}\nlocal: {bind: "127.0.0.1:8080"}\n'
    redirect = "redirect: {listeners: [plain], match: {path_prefix: /}, respond: {redirect: https}}\n"
    chat = "chat: {listeners: [local], match: {path_prefix: /v1/chat}, pool: llama}\n"
    assert codes(sample(listener=listeners, routes=f"{redirect}{chat}")) == []
    assert codes(sample(listener=listeners, routes=f"{redirect}{ONE}")) == ["LB520", "LB534"]


@pytest.mark.parametrize("value", ["%[src]", "%UPSTREAM_HOST%", "%REQ(x-user)%", "$remote_addr"])
def test_variables_of_every_proxy_are_detected(value: str) -> None:
    header = f', headers: {{request: {{set: {{x-a: "{value}"}}}}}}}}\n'
    assert codes(sample(routes=ONE.replace("}\n", header))) == ["LB332"]


@pytest.mark.parametrize("value", ["$5", "100%", "a $ b", "50%25", "{'a': 1}"])
def test_other_dollar_and_percent_signs_are_text(value: str) -> None:
    header = f', headers: {{request: {{set: {{x-a: "{value}"}}}}}}}}\n'
    assert codes(sample(routes=ONE.replace("}\n", header))) == []


# ── The picker ───────────────────────────────────────────────────────────────────────────────────────────────────────


def codes_of_fleet(algorithm: str, *proxies: Mapping[str, Any], **keys: Any) -> list[str]:
    """Return the findings for a pool with this algorithm and further keys, behind nginx with these keys."""
    text = fleet_text(
        pool(
            replica("a", "127.0.0.1:9001"),
            replica("b", "127.0.0.1:9002"),
            balance={"algorithm": algorithm},
            health={"active": {"http": {"path": "/health"}}},
            **keys,
        ),
        proxies={f"edge-{number}": {"kind": "nginx", **proxy} for number, proxy in enumerate(proxies)},
    )
    return codes(text)


def test_a_pool_without_a_model_is_not_called_an_embedder() -> None:
    assert "LB225" not in codes_of_fleet("pick", {})
    assert "LB225" in codes_of_fleet("pick", {}, model={"name": "bge-embedder"})


def test_checks_by_serve_are_not_reported_as_missing() -> None:
    driven = {"config": "/etc/nginx/nginx.conf", "reload": {"command": ["nginx", "-s", "reload"]}}
    assert "LB475" in codes_of_fleet("round_robin", {})
    assert "LB475" not in codes_of_fleet("round_robin", driven)
    assert "LB475" not in codes_of_fleet("pick", {})
    assert "LB475" in codes_of_fleet("round_robin", driven, {})
