"""Properties that all kinds of Kubernetes gateways share. A new kind in the registry is tested here without changes."""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from lbctl.base import ports
from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.cli import run
from lbctl.cli.proxy import chosen
from lbctl.ir.routes import Forward
from lbctl.ir.snapshot import Snapshot
from lbctl.targets import target
from lbctl.targets.assess import capability_at
from lbctl.targets.load import Loaded, load
from lbctl.targets.prepare import placed, prepare
from lbctl.targets.target import NotYet, Unsupported
from lbctl.targets.usage import cleartext, used
from tests.support.fleet import marked
from tests.support.gateway_kinds import KINDS, Rule, of_kind, rules, shares
from tests.support.kubernetes_objects import VERSIONS, problems
from tests.support.paths import FIXTURES

HEAD = """version: 1
listeners: {web: {bind: "0.0.0.0:80"}}
"""
ROUTE = "routes: {r: {match: {path_prefix: /v1}, pool: p}}\n"
EDGE = "proxies: {edge: {kind: gateway-api, kubernetes: {namespace: ml, gateway_class: eg}}}\n"
PEM = "-----BEGIN {0}PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END {0}PRIVATE KEY-----\n"
every_kind = pytest.mark.parametrize("kind", KINDS)


@dataclass(frozen=True)
class Gateway:
    """The result of rendering the only entry of a kind."""

    kind: str
    loaded: Loaded
    version: tuple[int, ...]
    objects: list[dict[str, Any]]
    findings: list[Diagnostic]


def loading(fleet: str, kind: str) -> tuple[Loaded | None, list[Diagnostic]]:
    """Return the fleet for the kind, and its errors."""
    diagnostics = Diagnostics()
    loaded = load(["-"], diagnostics, stdin=io.BytesIO(of_kind(fleet, kind).encode()))
    return loaded, [item for item in diagnostics if item.severity == "error"]


def rendering(fleet: str, kind: str) -> Gateway:
    loaded, errors = loading(fleet, kind)
    assert loaded is not None, errors
    topology = loaded.compiled.topology
    proxy = chosen(topology, kind, None)
    prepared = prepare(target(kind), loaded.compiled, proxy, Snapshot(topology, secrets=loaded.secrets))
    bundle = prepared.target.render(prepared.view)
    findings = [*prepared.losses, *placed(bundle, loaded.compiled)]
    return Gateway(kind, loaded, proxy.version, list(yaml.safe_load_all(bundle.main.text)), findings)


@every_kind
def test_secrets_of_listeners_and_pools_have_distinct_names(kind: str) -> None:
    listeners = "\n".join(
        f'  {name}: {{bind: "0.0.0.0:{443 + index}", tls: {{certificates: [{{certificate: {name}.crt, key: a.key}}]}}}}'
        for index, name in enumerate(("client", "p-client", "q-ca"))
    )
    tls = "tls: {ca: ca.pem, server_name: a.example.com"
    fleet = f"""version: 1
listeners:
{listeners}
routes:
  r: {{match: {{path_prefix: /p}}, pool: p}}
  s: {{match: {{path_prefix: /q}}, pool: q}}
pools:
  p: {{replicas: [{{address: "10.0.0.1:80"}}], {tls}, certificate: c.crt, key: c.key}}}}
  q: {{replicas: [{{address: "10.0.0.2:80"}}], {tls}{", certificate: c.crt, key: c.key" * (kind == "gateway-api")}}}}}
"""
    loaded, errors = loading(fleet + EDGE.replace("kind: gateway-api", 'kind: gateway-api, version: "1.6"'), kind)
    assert loaded is not None, errors
    topology = loaded.compiled.topology
    prepared = prepare(target(kind), loaded.compiled, chosen(topology, kind, None), Snapshot(topology))
    commands = [item.command(str) for item in prepared.target.render(prepared.view).prerequisites]
    names = [command.split()[6] for command in commands if " create secret " in command]
    assert len(names) >= 4
    assert len(set(names)) == len(names)


# ── Pickers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_PICKED = (
    "{balance: {algorithm: pick}, discovery: {kubernetes: {namespace: ml, service: %s, port: 80, selector: {a: b}}}}"
)


