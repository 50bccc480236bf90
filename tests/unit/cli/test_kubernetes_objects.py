"""Commands with a fleet whose only entry is rendered as Kubernetes objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lbctl.apply import check
from lbctl.cli import run
from lbctl.cli.doctor import programs as doctor_programs
from lbctl.cli.doctor.ports import of_fleet
from lbctl.serve.drivers.eligibility import undriven
from lbctl.targets import uncounted
from tests.support.fleet import compiled
from tests.support.jwks import ec_jwk, jwks

FLEET = """\
version: 1
listeners: {public: {bind: "0.0.0.0:8443"}}
routes:
  chat: {match: {path_prefix: /v1}, split: {blue: 95, green: 5}}
  keys: {match: {path_prefix: /keys}, pool: blue, auth: {api_keys: {file: keys.yaml}}}
pools:
  blue: {replicas: [{address: "10.0.0.1:8000"}]}
  green: {replicas: [{address: "10.0.0.2:8000"}]}
proxies: {edge: {kind: gateway-api, kubernetes: {namespace: ml, gateway_class: eg}}}
"""


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "fleet.yaml"
    file.write_text(FLEET)
    (tmp_path / "keys.yaml").write_text("sk-0123456789abcdefghijklmnop: acme\n")
    return file


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def test_render_prints_one_stream(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", "-t", "gateway-api", "fleet.yaml"]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("apiVersion: v1\nkind: Service\n")
    assert [line.split()[2] for line in lines(output.err)] == ["LB443"]
    assert "sk-0123" not in output.out


def test_summary_states_that_all_routes_are_closed(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.write_text(FLEET.replace('"0.0.0.0:8443"', '"0.0.0.0:8443", max_body: 1MiB'))
    assert run(["render", "-t", "gateway-api", "fleet.yaml"]) == 0
    output = capsys.readouterr()
    assert "lbctl: all routes of edge return 503, as the warnings explain\n" in output.err
    assert ("  - name: chat\n" in output.out, "  - name: keys\n" in output.out) == (True, True)
    fleet.write_text(FLEET)
    assert run(["render", "-t", "gateway-api", "fleet.yaml"]) == 0
    assert "all routes" not in capsys.readouterr().err


def test_commands_for_secrets_find_the_files(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tls = "tls: {certificates: [{certificate: a.crt, key: tls/a.key}]}"
    fleet.write_text(FLEET.replace('"0.0.0.0:8443"', f'"0.0.0.0:8443", {tls}'))
    monkeypatch.chdir(fleet.parent.parent)
    name = fleet.parent.name
    assert run(["render", "-t", "gateway-api", f"{name}/fleet.yaml"]) == 0
    assert f"secret tls edge-public --cert={name}/a.crt --key={name}/tls/a.key\n" in capsys.readouterr().err
    assert run(["render", "-t", "gateway-api", "--files-root", "/etc", f"{name}/fleet.yaml"]) == 0
    assert "secret tls edge-public --cert=/etc/a.crt --key=/etc/tls/a.key\n" in capsys.readouterr().err


def test_directory_has_the_objects_of_one_entry(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    second = "proxies: {other: {kind: gateway-api, kubernetes: {namespace: x, gateway_class: eg}}, "
    third = "mesh: {kind: istio, kubernetes: {namespace: y}}, "
    fleet.write_text(FLEET.replace("proxies: {", second + third))
    fix = "use a separate directory for each entry and kind, or delete this file"
    for kind, entry, problem in (
        ("gateway-api", "edge", ""),
        ("gateway-api", "edge", ""),
        ("gateway-api", "other", "lbctl: out/gateway-api.yaml contains the objects of edge"),
        ("istio", "mesh", "lbctl: out/kustomization.yaml does not list only istio.yaml"),
    ):
        assert run(["render", "-t", kind, "--proxy", entry, "-d", "out", "fleet.yaml"]) == bool(problem)
        assert (f"{problem}: {fix}\n" in capsys.readouterr().err) == bool(problem)
    assert sorted(item.name for item in Path("out").iterdir()) == ["gateway-api.yaml", "kustomization.yaml"]


def test_render_needs_an_entry_in_proxies(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.write_text(FLEET[: FLEET.index("proxies:")])
    assert run(["render", "-t", "gateway-api", "fleet.yaml"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert [line for line in lines(output.err) if "error LB170" in line]


def test_render_has_one_format(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", "-t", "gateway-api", "-o", "json", "fleet.yaml"]) == 64
    assert "gateway-api has one format" in capsys.readouterr().err


def test_render_shows_errors_at_their_position(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.write_text(FLEET.replace("10.0.0.2", "127.0.0.1"))
    assert run(["render", "-t", "gateway-api", "fleet.yaml"]) == 1
    rendered = capsys.readouterr().err
    assert run(["validate", "fleet.yaml"]) == 1
    assert "fleet.yaml:8:22: error LB171" in rendered
    assert "fleet.yaml:8:22: error LB171" in capsys.readouterr().err


def test_validate_reports_errors_of_routes_with_tokens(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    headers = ", ".join(f"x-{index}: v" for index in range(17))
    jwt = f"{{jwt: {{issuer: a, jwks_file: jwks.json}}}}, headers: {{request: {{set: {{{headers}}}}}}}"
    text = FLEET.replace("{api_keys: {file: keys.yaml}}", jwt).replace("gateway-api", "envoy-gateway")
    fleet.write_text(text)
    fleet.with_name("jwks.json").write_text(jwks(ec_jwk("P-256")))
    found = []
    for command in (["validate"], ["render", "-t", "envoy-gateway"]):
        assert run([*command, "fleet.yaml"]) == 1
        found.append([line for line in lines(capsys.readouterr().err) if "error LB172" in line])
    assert found[0] == found[1]
    assert len(found[0]) == 1


def test_lint_reports_what_the_api_does_not_support(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", "--select", "LB443", "fleet.yaml"]) == 0
    output = capsys.readouterr()
    assert "gateway-api does not support this: the API has no setting for API keys" in output.out
    assert "gateway-api does not support 1 setting of this fleet" in output.err


def test_lint_counts_no_supported_reference(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pool = "{discovery: {kubernetes: {namespace: other, service: s, port: 80}}}"
    fleet.write_text(FLEET.replace('{replicas: [{address: "10.0.0.1:8000"}]}', pool))
    assert run(["lint", "--select", "LB174", "fleet.yaml"]) == 0
    output = capsys.readouterr()
    assert "warning LB174 pools.blue" in output.out
    assert "does not support" not in output.err


def test_explain_shows_only_what_the_objects_contain(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = FLEET.replace("green: 5}", "green: 5}, fallback: spare, sticky_split: {cookie: c}")
    text = text.replace("pools:", 'pools:\n  spare: {replicas: [{address: "10.0.0.3:8000"}]}')
    fleet.write_text(text)
    assert run(["explain", "route", "GET", "http://x:8443/v1/models", "-o", "json", "fleet.yaml"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["proxies"]
    assert [item["path"] for item in row["policy"]] == [
        "routes.chat.websocket",
        "routes.chat.timeouts.request",
        "routes.chat.regions",
        "pools.blue.protocol",
        "pools.green.protocol",
    ]
    assert {item["algorithm"] for item in row["pools"]} == {"algorithm of the Gateway class"}
    assert (row["choice"]["reason"], row["choice"]["then"]) == ("chosen at random by share", [])


def test_explain_shows_the_route_of_a_request(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["explain", "route", "GET", "http://x:8443/v1/models", "fleet.yaml"]) == 0
    assert "gateway-api 1.4" in capsys.readouterr().out


def explained(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Return how the gateway handles a request."""
    assert run(["explain", "route", "GET", "http://x:8443/v1/models", "-o", "json", "fleet.yaml"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["proxies"]
    return dict(row)


def test_explain_leaves_out_replicas_with_host_names(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replicas = ", ".join(f'{{name: {name}, address: "{name}.example:80"}}' for name in ("x", "y"))
    pool = f'{{replicas: [{replicas}, {{name: ip, address: "10.0.0.1:80"}}]}}'
    fleet.write_text(FLEET.replace('{replicas: [{address: "10.0.0.1:8000"}]}', pool))
    assert explained(capsys)["pools"][0]["replicas"] == {"ip": 1.0}


PICK = "balance: {algorithm: pick, pick: {otherwise: random}}"
SERVICE = "discovery: {kubernetes: {namespace: ml, service: s, port: 80, selector: {app: s}}}"
HOSTS = 'replicas: [{address: "a.example:80"}]'
CLASS = "algorithm of the Gateway class"


@pytest.mark.parametrize(
    ("kind", "blue", "algorithms"),
    [
        ("gateway-api", f"balance: {{algorithm: random}}, {SERVICE}", [CLASS, CLASS]),
        ("istio", f"balance: {{algorithm: random}}, {SERVICE}", ["random", "least_request"]),
        ("istio", f"balance: {{algorithm: least_time}}, {HOSTS}", ["least_request", "least_request"]),
        ("istio", f"affinity: {{cookie: c}}, {HOSTS}", ["hash", "least_request"]),
        ("istio", f"{PICK}, {SERVICE}", ["random", "least_request"]),
        ("envoy-gateway", f"balance: {{algorithm: round_robin}}, {HOSTS}", ["round_robin", "round_robin"]),
        ("envoy-gateway", f"{PICK}, {SERVICE}", ["random", "random"]),
    ],
)
def test_explain_shows_the_rendered_algorithm(
    kind: str, blue: str, algorithms: list[str], fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = FLEET.replace('blue: {replicas: [{address: "10.0.0.1:8000"}]}', f"blue: {{{blue}}}")
    gateway_class = ", gateway_class: eg" if kind != "istio" else ""
    fleet.write_text(text.replace("gateway-api", kind).replace(", gateway_class: eg", gateway_class))
    assert [item["algorithm"] for item in explained(capsys)["pools"]] == algorithms


@pytest.mark.parametrize("kind", ["gateway-api", "envoy-gateway"])
def test_explain_shows_a_pool_with_the_picker(kind: str, fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = FLEET.replace('blue: {replicas: [{address: "10.0.0.1:8000"}]}', f"blue: {{{PICK}, {SERVICE}}}")
    fleet.write_text(text.replace("split: {blue: 95, green: 5}", "pool: blue").replace("gateway-api", kind))
    assert [item["algorithm"] for item in explained(capsys)["pools"]] == ["pick"]


def test_explain_states_that_no_replica_is_left(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.write_text(FLEET.replace("10.0.0.1:", "a.example:"))
    assert run(["explain", "route", "GET", "http://x:8443/v1/models", "fleet.yaml"]) == 0
    assert f"95% blue, {CLASS} over no replica\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("kind", "url", "other"),
    [
        ("gateway-api", "/v1/a", "route prefix gets"),
        ("gateway-api", "/v2/chat", "route longer gets"),
        ("gateway-api", "/v1/chat", "route longer or prefix gets"),
        ("gateway-api", "/v2/a", ""),
        ("envoy-gateway", "/v2/chat", "route longer gets"),
        ("envoy-gateway", "/v1/a", ""),
    ],
)
def test_explain_states_an_uncertain_order(
    kind: str, url: str, other: str, fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    routes = "\n  ".join(
        f"{name}: {{match: {{{match}}}, pool: blue}}"
        for name, match in (
            ("expression", "path_regex: '/v[0-9]/.*'"),
            ("longer", "path_regex: '/v[0-9]/.*chat.*'"),
            ("prefix", "path_prefix: /v1"),
        )
    )
    text = FLEET[: FLEET.index("  chat:")] + f"  {routes}\n" + FLEET[FLEET.index("pools:") :]
    fleet.write_text(text.replace("gateway-api", kind))
    assert run(["explain", "route", "GET", f"http://x:8443{url}", "fleet.yaml"]) == 0
    noted = [line for line in lines(capsys.readouterr().out) if "warning LB420" in line]
    assert [other in line for line in noted] == [True] * bool(other)


def test_explain_shows_the_reason_of_a_closed_route(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.write_text(FLEET.replace("blue: {", "blue: {tls: {server_name: x.example.com}, "))
    row = explained(capsys)
    assert (row["status"], [item.split()[2] for item in row["losses"]]) == (503, ["LB489"])


def test_diff_compares_the_objects(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("old.yaml").write_text(FLEET.replace("95", "90").replace("green: 5", "green: 10"))
    arguments = ["--against", "old.yaml", "-t", "gateway-api", "--exit-code", "fleet.yaml"]
    assert run(["diff", *arguments]) == 2
    changed = [line for line in lines(capsys.readouterr().out) if line.startswith(("-  ", "+  "))]
    assert [line.strip("+- ") for line in changed] == ["weight: 90", "weight: 95", "weight: 10", "weight: 5"]


def test_diff_needs_an_entry_in_the_new_fleet(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("old.yaml").write_text(FLEET.replace("gateway-api", "istio").replace(", gateway_class: eg", ""))
    arguments = ["--against", "old.yaml", "-t", "istio", "--exit-code", "fleet.yaml"]
    assert run(["diff", *arguments]) == 1
    output = capsys.readouterr()
    assert (output.out, [line for line in lines(output.err) if "error LB170" in line]) == ("", lines(output.err))


def test_diff_states_that_the_old_fleet_has_no_entry(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("old.yaml").write_text(FLEET.replace("gateway-api", "istio").replace(", gateway_class: eg", ""))
    assert run(["diff", "--against", "old.yaml", "-t", "gateway-api", "--exit-code", "fleet.yaml"]) == 2
    output = capsys.readouterr()
    assert output.err == "lbctl: the old fleet does not have this gateway-api entry, so everything is new\n"
    assert "+++ new/gateway-api.yaml" in output.out


def test_serve_does_not_drive_the_gateway() -> None:
    (proxy,) = compiled(FLEET).topology.proxies
    assert undriven(proxy) == "lbctl has no driver for Gateway API"
    assert uncounted(proxy) == "kind"


def test_doctor_leaves_ports_in_a_cluster_out() -> None:
    shared = FLEET.replace("proxies: {", "proxies: {local: {kind: nginx}, ")
    assert list(of_fleet(compiled(FLEET).topology, picker_is_elsewhere=False)) == []
    assert len(list(of_fleet(compiled(shared).topology, picker_is_elsewhere=False))) == 1


def test_doctor_needs_no_files_of_the_cluster(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tls = "tls: {certificates: [{certificate: a.crt, key: a.key}]}"
    discovery = "discovery: {kubernetes: {namespace: ml, service: s, port: 80, kubeconfig: missing}}"
    text = FLEET.replace('"0.0.0.0:8443"', f'"0.0.0.0:8443", {tls}')
    text = text.replace('replicas: [{address: "10.0.0.1:8000"}]', discovery)
    fleet.write_text(text)

    def state() -> str:
        run(["doctor", "fleet.yaml"])
        (line,) = [
            row for row in lines(capsys.readouterr().out) if row.startswith("pools.blue.discovery.kubernetes ml/s")
        ]
        return line.split()[2]

    assert state() == "skipped"
    fleet.write_text(text.replace("proxies: {", "proxies: {local: {kind: nginx}, "))
    assert state() == "failed"


def test_doctor_names_kubectl_only_for_a_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_programs, "find_binary", lambda _: None)
    without = compiled(FLEET[: FLEET.index("proxies:")]).topology
    assert "kubectl" not in [result.what for result in doctor_programs.programs(without)]
    assert "kubectl" in [result.what for result in doctor_programs.programs(compiled(FLEET).topology)]


# ── render --check ───────────────────────────────────────────────────────────────────────────────────────────────────


def checked_with(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int, output: str
) -> tuple[int, list[str]]:
    """Return the exit code and the messages of `render --check` with a kubectl that prints `output`."""
    commands: list[list[str]] = []

    def kubectl(command: list[str], *_: object) -> tuple[int, str]:
        commands.append(command)
        return code, output

    monkeypatch.setattr(check, "find_binary", lambda _: "/usr/bin/kubectl")
    monkeypatch.setattr(check, "_run", kubectl)
    found = run(["render", "-t", "gateway-api", "--check", "fleet.yaml"])
    assert [command[:4] for command in commands] == [["/usr/bin/kubectl", "apply", "--server-side", "--dry-run=server"]]
    return found, [line for line in lines(capsys.readouterr().err) if "LB443" not in line]


@pytest.mark.usefixtures("fleet")
def test_check_accepts_what_the_server_accepts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = "gateway.gateway.networking.k8s.io/edge serverside-applied (server dry run)\n"
    assert checked_with(monkeypatch, capsys, 0, output) == (0, ["lbctl: accepted by the API server"])


@pytest.mark.usefixtures("fleet")
def test_check_reports_a_refusal_at_the_yaml(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = 'The Service "edge-green-1" is invalid: spec.ports[0].port: Invalid value: 0\n'
    code, messages = checked_with(monkeypatch, capsys, 1, output)
    assert code == 5
    problem = "fleet.yaml:8:10: error LB901 pools.green: the API server rejects the rendered configuration"
    assert messages == [f"{problem}: {output.strip()}"]


@pytest.mark.parametrize(
    ("field", "place"),
    [
        ("timeouts.request", "4:57: error LB901 routes.chat.timeouts.request"),
        ("backendRefs[1].weight", "4:69: error LB901 routes.chat.split"),
        ("matches[0].path.value", "4:17: error LB901 routes.chat.match"),
    ],
)
def test_check_reports_a_field_of_a_rule_at_the_yaml(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], field: str, place: str
) -> None:
    fleet.write_text(FLEET.replace("split: {", "timeouts: {request: 9s}, split: {"))
    output = f'The HTTPRoute "edge-public" is invalid: spec.rules[1].{field}: Invalid value: 0\n'
    code, messages = checked_with(monkeypatch, capsys, 1, output)
    assert (code, messages[0].partition(": the API")[0]) == (5, f"fleet.yaml:{place}")


@pytest.mark.usefixtures("fleet")
def test_check_needs_an_api_server(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    output = "The connection to the server localhost:8080 was refused - did you specify the right host or port?\n"
    code, messages = checked_with(monkeypatch, capsys, 1, output)
    assert code == 4
    assert messages == [f"lbctl: --check cannot reach the API server of kubectl's context: {output.strip()}"]


@pytest.mark.usefixtures("fleet")
def test_check_needs_kubectl(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(check, "find_binary", lambda _: None)
    assert run(["render", "-t", "gateway-api", "--check", "fleet.yaml"]) == 4
    assert "needs the program kubectl" in capsys.readouterr().err


def test_check_finds_a_relative_kubeconfig(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kubectl = fleet.with_name("kubectl")
    kubectl.write_text('#!/bin/sh\ncat "$KUBECONFIG"\n')
    kubectl.chmod(0o755)
    fleet.with_name("kubeconfig").touch()
    monkeypatch.setenv("LBCTL_KUBECTL", str(kubectl))
    monkeypatch.setenv("KUBECONFIG", "kubeconfig")
    assert run(["render", "-t", "gateway-api", "--check", "fleet.yaml"]) == 0
    assert "accepted by the API server" in capsys.readouterr().err
