from __future__ import annotations

import re
from pathlib import Path

import pytest

import lbctl
from tests.support.fleet import GROUND, compiling, marked, places

ROUTES = {
    "{pool: ▶c}": "LB101",
    "{split: {a: 1, ▶c: 1}}": "LB101",
    "{pool: a, fallback: ▶c}": "LB101",
    "{pool: a, mirror: {pool: ▶c}}": "LB101",
    "{pool: a, pin: [{header: x, equals: y, pool: ▶c}]}": "LB101",
    "{pool: a, listeners: [l, ▶m]}": "LB102",
    "{respond: {status: 200}, ▶pin: [{header: x, equals: y, pool: a}]}": "LB106",
    "{respond: {status: 200}, ▶rewrite: {host: a.b}}": "LB106",
    "{respond: {redirect: https}, ▶fallback: a}": "LB106",
    "{respond: {redirect: https}, ▶mirror: {pool: a}}": "LB106",
    "{pool: a, retry: {▶busy_statuses: [503]}}": "LB155",
    "{pool: a, ▶sticky_split: {cookie: c}}": "LB107",
    "{pool: a, fallback: ▶a}": "LB108",
    "{split: {a: 1}, fallback: ▶b, pin: [{header: x, equals: y, pool: b}]}": "LB108",
    "{pool: a, match: {path: /x}, rewrite: {path_prefix: ▶/y}}": "LB109",
    "{pool: a, headers: {request: {set: {X-A: b}, remove: [▶x-a]}}}": "LB111",
    "{pool: a, headers: {response: {set: {x-a: b}, remove: [y, ▶X-A]}}}": "LB111",
    '{pool: a, headers: {request: {set: {host: ▶"{tenant}.b"}}}}': "LB141",
    '{respond: {status: 200}, headers: {response: {set: {x-a: ▶"{pool}"}}}}': "LB141",
    **{
        f"{{pool: a, auth: {{external: {{url: http://127.0.0.1:1, {names}}}}}}}": code
        for names, code in (
            ("send: [▶content-length]", "LB119"),
            ("accept: [▶host]", "LB119"),
            ("accept: [▶authorization]", "LB120"),
            ("accept: [x-a, ▶x-forwarded-for]", "LB120"),
        )
    },
    "{pool: a, headers: {request: {remove: [▶host]}}}": "LB119",
    "{pool: a, headers: {response: {set: {▶content-length: x}}}}": "LB119",
    "{pool: a, auth: {api_keys: {file: k, header: ▶Transfer-Encoding}}}": "LB119",
    "{pool: a, auth: {api_keys: {file: k, headers: [x-a, ▶host]}}}": "LB119",
    "{pool: a, auth: {api_keys: {file: k, headers: [x-a, ▶x-model]}}}": "LB120",
    "{pool: a, auth: {api_keys: {file: k}, forward_tenant: ▶content_length}}": "LB119",
    "{pool: a, auth: {api_keys: {file: k}, forward_tenant: ▶host}}": "LB119",
    "{pool: a, auth: {api_keys: {file: k}, forward_tenant: ▶proxy-connection}}": "LB119",
    "{pool: a, auth: {api_keys: {file: k}, forward_tenant: ▶x-envoy-retry-on}}": "LB119",
    "{pool: a, auth: {api_keys: {file: k}, forward_tenant: ▶x-lbctl-internal-tenant}}": "LB119",
    "{pool: a, auth: {api_keys: {file: k, header: x-key}, forward_tenant: ▶Authorization}}": "LB120",
    "{pool: a, auth: {api_keys: {file: k, header: x-key}, forward_tenant: ▶x_key}}": "LB120",
    "{pool: a, auth: {api_keys: {file: k}, forward_tenant: ▶x-request-id}}": "LB120",
    "{pool: a, auth: {api_keys: {file: k}, forward_tenant: ▶x-forwarded-for}}": "LB120",
    "{pool: a, auth: {api_keys: {file: k}, forward_tenant: ▶x-model}}": "LB120",
    "{pool: a, auth: {api_keys: {file: k, header: ▶x-request-id}}}": "LB120",
    "{pool: a, auth: {api_keys: {file: k}, forward_tenant: x-t}, headers: {request: {set: {▶X-T: b}}}}": "LB120",
    "{pool: a, auth: {api_keys: {file: k}, forward_tenant: x-t}, headers: {request: {remove: [▶x_t]}}}": "LB120",
    "{▶split: {a: 0, b: 0}}": "LB207",
    "{▶split: {}}": "LB207",
    "{pool: a, regions: ▶[mars]}": "LB115",
    "{pool: a, ▶rate_limit: [{by: tenant, rate: 5/s}]}": "LB506",
    "{pool: a, rate_limit: [{by: tenant, rate: 5/s}], auth: {▶jwt: {issuer: i, jwks_file: f}}}": "LB506",
    "{pool: a, rate_limit: [{by: all, rate: 5/s, ▶tenants: {gold: 50/s}}]}": "LB509",
    "{pool: a, auth: {api_keys: {file: k}}, rate_limit: [{by: tenant, concurrent: 5, ▶tenants: {a: 5/s}}]}": "LB509",
    "{pool: a, rate_limit: [{by: all, ▶prompt_tokens: 5k/s}]}": "LB517",
    "{pool: a, retry: {backoff: {base: 1s, max: ▶10ms}}}": "LB305",
    "{pool: a, timeouts: {request: 30s, attempt: ▶30s}}": "LB165",
    "{split: {a: 1}, rollout: {to: ▶b, steps: [{percent: 100%}]}}": "LB701",
    **{
        "{split: {a: 1}, rollout: {to: a, steps: [{percent: 100%}], analysis: {metrics: [METRICS]}}}".replace(
            "METRICS", metrics
        ): "LB705"
        for metrics in (
            '{name: m, source: "http://p:1", query: ▶up, max_ratio: 2}',
            '{name: m, source: ▶"http://{host}:1", query: "x{pool}", max_ratio: 2}',
            '{name: m, source: "http://p", query: "x{pool}", max_ratio: 2}, {name: ▶m, source: "http://p", query: "{pool}", max_ratio: 2}',  # noqa: E501 -- two metrics of one name
        )
    },
}
POOLS = {
    "affinity: {▶header: mcp-session-id}, balance: {algorithm: pick}": "LB161",
    "affinity: {header: ▶Connection}": "LB119",
    "affinity: {header: ▶authorization}": "LB120",
    "balance: {algorithm: ▶hash}": "LB301",
    "balance: {hash: ▶{key: {header: x}}}": "LB301",
    "balance: {pick: ▶{bound: 1.5}}": "LB306",
    "balance: {algorithm: pick, pick: {bound: ▶1}}": "LB302",
    "▶queue: {max_wait: 5s}": "LB319",
    "balance: {algorithm: pick}, queue: {by: all, ▶weights: {gold: 2}}": "LB320",
    "balance: {algorithm: pick}, queue: {order: fifo, ▶weights: {gold: 2}}": "LB320",
    "balance: {algorithm: pick}, queue: {by: {header: ▶x-lbctl-client}}": "LB119",
    "balance: {algorithm: pick}, queue: {priority: {header: ▶host, tenants: {gold: high}}}": "LB119",
    "balance: {algorithm: pick, pick: {otherwise: ▶hash}}": "LB301",
    "balance: {algorithm: hash, hash: {key: {header: x}, bounded_load: ▶1}}": "LB302",
    "balance: {algorithm: hash, hash: {key: {header: x}}}, slow_start: ▶{window: 5s}": "LB303",
    "health: {active: {tcp: {}, interval: 1s, timeout: ▶2s}}": "LB304",
    "upstream: {host: a.example}, ▶credentials: {header: authorization, file: k}": "LB160",
    "credentials: {header: ▶host, file: k}": "LB119",
    "health: {active: {http: {}}, ▶fail_open: true, load_shedding: {}}": "LB309",
    "tls: ▶{certificate: tls/a.crt}": "LB505",
    "tls: ▶{key: tls/a.key}": "LB505",
    "upstream: {host: api, headers: {▶Content-Length: '1'}}": "LB119",
    "upstream: {host: api, headers: {▶host: other}}": "LB119",
    "upstream: {host: api, headers: {▶x-envoy-retry-on: 5xx}}": "LB119",
    "upstream: {host: api, headers: {Authorization: ▶Bearer abc}}": "LB151",
    "upstream: {host: api, headers: {x-api-key: ▶abc}}": "LB151",
    "protocol: grpc, ▶upstream: {host: api}": "LB152",
    "upstream: {host: api.example}, health: {▶agent: {port: 9500}}": "LB169",
}
_NO_REPLICA = (
    *("169.254.169.254", "[fe80::1]", "[fd00:ec2::254]", "[::ffff:169.254.169.254]", "[::169.254.169.254]"),
    *("[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "metadata.google.internal", "100.100.100.200"),
    *("0.0.0.0", "224.0.0.1", "[::]"),
)
PICKING = (
    'listeners: {l: {bind: "127.0.0.1:80"}}\nroutes: {r: {pool: p}}\n'
    'pools: {p: {replicas: [{address: "a:1"}], balance: {algorithm: pick}}}\n'
)
PICKED = (
    'pools: {p: {replicas: [{address: "a:1"}], balance: {algorithm: pick}}, q: {replicas: [{address: "b:1"}]}}\n'
    "routes: {r: {pool: p, ROUTE}}"
)
REMOTE_PICKER = 'control: {picker: {bind: "0.0.0.0:7"}, xds: {tls: {certificate: c, key: k, client_ca: a}}}'
WHOLE = {
    **{f'pools: {{p: {{replicas: [{{address: ▶"{host}:80"}}]}}}}': "LB122" for host in _NO_REPLICA},
    'pools: {p: {replicas: [{address: "a:1", ▶agent_port: 9502}]}}': "LB169",
    'pools: {p: {replicas: [{address: "a:1"}, {address: ▶"unix:/a.sock"}], health: {agent: {port: 9500}}}}': "LB169",
    'pools: {p: {replicas: [{address: ▶"127.0.0.1:18080"}]}}': "LB122",
    'pools: {p: {replicas: [{address: ▶"127.0.0.1:18001"}]}}': "LB122",
    'pools: {p: {replicas: [{address: ▶"127.0.0.1:18002"}]}}': "LB122",
    'pools: {p: {replicas: [{address: ▶"127.0.0.1:9113"}]}}\n'
    'proxies: {n: {kind: nginx, metrics: "127.0.0.1:9113"}}': "LB122",
    'pools: {p: {replicas: [{address: ▶"unix:/run/h.sock"}]}}\n'
    "proxies: {h: {kind: haproxy, runtime_api: /run/h.sock}}": "LB122",
    'pools: {p: {replicas: [{address: ▶"localhost:9901"}]}}\n'
    'proxies: {e: {kind: envoy, admin: "127.0.0.1:9901"}}': "LB122",
    'proxies: {e: {kind: envoy, admin: ▶"0.0.0.0:9901"}}': "LB515",
    'proxies: {e: {kind: envoy, admin: ▶"10.0.0.1:9901"}}': "LB515",
    'pools: {p: {replicas: [{address: "a:80"}], balance: {algorithm: pick}}}\n'
    "proxies: {h: {kind: haproxy, config: etc/h.cfg}, i: {kind: haproxy, config: ▶etc/./i.cfg}}": "LB124",
    'pools: {p: {replicas: [{address: "a:80"}], affinity: {cookie: c}}}\n'
    "proxies: {h: {kind: haproxy, config: h.cfg, runtime_api: /h}, "
    "i: {kind: haproxy, config: ▶i.cfg, runtime_api: /i}}": "LB124",
    "proxies: {h: {kind: haproxy, runtime_api: ▶run/h.sock}}": "LB145",
    "proxies: {▶g: {kind: gateway-api}}": "LB170",
    "proxies: {g: {kind: gateway-api, kubernetes: {namespace: ml}, ▶slots: 4}}": "LB170",
    "proxies: {n: {kind: nginx, ▶kubernetes: {namespace: ml}}}": "LB170",
    "proxies: {n: {kind: nginx, config: ▶n.conf, reload: {command: [a]}}}": "LB145",
    'control: {store: {url: "kubernetes://ml/lbctl", ▶key_prefix: x}}': "LB125",
    'control: {store: {url: "kubernetes://ml/lbctl", ▶password: {file: p}}}': "LB125",
    'control: {store: {url: "redis://h", ▶tls: {ca: c}}}': "LB125",
    'control: {store: {url: "redis+sentinel://h,i/n", ▶tls: {ca: c}}}': "LB125",
    'control: {store: {url: "redis://h", ▶user: u}}': "LB125",
    'control: {store: {url: "kubernetes://ml/lbctl", ▶user: u}}': "LB125",
    'listeners: {l: {bind: "127.0.0.1:80"}, m: {bind: ▶"127.0.0.1:80"}}': "LB112",
    'listeners: {l: {bind: "127.0.0.1:80"}}\nproxies: {e: {kind: nginx, metrics: ▶"127.0.0.1:80"}}': "LB112",
    'listeners: {l: {bind: "127.0.0.1:80", tls: {certificates: [{certificate: a, key: b}], client_crl: ▶c}}}': "LB142",
    'listeners: {l: {bind: "127.0.0.1:80"}}\n'
    "routes: {r: {respond: {status: 200}}, s: ▶{respond: {status: 200}}}": "LB116",
    'listeners: {l: {bind: "127.0.0.1:80", request_id: ▶content-length}}': "LB119",
    'listeners: {l: {bind: "127.0.0.1:80", request_id: ▶authorization}}': "LB120",
    'listeners: {l: {bind: "127.0.0.1:80", client_address: {trusted: [10.0.0.0/8], header: ▶upgrade}}}': "LB119",
    'listeners: {l: {bind: "127.0.0.1:80", client_address: {trusted: [10.0.0.0/8], header: ▶x-envoy-a}}}': "LB119",
    'listeners: {l: {bind: "127.0.0.1:80", client_address: {trusted: [10.0.0.0/8], header: ▶x-request-id}}}': "LB120",
    **{
        f'listeners: {{l: {{bind: "127.0.0.1:80", client_address: {{trusted: ["::/0"], forward: [▶{name}]}}}}}}': code
        for name, code in (("x-forwarded-for", "LB120"), ("authorization", "LB120"), ("x-envoy-a", "LB119"))
    },
    'listeners: {l: {bind: "127.0.0.1:80", request_id: ▶x-real-ip}}': "LB120",
    'listeners: {l: {bind: "127.0.0.1:80", request_id: x-id}}\npools: {p: {replicas: [{address: "a:1"}]}}\n'
    "routes: {r: {pool: p, auth: {api_keys: {file: k}, forward_tenant: ▶X-Id}}}": "LB120",
    'listeners: {l: {bind: "127.0.0.1:80"}}\npools: {p: {replicas: [{address: "a:1"}]}}\n'
    "routes: {r: {pool: p, auth: {api_keys: {file: k}, forward_tenant: ▶x-key}},\n"
    "  s: {pool: p, match: {path: /s}, auth: {api_keys: {file: k, header: x-key}}}}": "LB120",
    **{
        'pools: {p: {replicas: [{address: "a:1", region: moon}]}, q: {replicas: [{address: "b:1", region: mars}]}}\n'
        f"routes: {{r: {{pool: p, regions: [moon], {key}}}}}": "LB115"
        for key in ("fallback: ▶q", "mirror: {pool: ▶q}")
    },
    'pools: {p: {replicas: [{address: "a:1", region: moon}]}, q: {discovery: {dns: {name: a.b, port: 80}}}}\n'
    "routes: {r: {pool: p, regions: [moon], fallback: ▶q}}": "LB115",
    **{
        PICKED.replace("ROUTE", route): code
        for route, code in (
            ("▶rate_limit: [{by: tenant, prompt_tokens: 5k/s}]", "LB506"),
            ("rate_limit: [{by: all, prompt_tokens: 5k/s, ▶tenants: {gold: 5/s}}]", "LB509"),
            ("rate_limit: [{by: {header: ▶host}, prompt_tokens: 5k/s}]", "LB119"),
            ("fallback: q, rate_limit: [{by: all, rate: 5/s}, {by: all, ▶prompt_tokens: 5k/s}]", "LB517"),
            ("pin: [{header: x, equals: y, pool: q}], rate_limit: [{by: all, ▶prompt_tokens: 5k/s}]", "LB517"),
        )
    },
    "proxies: {p: {kind: ▶apache}}": "LB103",
    'control: {picker: {bind: ▶"127.0.0.1:65535"}}': "LB307",
    'control: {picker: {bind: ▶"unix:/run/x"}}': "LB307",
    "proxies: {p: {kind: nginx, listeners: [▶m]}}": "LB102",
    'proxies: {p: {kind: nginx, version: ▶"1.20"}}': "LB113",
    "pools: {p: {discovery: {dns: {name: a.b, port: 80, gpu: ▶nope}}}}": "LB204",
    "pools: {p: {discovery: {kubernetes: {namespace: n, service: s, port: a, context: ▶c}}}}": "LB123",
}


def test_a_missing_targets_file_is_not_outside_a_region() -> None:
    pools = 'pools: {p: {replicas: [{address: "a:1", region: moon}]}, q: {discovery: {file: {path: none.json}}}}\n'
    fleet, diagnostics = compiling(f"version: 1\n{pools}routes: {{r: {{pool: p, regions: [moon], fallback: q}}}}\n")
    assert fleet is not None, diagnostics


@pytest.mark.parametrize("proxy", ["kind: haproxy", "kind: nginx", "kind: envoy"])
def test_a_picker_beyond_loopback_is_accepted(proxy: str) -> None:
    fleet, diagnostics = compiling(f"version: 1\n{PICKING}proxies: {{p: {{{proxy}}}}}\n{REMOTE_PICKER}\n")
    assert fleet is not None, diagnostics


def assert_one_diagnostic(text: str, code: str) -> None:
    source, mark = marked(text)
    fleet, diagnostics = compiling(source)
    assert places(diagnostics) == [f"{mark} {code}"]
    assert (fleet is None) == (diagnostics[0].severity == "error")


@pytest.mark.parametrize(("route", "code"), ROUTES.items(), ids=lambda word: str(word).replace("▶", ""))
def test_a_contradictory_route_is_an_error_at_its_position(route: str, code: str) -> None:
    assert_one_diagnostic(f"{GROUND}routes:\n  r: {route}\n", code)


@pytest.mark.parametrize(("pool", "code"), POOLS.items(), ids=lambda word: str(word).replace("▶", ""))
def test_a_contradictory_pool_is_an_error_at_its_position(pool: str, code: str) -> None:
    assert_one_diagnostic(f'version: 1\npools: {{p: {{replicas: [{{address: "a:1"}}], {pool}}}}}\n', code)


@pytest.mark.parametrize(("section", "code"), WHOLE.items(), ids=lambda word: str(word).replace("▶", ""))
def test_contradictory_sections_are_an_error_at_their_position(section: str, code: str) -> None:
    assert_one_diagnostic(f"version: 1\n{section}\n", code)


def test_all_errors_are_reported_in_file_order() -> None:
    _, diagnostics = compiling(
        f"{GROUND}routes:\n  r: {{pool: c}}\n  s: {{match: {{path: /}}, pool: d, fallback: e}}\n"
    )
    assert places(diagnostics) == ["7:13 LB101", "8:31 LB101", "8:44 LB101"]


def test_an_almost_correct_name_suggests_the_right_one() -> None:
    _, diagnostics = compiling(
        "version: 1\npools: {llama: {discovery: {file: {path: x}}}}\nroutes: {r: {pool: lama}}\n"
    )
    assert diagnostics[0].hint == "did you mean 'llama'?"


def test_every_code_of_the_compiler_has_a_test() -> None:
    package = Path(lbctl.__file__).parent
    written = {code for file in (package / "compile").glob("*.py") for code in re.findall(r"LB\d{3}", file.read_text())}
    here = {*ROUTES.values(), *POOLS.values(), *WHOLE.values()}
    in_pools = {"LB104", "LB105", "LB153", "LB203", "LB204", "LB205", "LB603"}  # test_pools.py
    in_drained = {"LB208"}  # test_drained.py
    in_secrets = {"LB121", "LB143", "LB150", "LB503", "LB507", "LB508"}  # test_secrets.py
    in_bad_input = {"LB110", "LB114", "LB123", "LB502", "LB601", "LB602"}  # tests/unit/model/test_bad_input.py
    in_two_directories = {"LB118"}  # test_two_directories.py
    in_borders = {"LB514"}  # tests/security/test_borders_files.py
    in_own_lines = {"LB130", "LB131", "LB132", "LB134"}  # tests/unit/targets/test_own_lines.py
    assert (
        written
        == here | in_pools | in_drained | in_secrets | in_bad_input | in_own_lines | in_two_directories | in_borders
    )


@pytest.mark.parametrize(
    "host", ["10.0.0.9", "100.64.0.1", "169.253.1.1", "[2001:db8::1]", "vllm-0.ml.svc", "172.16.0.1"]
)
def test_ordinary_addresses_are_accepted_for_replicas(host: str) -> None:
    _, diagnostics = compiling(f'version: 1\npools: {{p: {{replicas: [{{address: "{host}:18080"}}]}}}}')
    assert diagnostics == []
