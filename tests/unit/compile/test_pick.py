"""The sections `balance.pick`, `queue` and `prompt_tokens`, and the picker's address in the views of proxies."""

from __future__ import annotations

import pytest

from lbctl.ir import settings
from lbctl.ir.address import Address
from lbctl.ir.pools import Balance, PickPolicy, Prefix, QueuePolicy, SessionKey, TokenLimit
from lbctl.ir.snapshot import Snapshot, view
from tests.support.fleet import compiled, compiling

HEADERS = tuple(
    SessionKey(header=name)
    for name in ("x-session-id", "x-claude-code-session-id", "x-session-affinity", "session-id", "session_id",
                 "x-correlation-id")
)  # fmt: skip
BODY = tuple(SessionKey(body=f"$.{name}") for name in ("session_id", "prompt_cache_key", "metadata.user_id", "user"))


def balance_of(text: str) -> Balance:
    fleet, diagnostics = compiling(f'version: 1\npools: {{p: {{replicas: [{{address: "a:1"}}], balance: {text}}}}}\n')
    assert fleet is not None, diagnostics
    return fleet.topology.pools[0].balance


def test_pick_defaults() -> None:
    assert balance_of("{algorithm: pick}") == Balance(
        "least_request", pick=PickPolicy((*HEADERS, *BODY), Prefix(256, 128), bound=1.25, timeout=200)
    )


def test_with_prefix_off_only_body_session_keys_read_bodies() -> None:
    off = balance_of("{algorithm: pick, pick: {prefix: off}}").pick
    assert off is not None
    assert (off.session, off.reads_bodies) == (HEADERS, False)
    written = balance_of("{algorithm: pick, pick: {prefix: off, session: [X-Chat, {body: $.user}]}}").pick
    assert written is not None
    assert (written.session, written.reads_bodies) == ((SessionKey(header="x-chat"), BODY[-1]), True)


def test_otherwise_is_the_algorithm_proxies_render() -> None:
    hashed = balance_of("{algorithm: pick, pick: {otherwise: hash}, hash: {key: {header: x}, bounded_load: 1.5}}")
    assert (hashed.algorithm, hashed.bounded_load, hashed.name) == ("hash", 1.5, "pick")


def policy_of(text: str, pick: str = "{}") -> PickPolicy:
    """Return the picker's settings of a pool with this `queue` and this `balance.pick`."""
    fleet, diagnostics = compiling(
        f'version: 1\npools: {{p: {{replicas: [{{address: "a:1"}}], '
        f"balance: {{algorithm: pick, pick: {pick}}}{text}}}}}\n"
    )
    assert fleet is not None, diagnostics
    policy = fleet.topology.pools[0].balance.pick
    assert policy is not None
    return policy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", QueuePolicy(10_000, 500, "fair", "tenant")),
        ("{max_wait: 2s, max_requests: 7, order: fifo, by: all}", QueuePolicy(2000, 7, "fifo", "all")),
        ("{by: client_ip}", QueuePolicy(10_000, by="client_ip")),
        ("{by: {header: X-User}}", QueuePolicy(10_000, by="header", header="x-user")),
        ("{weights: {b: 2, a: 0.5}}", QueuePolicy(10_000, weights=(("a", 0.5), ("b", 2.0)))),
        (
            "{priority: {header: X-Priority, tenants: {b: low, a: high}}}",
            QueuePolicy(10_000, priority_header="x-priority", priority_tenants=(("a", "high"), ("b", "low"))),
        ),
    ],
)
def test_queue_settings_reach_the_picker(text: str, expected: QueuePolicy) -> None:
    assert policy_of(f", queue: {text}").queue == expected


def test_a_pool_has_no_queue_by_default() -> None:
    policy = policy_of("", "{session: [x-chat], timeout: 150ms}")
    assert (policy.queue, policy.question_headers, policy.longest_wait) == (None, ("x-chat",), 150)


def test_a_question_has_each_header_of_the_queue_once() -> None:
    queue = ", queue: {max_wait: 2s, by: {header: x-user}, priority: {header: x-chat, tenants: {a: high}}}"
    policy = policy_of(queue, "{session: [x-chat], timeout: 150ms}")
    assert (policy.question_headers, policy.longest_wait) == (("x-chat", "x-user"), 2150)


