"""`lbctl bootstrap`: its output and its messages."""

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
from tests.support.bootstrap import TLS_OPTIONS, certificate_paths
from tests.support.fleets import fleet_text
from tests.support.processes.certs import Authority, Pair
from tests.support.processes.ports import free_port

CLUSTER = "xds|lbctl"


@pytest.fixture(autouse=True)
def no_running_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the address, so that no test looks for a running `serve`."""
    monkeypatch.setenv("LBCTL_XDS", "127.0.0.1:18000")


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str) -> Any:
        assert run(["bootstrap", *arguments]) == 0
        return yaml.safe_load(capsys.readouterr().out)

    return call


@pytest.fixture
def certificates(tmp_path: Path) -> dict[str, str]:
    return certificate_paths(tmp_path)


def test_bootstrap_names_the_node_and_has_no_admin_port(printed: Any) -> None:
    bootstrap = printed("--node", "edge-1", "--region", "r", "--zone", "z")
    assert bootstrap["node"] == {"id": "edge-1", "cluster": "lbctl", "locality": {"region": "r", "zone": "z"}}
    assert "admin" not in bootstrap
    assert printed("--proxy-admin", "127.0.0.1:9901")["admin"] == {
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 9901}}
    }


def test_admin_socket_is_next_to_the_bootstrap(printed: Any, tmp_path: Path) -> None:
    xds = f"unix:{tmp_path}/xds.sock"
    one, two = (printed("--xds", xds, "--node", node) for node in ("edge-1", "edge-2"))
    paths = [item["admin"]["address"]["pipe"]["path"] for item in (one, two)]
    assert {Path(path).parent for path in paths} == {tmp_path}
    assert len({*paths}) == 2, "two Envoys of one machine have a socket each"
    assert one["admin"]["address"]["pipe"]["mode"] == 0o600
    assert one["node"]["metadata"] == {"lbctl_admin": f"unix:{paths[0]}"}, "serve finds it"
    assert run(["bootstrap", "--xds", xds, "--node", "edge-1", "-d", str(tmp_path / "out")]) == 0
    written = yaml.safe_load((tmp_path / "out" / "envoy.yaml").read_text(encoding="utf-8"))
    assert written["admin"]["address"]["pipe"]["path"] == f"{tmp_path}/out/admin.sock"
    assert "admin" not in printed("--xds", "unix:/proc/none/xds.sock"), "Envoy could not create it there"


def test_bootstrap_has_the_admin_address_of_the_node(
    printed: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    edge = {"kind": "envoy", "nodes": ["edge-*"], "admin": "127.0.0.1:9901"}
    file = tmp_path / "fleet.yaml"
    file.write_text(fleet_text(proxies={"edge": edge}), encoding="utf-8")
    bootstrap = printed("--xds", "127.0.0.1:18000", "--fleet", str(file), "--node", "edge-1")
    assert bootstrap["admin"]["address"]["socket_address"]["port_value"] == 9901
    assert "admin" not in printed("--xds", "127.0.0.1:18000", "--fleet", str(file), "--node", "other")
    assert run(["bootstrap", "--xds", "127.0.0.1:18000", "--fleet", str(file), "--node", "other"]) == 0
    warning = "no entry in `proxies` matches the node 'other': serve will not send this node any resources"
    assert warning in capsys.readouterr().err
    file.write_text(fleet_text(proxies={"edge": {**edge, "instances": 2}}), encoding="utf-8")
    assert "admin" not in printed("--xds", "127.0.0.1:18000", "--fleet", str(file), "--node", "edge-1")


def test_envoy_waits_for_resources_over_delta_ads(printed: Any) -> None:
    dynamic = printed()["dynamic_resources"]
    assert dynamic["ads_config"]["api_type"] == "DELTA_GRPC"
    for kind in ("cds_config", "lds_config"):
        assert dynamic[kind] == {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"}
    assert dynamic["ads_config"]["grpc_services"][0]["envoy_grpc"]["cluster_name"] == CLUSTER


def test_load_reports_go_to_the_same_control_plane(printed: Any) -> None:
    reports = printed()["cluster_manager"]["load_stats_config"]
    assert (reports["api_type"], reports["transport_api_version"]) == ("GRPC", "V3")
    assert reports["grpc_services"] == [{"envoy_grpc": {"cluster_name": CLUSTER}}]


def test_size_limit_of_regular_expressions_is_raised(printed: Any) -> None:
    (layer,) = printed()["layered_runtime"]["layers"]
    assert layer["static_layer"]["re2.max_program_size.error_level"] >= 350_000


def test_cluster_name_cannot_be_a_pool_name(printed: Any, tmp_path: Path) -> None:
    (cluster,) = printed()["static_resources"]["clusters"]
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f'version: 1\npools: {{"{cluster["name"]}": {{replicas: [{{address: "10.0.0.1:80"}}]}}}}\n')
    assert run(["validate", str(fleet)]) == 1


def test_admin_port_on_all_addresses_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bootstrap", "--proxy-admin", "0.0.0.0:9901"]) == 64
    assert "could stop the proxy and read its keys" in capsys.readouterr().err


def test_control_plane_certificate_must_match_its_name(printed: Any, tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.touch()

    def names_to_verify(where: str) -> tuple[str, Any]:
        (cluster,) = printed("--xds", where, "--tls-ca", str(authority))["static_resources"]["clusters"]
        config = cluster["transport_socket"]["typed_config"]
        names = config["common_tls_context"]["validation_context"]["match_typed_subject_alt_names"]
        return config.get("sni", ""), names

    assert names_to_verify("lbctl.ml.svc:18000") == (
        "lbctl.ml.svc",
        [{"san_type": "DNS", "matcher": {"exact": "lbctl.ml.svc"}}],
    )
    assert names_to_verify("127.0.0.1:18000") == ("", [{"san_type": "IP_ADDRESS", "matcher": {"exact": "127.0.0.1"}}])


def test_certificates_in_a_directory_are_watched_by_envoy(certificates: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(["bootstrap", *(item.format(**certificates) for item in TLS_OPTIONS), "-d", str(out)]) == 0
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


def test_bootstrap_contains_no_private_key(certificates: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run(["bootstrap", *(item.format(**certificates) for item in TLS_OPTIONS), "-d", str(out)]) == 0
    assert all("PRIVATE" not in item.read_text() and "BEGIN" not in item.read_text() for item in out.iterdir())


def test_without_directory_certificates_are_read_once(
    certificates: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bootstrap", *(item.format(**certificates) for item in TLS_OPTIONS)]) == 0
    captured = capsys.readouterr()
    assert "renewed certificates need a restart" in captured.err
    assert certificates["certificate"] in captured.out


def test_relative_paths_start_at_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, printed: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tls").mkdir()
    (tmp_path / "tls" / "ca.crt").touch()
    assert f"{tmp_path}/tls/ca.crt" in str(printed("--tls-ca", "tls/ca.crt"))


def test_missing_ca_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bootstrap", "--tls-ca", str(tmp_path / "ca.crt")]) == 64
    captured = capsys.readouterr()
    assert f"the file {tmp_path}/ca.crt does not exist" in captured.err
    assert captured.out == ""


def test_unwritable_directory_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(["bootstrap", "-d", str(tmp_path / "file")]) == 1
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--xds", "x"], ["--proxy-admin", "9901"], ["--proxy-metrics", "127.0.0.1:9"], ["--tls-key", "k"]]
)
def test_invalid_flags_are_a_usage_error(arguments: list[str]) -> None:
    assert run(["bootstrap", *arguments]) == 64


@contextmanager
def api_of_serve(listens: dict[str, Any], pair: Pair | None = None) -> Iterator[str]:
    """Yield the URL of an API that reports these listening addresses, with TLS if there is a `pair`."""

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps({"ready": True, "listens": listens}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

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
def test_serve_with_another_bind_is_located_by_url_or_fleet(by: str, tmp_path: Path, printed: Any) -> None:
    """The options take precedence over LBCTL_XDS."""
    fleet, own = tmp_path / "fleet.yaml", tmp_path / "xds.sock"
    with socket.socket(socket.AF_UNIX) as listener, api_of_serve({"xds": "127.0.0.1:1", "xds_socket": str(own)}) as url:
        listener.bind(str(own))
        fleet.write_text(f"version: 1\ncontrol: {{api: {{bind: '{url.removeprefix('http://')}'}}}}\n")
        text = str(printed(f"--{by}", url if by == "server" else str(fleet)))
    assert f"'pipe': {{'path': '{own}'}}" in text


@pytest.mark.slow
@pytest.mark.parametrize("command", [["bootstrap"], ["xds", "get", "--timeout", "0.1"]])
def test_server_ca_verifies_an_api_with_a_private_authority(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    authority = Authority(tmp_path / "pki")
    pair = authority.issue("api", ["127.0.0.1"])
    with api_of_serve({"xds": f"127.0.0.1:{free_port()}"}, pair) as url:
        run([*command, "--server", url, "--server-ca", str(authority.ca)])
        assert f"serve at {url} has no socket" in capsys.readouterr().err
        monkeypatch.setenv("LBCTL_SERVER_CA", str(authority.ca))
        run([*command, "--server", url])
        assert f"serve at {url} has no socket" in capsys.readouterr().err


def test_tcp_address_is_used_with_a_warning_without_socket(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with api_of_serve({"xds": "127.0.0.1:18777", "xds_socket": str(tmp_path / "gone")}) as url:
        assert run(["bootstrap", "--server", url]) == 0
    out, err = capsys.readouterr()
    assert "port_value: 18777" in out
    assert f"serve at {url} has no socket that this user can connect to" in err
    assert "its load reports are ignored" in err


def test_unreachable_serve_is_reported_with_its_url(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.delenv("LBCTL_XDS")
    monkeypatch.setenv("LBCTL_SERVER", url)
    run(["xds", "get", "--timeout", "0.1"])
    err = capsys.readouterr().err
    assert f"serve is not responding at {url} (if control.api.bind is not the default, use --server or --fleet)" in err
    assert run(["xds", "get", "--server", url]) == 4, "one that is named must answer"
    assert url in capsys.readouterr().err


def test_serve_on_another_machine_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bootstrap", "--server", "http://10.0.0.1:18080"]) == 64
    assert "is on a different machine" in capsys.readouterr().err


def test_bootstrap_imports_neither_grpc_nor_the_model() -> None:
    code = "import sys; from lbctl.cli import run; run(['bootstrap']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert {"grpc", "betterproto2", "pydantic", "lbctl.model.fleet"} & set(done.stderr.split()) == set()
