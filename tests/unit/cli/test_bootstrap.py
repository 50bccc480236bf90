"""`lbctl bootstrap`: what Envoy's own check accepts, and what it says."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from lbctl.cli import run
from tests.support.processes.binaries import require
from tests.support.processes.certs import Authority, Pair
from tests.support.processes.ports import free_port

CLUSTER = "xds|lbctl"
TLS = ["--tls-ca", "{ca}", "--tls-cert", "{certificate}", "--tls-key", "{key}"]


@pytest.fixture(autouse=True)
def _nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test waits for a `serve`, or finds somebody's."""
    monkeypatch.setenv("LBCTL_XDS", "127.0.0.1:18000")


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str) -> Any:
        assert run(["bootstrap", *arguments]) == 0
        return yaml.safe_load(capsys.readouterr().out)

    return call


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, str]:
    authority = Authority(tmp_path / "pki")
    pair = authority.issue("edge-1")
    return {"ca": str(authority.ca), "certificate": str(pair.certificate), "key": str(pair.key)}


def validate(path: Path) -> None:
    done = subprocess.run(
        [str(require("envoy")), "--mode", "validate", "-c", str(path)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "deprecat" not in done.stderr.lower()


@pytest.mark.e2e
@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--xds", "lbctl.ml.svc:18000", "--node", "edge-1", "--region", "us-east-1", "--zone", "us-east-1a"],
        ["--xds", "[::1]:18000", "--proxy-admin", "127.0.0.1:9901"],
        ["--proxy-admin", "127.0.0.1:9901", "--proxy-metrics", "127.0.0.1:9902"],
        ["--xds", "unix:/run/lbctl/xds.sock", "--node", 'a "quoted": {node} #1'],
        ["--xds", "127.0.0.1:18000", *TLS],
        ["--xds", "lbctl.ml.svc:18000", *TLS],
        ["--xds", "lbctl.ml.svc:18000", *TLS[:2]],
    ],
)
def test_envoy_accepts_it(
    arguments: list[str], certificates: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [item.format(**certificates) if item in TLS else item for item in arguments]
    assert run(["bootstrap", *given]) == 0
    alone = tmp_path / "alone.yaml"
    alone.write_text(capsys.readouterr().out)
    validate(alone)
    assert run(["bootstrap", *given, "-d", str(tmp_path / "out")]) == 0
    assert capsys.readouterr() == ("", "")
    validate(tmp_path / "out" / "envoy.yaml")


def test_it_says_who_the_node_is_and_has_no_admin_port(printed: Any) -> None:
    found = printed("--node", "edge-1", "--region", "r", "--zone", "z")
    assert found["node"] == {"id": "edge-1", "cluster": "lbctl", "locality": {"region": "r", "zone": "z"}}
    assert "admin" not in found
    assert printed("--proxy-admin", "127.0.0.1:9901")["admin"] == {
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 9901}}
    }


def test_everything_comes_by_delta_ads_and_envoy_waits_for_it(printed: Any) -> None:
    dynamic = printed()["dynamic_resources"]
    assert dynamic["ads_config"]["api_type"] == "DELTA_GRPC"
    for kind in ("cds_config", "lds_config"):
        assert dynamic[kind] == {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
    assert dynamic["ads_config"]["grpc_services"][0]["envoy_grpc"]["cluster_name"] == CLUSTER


def test_its_load_is_reported_to_the_same_control_plane(printed: Any) -> None:
    reports = printed()["cluster_manager"]["load_stats_config"]
    assert (reports["api_type"], reports["transport_api_version"]) == ("GRPC", "V3")
    assert reports["grpc_services"] == [{"envoy_grpc": {"cluster_name": CLUSTER}}]


def test_regular_expressions_are_bounded_by_re2_alone_and_not_by_envoys_hundred_instructions(printed: Any) -> None:
    (layer,) = printed()["layered_runtime"]["layers"]
    assert layer["static_layer"]["re2.max_program_size.error_level"] >= 350_000


def test_its_cluster_has_a_name_that_no_pool_can_have(printed: Any, tmp_path: Path) -> None:
    (found,) = printed()["static_resources"]["clusters"]
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f'version: 1\npools: {{"{found["name"]}": {{replicas: [{{address: "10.0.0.1:80"}}]}}}}\n')
    assert run(["validate", str(fleet)]) == 1


def test_an_admin_port_for_everybody_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bootstrap", "--proxy-admin", "0.0.0.0:9901"]) == 0
    assert "can read the configuration and stop the proxy" in capsys.readouterr().err