LIMITED = """\
version: 1
routes:
  split:
    match: {path_prefix: /split}
    split: {old: 9, new: 1}
    fallback: spare
    mirror: {pool: copies}
    auth: {api_keys: {file: keys}}
    rate_limit: [{by: all, rate: 9/s}, {by: tenant, prompt_tokens: 200k/m}, {by: client_ip, concurrent: 3}]
  pinned:
    match: {path_prefix: /pinned}
    pool: old
    pin: [{header: x-version, equals: new, pool: new}]
    rate_limit: [{by: {header: X-Team}, prompt_tokens: 5M/h}, {by: {header: x-team}, prompt_tokens: 5000k/h}]
  open: {match: {path_prefix: /open}, pool: old}
pools:
  old: {replicas: [{address: "a:1"}], balance: {algorithm: pick, pick: {session: [x-chat]}}}
  new:
    replicas: [{address: "a:2"}]
    balance: {algorithm: pick, pick: {session: [x-chat]}}
    queue: {by: {header: x-team}}
  spare: {replicas: [{address: "a:3"}], balance: {algorithm: pick, pick: {session: [x-chat]}}}
  copies: {replicas: [{address: "a:4"}]}
"""
BY_TENANT = TokenLimit("split", "tenant", 200_000, 60_000)
BY_TEAM = TokenLimit("pinned", "header", 5_000_000, 3_600_000, "x-team")


def test_prompt_limits_reach_the_picker_of_each_pool_of_a_route() -> None:
    topology = compiled(LIMITED).topology
    policies = {pool.name: pool.balance.pick for pool in topology.pools}
    assert policies.pop("copies") is None
    assert {name: policy and (policy.token_limits, policy.question_headers) for name, policy in policies.items()} == {
        "old": ((BY_TEAM, BY_TENANT), ("x-chat", "x-team")),
        "new": ((BY_TEAM, BY_TENANT), ("x-chat", "x-team")),
        "spare": ((BY_TENANT,), ("x-chat",)),
    }


def test_prompt_limits_are_not_limits_that_proxies_count() -> None:
    fleet = compiled(LIMITED)
    routes = {route.name: route for route in fleet.topology.routes}
    assert {name: route.prompt_limits for name, route in routes.items()} == {
        "open": (), "pinned": (BY_TEAM,), "split": (BY_TENANT,),
    }  # fmt: skip
    assert [(item.requests, item.concurrent) for item in routes["split"].rate_limits] == [(9, 0), (0, 3)]
    assert routes["split"].limits_by_tenant
    path = ("routes", "split", "rate_limit", 1, "concurrent")
    assert str(fleet.sources.position(path)) == "-:9:105", "the third limit in the file"


def test_prompt_limits_are_shown_as_in_the_file() -> None:
    (split,) = (route for route in compiled(LIMITED).topology.routes if route.name == "split")
    shown = settings.of_route(split, ())
    assert [value for path, value in shown.items() if path[2] == "rate_limit"] == [
        "by all: 9/s, burst 9", "by client_ip: 3 at once", "by tenant: 200k/m prompt tokens",
    ]  # fmt: skip


def test_only_proxies_with_picked_pools_get_the_picker_address() -> None:
    fleet, diagnostics = compiling(
        'version: 1\nlisteners: {a: {bind: "127.0.0.1:1"}, b: {bind: "127.0.0.1:2"}}\n'
        "routes: {r: {listeners: [a], pool: p}, s: {listeners: [b], pool: q}}\n"
        'pools: {p: {replicas: [{address: "a:1"}], balance: {algorithm: pick}}, q: {replicas: [{address: "a:2"}]}}\n'
        "proxies: {x: {kind: envoy, listeners: [a]}, y: {kind: envoy, listeners: [b]}}\n"
        'control: {picker: {bind: "127.0.0.1:7"}}\n'
    )
    assert fleet is not None, diagnostics
    x, y = fleet.topology.proxies
    assert view(Snapshot(fleet.topology), x).picker == Address("127.0.0.1", 7)
    assert view(Snapshot(fleet.topology, picker=Address("127.0.0.1", 8)), x).picker == Address("127.0.0.1", 8)
    assert view(Snapshot(fleet.topology), y).picker is None