@pytest.mark.parametrize("kind", ["gateway-api", "envoy-gateway"])
def test_pickers_have_the_port_of_the_chart(kind: str) -> None:
    control = 'control: {picker: {bind: "127.0.0.1:19001"}}\n'
    routes = "routes: {r: {match: {path_prefix: /v1}, pool: p}, s: {match: {path_prefix: /v2}, pool: q}}\n"
    pools = f"pools: {{p: {_PICKED % 's'}, q: {_PICKED % 't'}}}\n"
    objects = rendering(HEAD + control + routes + pools + EDGE, kind).objects
    inference_pools = [item["spec"]["endpointPickerRef"] for item in objects if item["kind"] == "InferencePool"]
    policies = [item["spec"]["extProc"] for item in objects if item["kind"] == "EnvoyExtensionPolicy"]
    references = {item["name"]: item["port"]["number"] for item in inference_pools}
    references |= {item["name"]: item["port"] for (processor,) in policies for item in processor["backendRefs"]}
    assert references == dict.fromkeys(("lbctl-picker-p", "lbctl-picker-q"), ports.PICKER)


# ── Every feature ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module", params=KINDS)
def full(request: pytest.FixtureRequest) -> Gateway:
    """Return the full fleet as objects of each kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(FIXTURES)
        return rendering((FIXTURES / "full-kubernetes.yaml").read_text(), request.param)


def lacking(gateway: Gateway) -> dict[tuple[str, str], bool]:
    """Map (code, name of the listener, route or pool) of each used feature that the kind lacks to whether it protects.

    An LB4xx feature that lbctl does not render yet has the code LB499.
    """
    root = gateway.loaded.compiled.sources.root
    found = {}
    for each, path in used(root):
        feature = cleartext(each, path, root)
        capability = capability_at(target(gateway.kind).capabilities[feature.id], gateway.version)
        not_yet = isinstance(capability, NotYet) and feature.code.startswith("LB4")
        if isinstance(capability, NotYet | Unsupported):
            found["LB499" if not_yet else feature.code, str(path[1])] = feature.protects
    return found


@pytest.mark.slow
def test_every_unsupported_feature_has_one_warning(full: Gateway) -> None:
    expected = dict.fromkeys((key for key in lacking(full) if key[0] != "LB499"), 1)
    assert expected
    counts = Counter((item.code, str(item.path[1])) for item in full.findings)
    assert {key: counts[key] for key in expected} == expected
    assert [item for item in full.findings if item.severity != "warning" or item.position is None] == []
    assert max(Counter((item.code, item.path) for item in full.findings).values()) == 1


def test_routes_without_protection_return_503(full: Gateway) -> None:
    topology = full.loaded.compiled.topology
    unprotected = {name for (_, name), protects in lacking(full).items() if protects}
    owners = {
        route.name: {route.name, *route.listeners, *(route.action.pools if isinstance(route.action, Forward) else ())}
        for route in topology.routes
    }
    rendered = rules(full.objects)
    assert rendered.keys() == owners.keys()
    for name, owning in owners.items():
        if owning & unprotected:
            assert set(map(str, rendered[name])) == {str(Rule(status=503))}, name
    reported = {str(item.path[1]) for item in full.findings if "503" in f"{item.message} {item.hint}"}
    closed = {name for name, listed in rendered.items() if Rule(status=503) in listed}
    assert {name for name in closed if not owners[name] & reported} == set()


def test_full_fleet_has_valid_objects(full: Gateway) -> None:
    newest = VERSIONS[full.kind][-1]
    assert [fault for item in full.objects for fault in problems(item, newest, full.kind)] == []
    assert {item["kind"] for item in full.objects}.isdisjoint({"EnvoyFilter", "EnvoyPatchPolicy", "Secret"})


# ── Replicas ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@every_kind
def test_replicas_get_requests_by_their_weights(kind: str) -> None:
    pools = """pools:
  p:
    balance: {algorithm: round_robin}
    replicas:
      - {address: "10.0.0.1:8000", weight: 5}
      - {address: "10.0.0.2:8000", weight: 2}
      - {address: "10.0.0.3:8001", weight: 1, drain: true}
      - {address: "10.0.0.4:8000", weight: 1}
"""
    objects = rendering(HEAD + ROUTE + pools + EDGE, kind).objects
    (rule,) = {str(rule): rule for rule in rules(objects)["r"]}.values()
    expected = {"10.0.0.1:8000": 5 / 8, "10.0.0.2:8000": 2 / 8, "10.0.0.4:8000": 1 / 8}
    assert shares(rule, objects) == pytest.approx(expected, abs=0.01)


@every_kind
def test_pools_of_a_split_get_their_shares(kind: str) -> None:
    routes = "routes: {r: {split: {p: 90, q: 10}}}\n"
    pools = """pools:
  p:
    balance: {algorithm: round_robin}
    replicas: [{address: "10.0.0.1:80", weight: 3}, {address: "10.0.0.2:80", weight: 1}]
  q: {replicas: [{address: "10.0.0.3:81"}]}
