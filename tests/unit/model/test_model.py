from __future__ import annotations

import pytest

from tests.support.fleet import GROUND, marked, places, reading

# What stands in the route `r` or the pool `p`, marked where the fault is, and what is said of it.
ROUTES = {
    "{pool: a, ▶websokcet: true}": ("LB011", "did you mean 'websocket'?"),
    "{pool: a, websocket: ▶yes}": ("LB013", "write true or false, unquoted"),
    '{pool: a, queue_priority: ▶"hihg"}': ("LB013", "did you mean 'high'?"),
    "{pool: a, retry: {attempts: ▶eleven}}": ("LB013", ""),
    '{pool: a, retry: {attempts: ▶"3"}}': ("LB013", "write 3, unquoted"),
    "{pool: a, retry: {attempts: ▶11}}": ("LB016", "at most 10"),
    "{pool: a, listeners: ▶[]}": ("LB016", "at least one entry is needed"),
    "{pool: a, listeners: ▶l}": ("LB013", "write [ … ] or lines that begin with -"),
    "{pool: a, match: ▶/v1}": ("LB013", 'write {path_prefix: "/v1"}'),
    "{pool: a, match: {hosts: [▶a.example:80]}}": ("LB013", 'a name, or "*." before one; no port'),
    "{pool: a, match: {path: ▶v1}}": ("LB013", ""),
    "{pool: a, match: {path: ▶/v1//x}}": ("LB013", ""),
    "{pool: a, match: {path: ▶/v1/../x}}": ("LB013", "write the path that clients send"),
    "{pool: a, match: {path: ▶/v1/%2e}}": ("LB013", ""),
    "{pool: a, match: {path_regex: ▶/(?=x)}}": ("LB013", "RE2 syntax; it must match the whole path"),
    "{pool: a, ▶match: {path: /x, path_prefix: /y}}": ("LB015", "keep one of path, path_prefix or path_regex"),
    "{pool: a, match: {headers: {▶-x: y}}}": ("LB013", ""),
    "{pool: a, match: {headers: {X-A: y, ▶x-a: z}}}": ("LB008", "keep one"),
    '{pool: a, match: {headers: {x: ▶""}}}': ("LB013", ""),
    "{pool: a, ▶pool: b}": ("LB008", ""),
    '{pool: a, pin: [{cookie: c, equals: ▶"a; b", pool: b}]}': (
        "LB013",
        "no space, quote, comma, semicolon or backslash",
    ),
    "{pool: a, pin: [▶{header: x, cookie: c, equals: y, pool: b}]}": ("LB015", "keep one of header or cookie"),
    "{pool: a, pin: [▶{equals: y, pool: b}]}": ("LB014", "one of header or cookie is needed"),
    "{pool: a, pin: [▶{header: x, equals: y}]}": ("LB014", "write pool"),
    "▶{}": ("LB014", "one of pool, split or respond is needed"),
    "{▶split: }": ("LB014", "write one, or leave the key out"),
    "{pool: a, auth: {api_keys: {file: x}, ▶jwt: }}": ("LB014", "write one, or leave the key out"),
    "{pool: a, ▶auth: {forward_tenant: x}}": ("LB014", "api_keys or jwt, or both, or basic or external is needed"),
    "{pool: a, rate_limit: [{by: ▶tennant, rate: 5/s}]}": ("LB013", "did you mean 'tenant'?"),
    "{pool: a, rate_limit: [{by: {header: ▶a b}, rate: 5/s}]}": ("LB013", "{header: NAME}"),
    "{pool: a, rate_limit: [▶{by: all, rate: 5/s, concurrent: 5}]}": ("LB015", "keep one of rate or concurrent"),
    "{respond: {status: ▶99}}": ("LB016", "at least 200"),
    "{▶respond: {status: 200, redirect: https}}": ("LB015", "keep one of status or redirect"),
    "{split: {a: ▶-1, b: 2}}": ("LB016", "at least 0"),
}
POOLS = {
    "weighting: {composite: {▶gqu: 1}}": ("LB013", "did you mean 'gpu'?"),
    "balance: {algorithm: ▶least_conn}": ("LB013", "write least_request"),
    "balance: {algorithm: ▶leastconn}": ("LB013", "write least_request"),
    "balance: {algorithm: ▶roundrobin}": ("LB013", "write round_robin"),
    "balance: {algorithm: ▶ip_hash}": ("LB013", "write hash"),
    "health: {active: {http: ▶/health}}": ("LB013", 'write {path: "/health"}'),
    "balance: {algorithm: ▶least_requests}": ("LB013", "did you mean 'least_request'?"),
    "health: {active: {http: {body_contains: ▶5}}}": ("LB013", "quote it"),
    'health: {active: {grpc: {service: ▶"a b"}}}': ("LB013", ""),
    "health: {active: {▶grpc: , interval: 5s}}": ("LB014", "write one, or leave the key out"),
    "health: {active: {tcp: {}, port: ▶70000}}": ("LB016", "at most 65535"),
    "health: {active: {tcp: ▶true}}": ("LB013", "write tcp: {}"),
    "balance: {algorithm: hash, hash: {key: {source_ip: ▶true}}}": ("LB013", "write source_ip: {}"),
    "weighting: {floor: ▶0%}": ("LB013", "above 0% to 100%"),
    "weighting: {ceiling: ▶0.0%}": ("LB013", "above 0% to 10000%"),
    "locality: {spill_below: ▶101%}": ("LB013", "from 0% to 100%"),
    "telemetry: {sources: [{kind: vllm, url: ▶ftp://a/}]}": ("LB013", ""),
    'telemetry: {sources: [{kind: vllm, url: ▶"http://{hots}/"}]}': (
        "LB013",
        "{address} {host} {port} {name} {device}",
    ),
    "telemetry: {sources: [{kind: vllm, url: ▶http://user:secret@a/}]}": ("LB504", ""),
    'tls: {ca: ▶"data:x"}': ("LB013", ""),
    "tls: {ca: ▶a/../../x}": ("LB502", ""),
}