@pytest.mark.parametrize(
    ("algorithm", "written", "seconds"), [("pick", "", 1), ("pick", "interval: 5s, ", 5), ("random", "", 5)]
)
def test_a_picked_pool_is_scraped_every_second_by_default(algorithm: str, written: str, seconds: int) -> None:
    sources = f"{{{written}sources: [{{kind: vllm, url: 'http://{{host}}:{{port}}/metrics'}}]}}"
    fleet, diagnostics = compiling(
        f'version: 1\npools: {{p: {{replicas: [{{address: "a:1", telemetry: {sources}}}], telemetry: {sources}, '
        f"balance: {{algorithm: {algorithm}}}}}}}\n"
    )
    assert fleet is not None, diagnostics
    pool = fleet.topology.pools[0]
    assert [item.telemetry and item.telemetry.interval for item in (pool, *pool.replicas)] == [seconds * 1000] * 2


CLASHING = """\
version: 1
listeners: {l: {bind: "LISTENER"}}
routes: {r: {pool: p}}
pools: {p: {replicas: [{address: "a:1"}], balance: {algorithm: ALGORITHM}}}
proxies: {x: {kind: envoy, admin: "127.0.0.1:9901"}}
"""


def clash_errors(control: str = "", listener: str = "127.0.0.1:8080", algorithm: str = "pick") -> list[str]:
    """Return the errors of a fleet with this section `control`, without the hints."""
    text = CLASHING.replace("LISTENER", listener).replace("ALGORITHM", algorithm) + control
    return [str(item).rpartition(" (")[0] for item in compiling(text)[1] if item.severity == "error"]


@pytest.mark.parametrize(
    ("bind", "owner"),
    [
        ("127.0.0.1:18000", "127.0.0.1:18000 is already the address of xDS"),
        ("127.0.0.1:17999", "127.0.0.1:18000 is already the address of xDS"),
        ("0.0.0.0:18080", "127.0.0.1:18080 is already the address of the API"),
        ("127.0.0.1:18079", "127.0.0.1:18080 is already the address of the API"),
        ("127.0.0.1:8080", "127.0.0.1:8080 is already the address of listener l"),
        ("10.0.0.5:8079", "127.0.0.1:8080 is already the address of listener l"),
        ("127.0.0.1:9900", "127.0.0.1:9901 is already the address of the admin of proxy x"),
    ],
)
def test_a_picker_port_in_use_elsewhere_is_an_error(bind: str, owner: str) -> None:
    control = f'control: {{picker: {{bind: "{bind}"}}}}\n'
    assert clash_errors(control) == [f"-:6:26: error LB112 control.picker.bind: {owner}"]
    assert clash_errors(control, algorithm="random") == []


@pytest.mark.parametrize(
    ("bind", "problem"),
    [
        ("127.0.0.1:65535", "there is no port after 127.0.0.1:65535"),
        ("[::1]:65535", "there is no port after [::1]:65535"),
        ("unix:/run/p.sock", "unix:/run/p.sock is a unix socket"),
    ],
)
def test_a_picker_address_without_a_next_port_is_an_error(bind: str, problem: str) -> None:
    _, (error,) = compiling(f'version: 1\ncontrol: {{picker: {{bind: "{bind}"}}}}\n')
    assert str(error) == (
        "-:2:26: error LB307 control.picker.bind: the picker needs its port and the next port, which proxies query "
        f"over HTTP: {problem} (write an IP address with a port from 1 to 65534, for example 127.0.0.1:18001)"
    )


@pytest.mark.parametrize(
    ("port", "control", "owner"),
    [
        (9001, 'control: {picker: {bind: "0.0.0.0:9001"}}\n', "the picker: control.picker.bind, see -:5:26"),
        (
            9001,
            'control: {picker: {bind: "127.0.0.1:9000"}}\n',
            "the picker's HTTP endpoint, on the port after its address: control.picker.bind, see -:5:26",
        ),
        (18001, "", "the picker: control.picker.bind, by default"),
        (9001, 'control: {api: {bind: "127.0.0.1:9001"}}\n', "the API of lbctl serve: control.api.bind, see -:5:23"),
    ],
)
def test_a_replica_at_an_lbctl_address_is_a_warning(port: int, control: str, owner: str) -> None:
    pool = f'pools:\n  p:\n    {{balance: {{algorithm: pick}}, replicas: [{{address: "127.0.0.1:{port}"}}]}}\n'
    _, (warning,) = compiling(f"version: 1\n{pool}{control}")
    place, message = str(warning).split(" warning LB122 pools.p.replicas[0].address: ")
    assert place == "-:4:55:"
    hint = "set the address on which the replica accepts requests"
    assert message == f"127.0.0.1:{port} is the address of {owner} ({hint})"


