"""`lbctl up` starts nothing if it cannot run the fleet, and reports what to do."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lbctl.cli import run
from tests.support import init as servers
from tests.support.fleets import fleet_of, write_fleet
from tests.support.processes.ports import free_port

PROGRAMS = ("LBCTL_ENVOY", "LBCTL_HAPROXY", "LBCTL_NGINX")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, which is the working directory and contains the state. No program is a real proxy."""
    for name in PROGRAMS:
        monkeypatch.setenv(name, "/bin/true")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LBCTL_SERVE_API_BIND", f"127.0.0.1:{free_port()}")
    return tmp_path


def errors_of_up(capfd: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    """Run the command, which must end with this exit code. Return its standard error."""
    assert run(["up", *arguments]) == code
    out, err = capfd.readouterr()
    assert out == ""
    return err


def write(directory: Path, route: Mapping[str, Any] | None = None, **sections: Mapping[str, Any]) -> None:
    """Write a fleet that listens on a free port, with further keys of its route and further sections."""
    write_fleet(directory, fleet_of(route=route, listener={"bind": f"127.0.0.1:{free_port()}"}, **sections))


def test_missing_fleet_is_reported_with_the_next_command(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = errors_of_up(capfd, 1)
    assert text.startswith(
        "fleet.yaml: error LB001: the file does not exist (create it from your model servers and run it: lbctl up"
    )


def test_standard_input_is_refused(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "cannot watch standard input" in errors_of_up(capfd, 64, "-")


def test_errors_of_the_fleet_are_shown(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(here, poools={})
    assert "fleet.yaml:15:1: error LB011" in errors_of_up(capfd, 1)


def test_fleet_with_driven_proxies_is_not_run(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    nginx = {"kind": "nginx", "config": "/etc/nginx/nginx.conf", "reload": {"command": ["nginx", "-s", "reload"]}}
    write(here, proxies={"edge": nginx, "up": {"kind": "envoy", "nodes": ["edge-*"]}})
    text = errors_of_up(capfd, 1)
    assert "fleet.yaml:17:5: error LB970 proxies.edge: `up` runs its own proxy, but `serve` would also manage" in text
    assert "error LB970 proxies.up: the proxy that `up` adds to the fleet uses the same name" in text
    assert not (here / "state").exists()


def test_defaults_without_a_key_check_are_refused(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(here, defaults={"route": {"timeouts": {"idle": "1m"}}})
    assert "fleet.yaml:16:3: error LB970 defaults: no route requires an API key" in errors_of_up(capfd, 1)


def test_missing_proxy_is_reported_with_its_installation(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(here)
    for name in PROGRAMS:
        monkeypatch.setenv(name, "/nowhere")
    text = errors_of_up(capfd, 4)
    assert [word in text for word in ("pip install", "apt-get install haproxy", "apt-get install nginx")] == [True] * 3
    assert "no HAProxy is installed on this machine" in errors_of_up(capfd, 4, "--proxy", "haproxy")


def test_unsuitable_proxy_is_refused(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write(here, route={"match": {"path_prefix": "/v1/", "model": ["m"]}})
    assert "error LB971 routes.everything.match.model: nginx reads the model" in errors_of_up(
        capfd, 1, "--proxy", "nginx"
    )


def test_from_does_not_replace_a_fleet_and_needs_an_answer(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "error LB960: " in errors_of_up(capfd, 4, "--from", f"http://127.0.0.1:{free_port()}")
    assert not (here / "fleet.yaml").exists()
    write(here)
    text = errors_of_up(capfd, 1, "--from", "http://127.0.0.1:1")
    assert text.startswith("fleet.yaml: error LB961: the file exists, and init does not overwrite files (`lbctl up")


def test_generated_fleet_is_removed_if_no_program_starts(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PROGRAMS:
        monkeypatch.setenv(name, "/nowhere")
    with servers.serving(servers.answering({**servers.vllm(), "/health": ""})) as (server,):
        for _ in range(2):
            text = errors_of_up(capfd, 4, "--from", server.url)
            assert "nothing was started; removed the new fleet.yaml" in text
            assert not (here / "fleet.yaml").exists()


def test_only_a_key_file_of_this_run_is_removed(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PROGRAMS:
        monkeypatch.setenv(name, "/nowhere")
    kept = here / "replica-key"
    with servers.serving(servers.answering({**servers.vllm(), "/health": ""})) as (server,):
        kept.write_text("Bearer sk-of-another-fleet\n")
        errors_of_up(capfd, 4, "--from", server.url)
        assert kept.read_text() == "Bearer sk-of-another-fleet\n"
        kept.rename(here / "key")
        (here / "key").write_text("sk-of-the-servers\n")
        errors_of_up(capfd, 4, "--api-key-file", "key", "--from", server.url)
        assert not kept.exists()


def test_key_file_needs_from(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "requires --from" in errors_of_up(capfd, 64, "--api-key-file", "key")