DEVICES = {
    "▶0": 'quote it: "0"',
    "▶true": "quote it",
    '▶"0:3:1"': "GPU instance 3 of GPU 0",
    '▶"0:"': 'an index "0"',
    '▶"0:x"': 'an index "0"',
    '▶":3"': 'an index "0"',
}


REPLICAS = {
    "{address: ▶http://h:1}": "write h:1",
    "{address: ▶https://user:secret@h/v1}": "write h:443",
    '{address: ▶":80"}': "write host:port",
    '▶"10.0.0.1:8000"': 'write {address: "10.0.0.1:8000"}',
    '{address: "a:1", ▶backup: true}': "write priority: 1",
}


def check(text: str, code: str, hint: str) -> None:
    fleet, mark = marked(text)
    source, found = reading(fleet)
    assert source is None
    assert places(found) == [f"{mark} {code}"]
    assert hint in found[0].hint
    assert "secret" not in str(found[0])


def test_quotes_are_no_advice_for_a_map() -> None:
    fleet, mark = marked(GROUND + "routes:\n  r: {pool: a, sticky_split: {cookie: ▶{name: x}}}\n")
    _, problems = reading(fleet)
    assert places(problems) == [f"{mark} LB013"]
    assert problems[0].hint == ""


@pytest.mark.parametrize(("route", "said"), ROUTES.items(), ids=lambda word: str(word).replace("▶", ""))
def test_a_value_of_a_route_is_refused_where_it_stands_with_what_is_right(route: str, said: tuple[str, str]) -> None:
    before, _, after = route.partition("▶")
    at_key = route.startswith("▶")
    body = f"  ▶r: {after}\n" if at_key else f"  r: {before}▶{after}\n"
    check(f"{GROUND}routes:\n{body}", *said)