@pytest.mark.parametrize(
    ("more", "owner"),
    [
        (
            "a: {kind: haproxy, agent_check: {bind: '127.0.0.1:8999'}}",
            "127.0.0.1:9000 is already the address of the agent",
        ),
        (
            "a: {kind: haproxy, agent_check: {bind: '127.0.0.1:9001'}}",
            "127.0.0.1:9001 is already the address of the agent",
        ),
    ],
)
def test_the_picker_cannot_use_a_port_of_an_agent_check(more: str, owner: str) -> None:
    text = CLASHING.replace("LISTENER", "127.0.0.1:8080").replace("ALGORITHM", "pick")
    text = text.replace('[{address: "a:1"}]', '[{address: "a:1"}, {address: "b:1"}]')
    text = text.replace("proxies: {", f"proxies: {{{more}, ") + 'control: {picker: {bind: "127.0.0.1:9000"}}\n'
    assert [str(item) for item in compiling(text)[1] if owner in str(item) and item.code == "LB112"]


def test_the_picker_cannot_use_the_port_of_the_traffic_log() -> None:
    control = 'control: {picker: {bind: "127.0.0.1:9000"}, logs: {bind: "127.0.0.1:PORT"}}\n'
    message = "-:6:26: error LB112 control.picker.bind: 127.0.0.1:9001 is already the address of the traffic log"
    assert clash_errors(control.replace("PORT", "9001")) == [message]
    assert clash_errors(control.replace("PORT", "9000")) == []


@pytest.mark.parametrize(
    ("listener", "owner"),
    [
        ("127.0.0.1:18001", "127.0.0.1:18001 is already the address of the picker"),
        ("0.0.0.0:18002", "127.0.0.1:18002 is already the address of the picker's HTTP"),
    ],
)
def test_a_listener_at_a_default_picker_address_is_an_error(listener: str, owner: str) -> None:
    assert clash_errors(listener=listener) == [f"-:2:23: error LB112 listeners.l.bind: {owner}"]


@pytest.mark.parametrize("listener", ["10.0.0.5:18001", "[::]:18001", "127.0.0.1:18003"])
def test_the_picker_port_is_free_on_other_addresses(listener: str) -> None:
    assert clash_errors(listener=listener) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{algorithm: pick, hash: {key: {header: x}}}",
            "a hash key is set, but `pick.otherwise` is least_request (pick: {otherwise: hash})",
        ),
        (
            "{algorithm: random, hash: {key: {header: x}}}",
            "a hash key is set, but the algorithm is random (algorithm: hash)",
        ),
        (
            "{algorithm: pick, pick: {otherwise: hash}}",
            "`pick.otherwise` is hash, but no hash key is set (hash: {key: {header: x}})",
        ),
        (
            "{algorithm: pick, pick: {prefix: on}}",
            "(write off, or a map such as {block: 256, blocks: 128}; if it is not set, prefixes are matched)",
        ),
        (
            "{algorithm: pick, pick: {session: [{header: x-chat}]}}",
            "pick.session[0]: {'header': 'x-chat'} is not a session ID source (write x-chat, or {body: $.FIELD})",
        ),
        (
            "{algorithm: pick, pick: {session: [{body: chat}]}}",
            "session[0].body: {'body': 'chat'} is not a session ID source (write a header name or {body: $.FIELD})",
        ),
    ],
)
def test_balance_errors_use_the_keys_of_the_file(text: str, message: str) -> None:
    _, diagnostics = compiling(f'version: 1\npools: {{p: {{replicas: [{{address: "a:1"}}], balance: {text}}}}}\n')
    (error,) = (str(item) for item in diagnostics if item.severity == "error")
    assert error.endswith(message)