def test_the_certificate_of_the_control_plane_must_be_for_its_name(printed: Any, tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.touch()

    def wanted(where: str) -> tuple[str, Any]:
        (cluster,) = printed("--xds", where, "--tls-ca", str(authority))["static_resources"]["clusters"]
        config = cluster["transport_socket"]["typed_config"]
        names = config["common_tls_context"]["validation_context"]["match_typed_subject_alt_names"]
        return config.get("sni", ""), names

    assert wanted("lbctl.ml.svc:18000") == ("lbctl.ml.svc", [{"san_type": "DNS", "matcher": {"exact": "lbctl.ml.svc"}}])
    assert wanted("127.0.0.1:18000") == ("", [{"san_type": "IP_ADDRESS", "matcher": {"exact": "127.0.0.1"}}])


def test_with_a_directory_the_certificates_are_in_files_that_envoy_watches(
    certificates: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert run(["bootstrap", *(item.format(**certificates) for item in TLS), "-d", str(out)]) == 0
    text = (out / "envoy.yaml").read_text()
    assert sorted(item.name for item in out.iterdir()) == ["envoy.yaml", "xds-ca.yaml", "xds-certificate.yaml"]
    assert f"{out}/xds-certificate.yaml" in text
    clusters = yaml.safe_load(text)["static_resources"]["clusters"]
    assert certificates["certificate"] not in str(clusters), "what the bootstrap itself names is read once"
    (secret,) = yaml.safe_load((out / "xds-certificate.yaml").read_text())["resources"]
    assert secret["tls_certificate"] == {
        "certificate_chain": {"filename": certificates["certificate"]},
        "private_key": {"filename": certificates["key"]},
    }


def test_no_content_of_a_key_is_in_it(certificates: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(["bootstrap", *(item.format(**certificates) for item in TLS), "-d", str(out)]) == 0
    assert all("PRIVATE" not in item.read_text() and "BEGIN" not in item.read_text() for item in out.iterdir())


def test_without_a_directory_it_says_that_certificates_are_read_once(
    certificates: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bootstrap", *(item.format(**certificates) for item in TLS)]) == 0
    said = capsys.readouterr()
    assert "renewed ones need a restart" in said.err
    assert certificates["certificate"] in said.out


def test_a_relative_path_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, printed: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tls").mkdir()
    (tmp_path / "tls" / "ca.crt").touch()
    assert f"{tmp_path}/tls/ca.crt" in str(printed("--tls-ca", "tls/ca.crt"))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bootstrap", "--tls-ca", str(tmp_path / "ca.crt")]) == 64
    said = capsys.readouterr()
    assert f"there is no file {tmp_path}/ca.crt" in said.err
    assert said.out == ""


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(["bootstrap", "-d", str(tmp_path / "file")]) == 1
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--xds", "x"], ["--proxy-admin", "9901"], ["--proxy-metrics", "127.0.0.1:9"], ["--tls-key", "k"]]
)
def test_wrong_flags_are_a_usage_error(arguments: list[str]) -> None:
    assert run(["bootstrap", *arguments]) == 64


@contextmanager
def _serve_of(listens: dict[str, Any], pair: Pair | None = None) -> Iterator[str]:
    """The API of a `serve` that listens so for proxies, by TLS with a `pair`; its URL."""

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps({"ready": True, "listens": listens}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Nothing is written to the test's own output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        if pair is not None:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(pair.certificate, pair.key)
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"{'https' if pair else 'http'}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.parametrize("by", ["server", "fleet"])
def test_a_serve_with_another_api_bind_is_found_by_its_url_or_its_fleet(by: str, tmp_path: Path, printed: Any) -> None:
    """What the command line says goes before LBCTL_XDS."""
    fleet, own = tmp_path / "fleet.yaml", tmp_path / "xds.sock"
    with socket.socket(socket.AF_UNIX) as listener, _serve_of({"xds": "127.0.0.1:1", "xds_socket": str(own)}) as url:
        listener.bind(str(own))
        fleet.write_text(f"version: 1\ncontrol: {{api: {{bind: '{url.removeprefix('http://')}'}}}}\n")
        text = str(printed(f"--{by}", url if by == "server" else str(fleet)))
    assert f"'pipe': {{'path': '{own}'}}" in text


@pytest.mark.parametrize("command", [["bootstrap"], ["xds", "get", "--timeout", "0.1"]])
def test_an_api_whose_certificate_has_an_authority_of_its_own_is_asked(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path / "pki")
    pair = authority.issue("api", ["127.0.0.1"])
    with _serve_of({"xds": f"127.0.0.1:{free_port()}"}, pair) as url:
        run([*command, "--server", url, "--server-ca", str(authority.ca)])
        assert f"the serve at {url} has no socket" in capsys.readouterr().err
        monkeypatch.setenv("LBCTL_SERVER_CA", str(authority.ca))
        run([*command, "--server", url])
        assert f"the serve at {url} has no socket" in capsys.readouterr().err


def test_where_its_socket_is_not_there_its_tcp_address_is_taken_and_what_that_means_is_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with _serve_of({"xds": "127.0.0.1:18777", "xds_socket": str(tmp_path / "gone")}) as url:
        assert run(["bootstrap", "--server", url]) == 0
    out, err = capsys.readouterr()
    assert "port_value: 18777" in out
    assert f"the serve at {url} has no socket that this user may connect to" in err
    assert "its load reports are not taken" in err


def test_where_none_answers_it_says_what_was_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.delenv("LBCTL_XDS")
    monkeypatch.setenv("LBCTL_SERVER", url)
    run(["xds", "get", "--timeout", "0.1"])
    err = capsys.readouterr().err
    assert f"no serve answers at {url}; if control.api.bind is another, --server URL or --fleet PATH" in err
    assert run(["xds", "get", "--server", url]) == 4, "one that is named must answer"
    assert url in capsys.readouterr().err


def test_the_socket_of_a_serve_elsewhere_is_not_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bootstrap", "--server", "http://10.0.0.1:18080"]) == 64
    assert "is not on this machine" in capsys.readouterr().err


def test_it_imports_neither_grpc_nor_a_fleet() -> None:
    code = "import sys; from lbctl.cli import run; run(['bootstrap']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert {"grpc", "betterproto2", "pydantic", "lbctl.model.fleet"} & set(done.stderr.split()) == set()