"""
    objects = rendering(HEAD + routes + pools + EDGE, kind).objects
    (rule,) = rules(objects)["r"]
    expected = {"10.0.0.1:80": 0.675, "10.0.0.2:80": 0.225, "10.0.0.3:81": 0.1}
    assert shares(rule, objects) == pytest.approx(expected, abs=0.01)


# ── Errors ───────────────────────────────────────────────────────────────────────────────────────────────────────────

POOL = 'pools: {p: {replicas: [{address: "10.0.0.1:80"}]}}\n'
NUMBERLESS = "pools: {p: {discovery: {kubernetes: {namespace: ml, service: s, port: ▶http}}}}\n"
SERVICE = "discovery: {kubernetes: {namespace: ml, service: s, port: http, service_port: 80}}"
TLS = "tls: ▶{ca: system, server_name: a.example.com}"
SPLIT = "routes: {r: {match: {path_prefix: /v1}, split: {p: 1, q: 1}}}\n"
SHARED = f"pools: {{p: {{{SERVICE}}}, q: {{{TLS}, {SERVICE}}}}}\n"


@every_kind
@pytest.mark.parametrize(
    ("code", "fleet"),
    [
        ("LB171", HEAD + ROUTE + 'pools: {p: {replicas: [▶{address: "127.0.0.1:80"}]}}\n' + EDGE),
        ("LB171", HEAD + ROUTE + 'pools: {p: {replicas: [▶{address: "unix:/run/x.sock"}]}}\n' + EDGE),
        ("LB171", HEAD.replace("}}", '}, web-2: {bind: ▶"10.0.0.9:80"}}') + ROUTE + POOL + EDGE),
        ("LB171", HEAD + ROUTE + NUMBERLESS + EDGE),
        ("LB171", HEAD + SPLIT + SHARED + EDGE),
        ("LB173", HEAD + ROUTE + POOL + EDGE.replace("ml, ", "ml, assume: [▶route.split], ")),
        ("LB173", HEAD + ROUTE + POOL + EDGE.replace("ml, ", "ml, assume: [▶route.auth.api_kyes], ")),
        ("LB170", HEAD + ROUTE + POOL + EDGE.replace("kubernetes:", "▶config: /etc/x.yaml, kubernetes:")),
    ],
)
def test_error_is_at_its_position(kind: str, code: str, fleet: str) -> None:
    text, position = marked(of_kind(fleet, kind))
    errors = loading(text, kind)[1]
    found = [f"{item.position.line}:{item.position.column} {item.code}" for item in errors if item.position]
    assert found == [f"{position} {code}"]
    assert all(item.hint for item in errors if item.code != "LB170")


# ── Secrets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@every_kind
def test_no_secret_is_written(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {
        "server.key": PEM.format("EC "),
        "client.key": PEM.format(""),
        "keys.yaml": "tenants-own-key-1: gold\n",
        "users.yaml": "alice: password-of-alice-1\n",
        "token": "token-of-the-replica-1\n",
        "provider": "key-of-the-provider-1\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    (tmp_path / "in.yaml").write_text(of_kind(SECRETS, kind))
    monkeypatch.chdir(tmp_path)
    assert run(["render", "-t", kind, "-d", "out", "in.yaml"]) == 0
    written = "".join(path.read_text() for path in (tmp_path / "out").iterdir()) + "".join(capsys.readouterr())
    assert f"{kind}.yaml" in {path.name for path in (tmp_path / "out").iterdir()}
    hidden = ("PRIVATE KEY", "MIIEvQIBADANBg", "tenants-own-key", "password-of-alice", "token-of-the", "key-of-the")
    assert [text for text in hidden if text in written] == []


SECRETS = """version: 1
listeners:
  web: {bind: "0.0.0.0:443", tls: {certificates: [{certificate: server.crt, key: server.key}]}}
routes:
  keys: {match: {path_prefix: /keys}, pool: p, auth: {api_keys: {file: keys.yaml}}}
  users: {match: {path_prefix: /users}, pool: p, auth: {basic: {file: users.yaml}}}
  hosted: {match: {path_prefix: /hosted}, pool: provider}
  rest: {match: {path_prefix: /}, pool: p}
pools:
  p:
    replicas: [{address: "10.0.0.1:443"}]
    tls: {ca: system, server_name: p.example.com, certificate: client.crt, key: client.key}
    credentials: {header: authorization, file: token}
  provider:
    upstream: {host: api.example.com, headers: {authorization: {prefix: "Bearer ", file: provider}}}
    replicas: [{name: provider, address: "api.example.com:443"}]
    tls: {ca: system}
proxies: {edge: {kind: gateway-api, version: "1.6", kubernetes: {namespace: ml, gateway_class: eg}}}
"""
