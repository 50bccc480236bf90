from __future__ import annotations

import pytest

from tests.support.fleet import GROUND, marked, places, reading

# The route `r` or the pool `p`, with a mark at the error → the code and a part of the hint.
ROUTES = {
    "{pool: a, ▶websokcet: true}": ("LB011", "did you mean 'websocket'?"),
    "{pool: a, websocket: ▶yes}": ("LB013", "use true or false, without quotes"),
    '{pool: a, queue_priority: ▶"hihg"}': ("LB013", "did you mean 'high'?"),
    "{pool: a, retry: {attempts: ▶eleven}}": ("LB013", ""),
    '{pool: a, retry: {attempts: ▶"3"}}': ("LB013", "write 3, unquoted"),
    "{pool: a, retry: {attempts: ▶11}}": ("LB016", "at most 10"),
    "{pool: a, retry: ▶3}": ("LB013", "write {attempts: 3}"),
    "{pool: a, ▶retries: 3}": ("LB011", "write retry: {attempts: …}"),
    "{pool: a, ▶path: /v1}": ("LB011", "write match: {path: …}"),
    "{pool: a, ▶model: [m]}": ("LB011", "write match: {model: …}"),
    "{pool: a, ▶path_prefix: /v1}": ("LB011", "write match: {path_prefix: …} or rewrite: {path_prefix: …}"),
    "{pool: a, ▶canary: {pool: b}}": ("LB011", "write split: {POOL: 95, OTHER: 5}"),
    "{split: {a: ▶95%, b: 5}}": ("LB013", "write 95, unquoted, without %"),
    "{pool: a, timeouts: {idle: ▶unlimited}}": ("LB013", "a limit is required: use a large value"),
    "{pool: a, listeners: ▶[]}": ("LB016", "add at least one entry"),
    "{pool: a, listeners: ▶l}": ("LB013", "use [ … ] or lines that start with -"),
    "{pool: a, match: ▶/v1}": ("LB013", 'write {path_prefix: "/v1"}'),
    "{pool: a, match: {hosts: [▶a.example:80]}}": ("LB013", 'a host name, or "*." and a host name; without a port'),
    "{pool: a, match: {path: ▶v1}}": ("LB013", ""),
    "{pool: a, match: {path: ▶/v1//x}}": ("LB013", ""),
    "{pool: a, match: {path: ▶/v1/../x}}": ("LB013", "use the path that clients send"),
    "{pool: a, match: {path: ▶/v1/%2e}}": ("LB013", ""),
    "{pool: a, match: {path_regex: ▶/(?=x)}}": ("LB013", "use RE2 syntax; the expression must match the whole path"),
    "{pool: a, ▶match: {path: /x, path_prefix: /y}}": ("LB015", "keep one of path, path_prefix or path_regex"),
    "{pool: a, match: {headers: {▶-x: y}}}": ("LB013", ""),
    "{pool: a, match: {headers: {X-A: y, ▶x-a: z}}}": ("LB008", "keep one"),
    '{pool: a, match: {headers: {x: ▶""}}}': ("LB013", ""),
    "{pool: a, ▶pool: b}": ("LB008", ""),
    '{pool: a, pin: [{cookie: c, equals: ▶"a; b", pool: b}]}': (
        "LB013",
        "do not use spaces, quotes, commas, semicolons or backslashes",
    ),
    "{pool: a, pin: [▶{header: x, cookie: c, equals: y, pool: b}]}": ("LB015", "keep one of header or cookie"),
    "{pool: a, pin: [▶{equals: y, pool: b}]}": ("LB014", "set one of header or cookie"),
    "{pool: a, pin: [▶{header: x, equals: y}]}": ("LB014", "write pool"),
    "▶{}": ("LB014", "set one of pool, split or respond"),
    "{▶split: }": ("LB014", "set a value, or remove the key"),
    "{pool: a, auth: {api_keys: {file: x}, ▶jwt: }}": ("LB014", "set a value, or remove the key"),
    "{pool: a, ▶auth: {forward_tenant: x}}": ("LB014", "set api_keys, jwt or both, or set basic or external"),
    "{pool: a, rate_limit: [{by: ▶tennant, rate: 5/s}]}": ("LB013", "did you mean 'tenant'?"),
    "{pool: a, rate_limit: [{by: {header: ▶a b}, rate: 5/s}]}": ("LB013", "{header: NAME}"),
    "{pool: a, rate_limit: [▶{by: all, rate: 5/s, concurrent: 5}]}": (
        "LB015",
        "keep one of rate, concurrent or prompt_tokens",
    ),
    "{pool: a, rate_limit: [▶{by: all, prompt_tokens: 5k/s, burst: 5}]}": (
        "LB015",
        "keep one of burst or prompt_tokens",
    ),
    "{pool: a, rate_limit: [{by: all, prompt_tokens: ▶5K/s}]}": ("LB013", "for example 200k/m"),
    "{respond: {status: ▶99}}": ("LB016", "at least 200"),
    "{respond: {▶models: false}}": ("LB014", "set models: true, or set status"),
    "{▶respond: {models: true, body: x}}": ("LB015", "keep one of body, redirect or models"),
    "{pool: a, auth: {api_keys: {file: k, headers: ▶[]}}}": ("LB016", "at least one entry"),
    "{▶respond: {status: 200, redirect: https}}": ("LB015", "keep one of status, redirect or models"),
    "{split: {a: ▶-1, b: 2}}": ("LB016", "at least 0"),
}
POOLS = {
    "health: {active: {http: {▶headers: {}}}}": ("LB011", "put the servers' key in the pool's `credentials`"),
    "weighting: {composite: {▶gqu: 1}}": ("LB013", "did you mean 'gpu'?"),
    "▶algorithm: hash": ("LB011", "write balance: {algorithm: …}"),
    "balance: ▶least_conn": ("LB013", "write {algorithm: least_request}"),
    "balance: {algorithm: ▶least_conn}": ("LB013", "write least_request"),
    "balance: {algorithm: ▶leastconn}": ("LB013", "write least_request"),
    "balance: {algorithm: ▶roundrobin}": ("LB013", "write round_robin"),
    "balance: {algorithm: ▶ip_hash}": ("LB013", "write hash"),
    "health: {active: {http: ▶/health}}": ("LB013", 'write {path: "/health"}'),
    "balance: {algorithm: ▶least_requests}": ("LB013", "did you mean 'least_request'?"),
    "health: {active: {http: {body_contains: ▶5}}}": ("LB013", "quote it"),
    'health: {active: {grpc: {service: ▶"a b"}}}': ("LB013", ""),
    "health: {active: {▶grpc: , interval: 5s}}": ("LB014", "set a value, or remove the key"),
    "health: {active: {tcp: {}, port: ▶70000}}": ("LB016", "at most 65535"),
    "health: {active: {tcp: ▶true}}": ("LB013", "write tcp: {}"),
    "balance: {algorithm: hash, hash: {key: {source_ip: ▶true}}}": ("LB013", "write source_ip: {}"),
    "queue: {max_wait: ▶0s}": ("LB013", "from 1ms to 720h"),
    "queue: {max_requests: ▶10001}": ("LB016", "at most 10000"),
    "queue: {order: ▶lifo}": ("LB013", "did you mean 'fifo'?"),
    "queue: {by: ▶tennant}": ("LB013", "did you mean 'tenant'?"),
    "queue: {by: {header: ▶a b}}": ("LB013", "{header: NAME}"),
    "queue: {weights: {gold: ▶0}}": ("LB013", "for example 1.25"),
    "queue: {▶priority: {tenants: {gold: high}}}": ("LB014", "write header"),
    "queue: {priority: {header: x-p, tenants: ▶{}}}": ("LB016", "at least one entry"),
    "queue: {priority: {header: x-p, tenants: {gold: ▶hgih}}}": ("LB013", "did you mean 'high'?"),
    "weighting: {floor: ▶0%}": ("LB013", "above 0% to 100%"),
    "weighting: {ceiling: ▶0.0%}": ("LB013", "above 0% to 10000%"),
    "locality: {spill_below: ▶101%}": ("LB013", "from 0% to 100%"),
    "telemetry: {sources: [{kind: vllm, url: ▶ftp://a/}]}": ("LB013", ""),
    'telemetry: {sources: [{kind: vllm, url: ▶"http://{hots}/"}]}': (
        "LB013",
        "use {address}, {host}, {port}, {name} or {device}",
    ),
    "telemetry: {sources: [{kind: vllm, url: ▶http://user:secret@a/}]}": ("LB504", ""),
    'tls: {ca: ▶"data:x"}': ("LB013", ""),
    "tls: {ca: ▶a/../../x}": ("LB502", ""),
}