@pytest.mark.parametrize(("pool", "said"), POOLS.items(), ids=lambda word: str(word).replace("▶", ""))
def test_a_value_of_a_pool_is_refused_where_it_stands_with_what_is_right(pool: str, said: tuple[str, str]) -> None:
    check(f'version: 1\npools: {{p: {{replicas: [{{address: "a:1"}}], {pool}}}}}\n', *said)


@pytest.mark.parametrize(("replica", "hint"), REPLICAS.items(), ids=lambda word: str(word).replace("▶", ""))
def test_what_other_proxies_call_otherwise_is_answered_with_the_right_word(replica: str, hint: str) -> None:
    check(f"version: 1\npools: {{p: {{replicas: [{replica}]}}}}\n", "LB011" if "backup" in replica else "LB013", hint)


@pytest.mark.parametrize(
    ("proxy", "code", "message"),
    [
        ("config: ▶~/h.cfg", "LB013", "write the path from / on"),
        (
            "config: ▶../h.cfg",
            "LB502",
            "has .. in it (without it: an absolute path, or one below the fleet's directory)",
        ),
        ("config: ▶/etc/../h.cfg", "LB502", "has .. in it"),
        ("runtime_api: ▶~/h.sock", "LB145", "is not an absolute path, and a proxy starts in a directory of its own"),
        ("runtime_api: ▶../h.sock", "LB145", "(a path that begins with /, as /run/haproxy/admin.sock)"),
        ("runtime_api: ▶/run/../h.sock", "LB502", "has .. in it"),
    ],
)
def test_a_path_is_refused_with_what_would_be_right_for_its_key(proxy: str, code: str, message: str) -> None:
    fleet, mark = marked(f"version: 1\nproxies: {{h: {{kind: haproxy, {proxy}}}}}\n")
    _, found = reading(fleet)
    assert places(found) == [f"{mark} {code}"]
    assert message in str(found[0])


@pytest.mark.parametrize(("size", "right"), [("50M", "50MiB"), ("10MB", "10MiB"), ("1g", "1GiB"), ("8kb", "8KiB")])
def test_a_size_in_other_units_is_answered_with_the_right_one(size: str, right: str) -> None:
    check(f'version: 1\nlisteners: {{l: {{bind: "127.0.0.1:1", max_body: ▶{size}}}}}\n', "LB013", f"write {right}")


@pytest.mark.parametrize("name", ["P", "-p", "p p", "p" * 64, "é", "", "p/q", "p;q"])
def test_a_name_has_its_grammar(name: str) -> None:
    check(f'version: 1\npools: {{▶"{name}": {{replicas: [{{address: "a:1"}}]}}}}\n', "LB013", "lower-case letters")


def test_an_unknown_key_with_a_strange_name_is_only_that() -> None:
    check('version: 1\n▶"[key]": 1\n', "LB011", "known here")


def test_all_faults_are_found_in_one_run() -> None:
    _, found = reading(f"{GROUND}routes:\n  r: {{pool: a, websocket: 1, bogus: 1, retry: {{attempts: x, bogus: 2}}}}\n")
    assert [item.code for item in found] == ["LB013", "LB011", "LB013", "LB011"]


@pytest.mark.parametrize(("device", "hint"), DEVICES.items(), ids=lambda word: word.replace("▶", ""))
def test_what_is_no_device_is_refused_and_shown_as_it_must_be_written(device: str, hint: str) -> None:
    check(f'version: 1\npools: {{p: {{replicas: [{{address: "a:1", devices: ["0", {device}]}}]}}}}\n', "LB013", hint)


def test_a_device_is_an_index_a_uuid_or_a_slice_of_either() -> None:
    devices = ["0", "15", "0:3", "GPU-5fd4f087-86f3-7a43-b711-4771313afc50", "5fd4f087-86f3-7a43-b711-4771313afc50:2"]
    source, found = reading(f'version: 1\npools: {{p: {{replicas: [{{address: "a:1", devices: {devices}}}]}}}}\n')
    assert source is not None, found
    assert source.fleet.pools["p"].replicas[0].devices == devices