DEVICES = {
    "▶0": 'quote it: "0"',
    "▶true": "quote it",
    '▶"0:3:1"': "GPU instance 3 of GPU 0",
    '▶"0:"': 'an index such as "0"',
    '▶"0:x"': 'an index such as "0"',
    '▶":3"': 'an index such as "0"',
}


REPLICAS = {
    "{address: ▶http://h:1}": "write h:1",
    "{address: ▶https://user:secret@h/v1}": "write h:443",
    '{address: ▶":80"}': "use host:port",
    '▶"10.0.0.1:8000"': 'write {address: "10.0.0.1:8000"}',
    '{address: "a:1", ▶backup: true}': "write priority: 1",
}


def assert_one_error(text: str, code: str, hint: str) -> None:
    source_text, mark = marked(text)
    source, diagnostics = reading(source_text)
    assert source is None
    assert places(diagnostics) == [f"{mark} {code}"]
    assert hint in diagnostics[0].hint
    assert "secret" not in str(diagnostics[0])


def test_a_map_gets_no_hint_about_quotes() -> None:
    text, mark = marked(GROUND + "routes:\n  r: {pool: a, sticky_split: {cookie: ▶{name: x}}}\n")
    _, diagnostics = reading(text)
    assert places(diagnostics) == [f"{mark} LB013"]
    assert diagnostics[0].hint == ""


@pytest.mark.parametrize(("route", "expected"), ROUTES.items(), ids=lambda word: str(word).replace("▶", ""))
def test_a_bad_route_value_is_an_error_with_a_hint(route: str, expected: tuple[str, str]) -> None:
    before, _, after = route.partition("▶")
    at_key = route.startswith("▶")
    body = f"  ▶r: {after}\n" if at_key else f"  r: {before}▶{after}\n"
    assert_one_error(f"{GROUND}routes:\n{body}", *expected)


@pytest.mark.parametrize(("pool", "expected"), POOLS.items(), ids=lambda word: str(word).replace("▶", ""))
def test_a_bad_pool_value_is_an_error_with_a_hint(pool: str, expected: tuple[str, str]) -> None:
    assert_one_error(f'version: 1\npools: {{p: {{replicas: [{{address: "a:1"}}], {pool}}}}}\n', *expected)


@pytest.mark.parametrize(("replica", "hint"), REPLICAS.items(), ids=lambda word: str(word).replace("▶", ""))
def test_names_of_other_proxies_suggest_the_right_one(replica: str, hint: str) -> None:
    assert_one_error(
        f"version: 1\npools: {{p: {{replicas: [{replica}]}}}}\n", "LB011" if "backup" in replica else "LB013", hint
    )


@pytest.mark.parametrize(
    ("proxy", "code", "message"),
    [
        ("config: ▶~/h.cfg", "LB013", "use an absolute path"),
        (
            "config: ▶../h.cfg",
            "LB502",
            "contains .. (use an absolute path, or a path below the fleet's directory)",
        ),
        ("config: ▶/etc/../h.cfg", "LB502", "contains .."),
        ("runtime_api: ▶~/h.sock", "LB145", "is not an absolute path, and a proxy starts in a different directory"),
        ("runtime_api: ▶../h.sock", "LB145", "(use a path that starts with /, for example /run/haproxy/admin.sock)"),
        ("runtime_api: ▶/run/../h.sock", "LB502", "contains .."),
    ],
)
def test_a_bad_path_is_an_error_with_a_hint_for_its_key(proxy: str, code: str, message: str) -> None:
    text, mark = marked(f"version: 1\nproxies: {{h: {{kind: haproxy, {proxy}}}}}\n")
    _, diagnostics = reading(text)
    assert places(diagnostics) == [f"{mark} {code}"]
    assert message in str(diagnostics[0])


@pytest.mark.parametrize(("size", "right"), [("50M", "50MiB"), ("10MB", "10MiB"), ("1g", "1GiB"), ("8kb", "8KiB")])
def test_a_size_in_other_units_suggests_the_right_unit(size: str, right: str) -> None:
    assert_one_error(
        f'version: 1\nlisteners: {{l: {{bind: "127.0.0.1:1", max_body: ▶{size}}}}}\n', "LB013", f"write {right}"
    )


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("port: 8000", "write address: HOST:PORT"),
        ("host: a", "write address: HOST:PORT"),
        ("gpus: 8", "write gpu_count"),
    ],
)
def test_keys_of_other_formats_suggest_keys_of_a_replica(key: str, hint: str) -> None:
    assert_one_error(f'version: 1\npools: {{p: {{replicas: [{{address: "a:1", ▶{key}}}]}}}}\n', "LB011", hint)


def test_kind_in_upper_case_suggests_lower_case() -> None:
    assert_one_error("version: 1\nproxies: {e: {kind: ▶Envoy}}\n", "LB013", "write envoy; lowercase letters")


def test_key_of_an_entry_suggests_the_list() -> None:
    text = 'version: 1\nlisteners: {l: {bind: "127.0.0.1:1", tls: {certificates: [], ▶certificate: x}}}\n'
    _, diagnostics = reading(text.replace("▶", "").replace("[]", "[{certificate: a, key: b}]"))
    assert [(item.code, item.hint) for item in diagnostics] == [("LB011", "write certificates: [{certificate: …}]")]


@pytest.mark.parametrize("name", ["P", "-p", "p p", "p" * 64, "é", "", "p/q", "p;q"])
def test_a_bad_name_is_an_error(name: str) -> None:
    assert_one_error(
        f'version: 1\npools: {{▶"{name}": {{replicas: [{{address: "a:1"}}]}}}}\n', "LB013", "lowercase letters"
    )


def test_an_unknown_key_with_a_strange_name_is_one_error() -> None:
    assert_one_error('version: 1\n▶"[key]": 1\n', "LB011", "known keys")


def test_all_errors_are_reported_in_one_run() -> None:
    _, diagnostics = reading(
        f"{GROUND}routes:\n  r: {{pool: a, websocket: 1, bogus: 1, retry: {{attempts: x, bogus: 2}}}}\n"
    )
    assert [item.code for item in diagnostics] == ["LB013", "LB011", "LB013", "LB011"]


@pytest.mark.parametrize(("device", "hint"), DEVICES.items(), ids=lambda word: word.replace("▶", ""))
def test_a_bad_device_is_an_error_with_a_hint(device: str, hint: str) -> None:
    assert_one_error(
        f'version: 1\npools: {{p: {{replicas: [{{address: "a:1", devices: ["0", {device}]}}]}}}}\n', "LB013", hint
    )


def test_a_device_is_an_index_a_uuid_or_a_slice() -> None:
    devices = ["0", "15", "0:3", "GPU-5fd4f087-86f3-7a43-b711-4771313afc50", "5fd4f087-86f3-7a43-b711-4771313afc50:2"]
    source, diagnostics = reading(f'version: 1\npools: {{p: {{replicas: [{{address: "a:1", devices: {devices}}}]}}}}\n')
    assert source is not None, diagnostics
    assert source.fleet.pools["p"].replicas[0].devices == devices
