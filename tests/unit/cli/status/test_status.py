"""`lbctl status`: `--check` with `--wait` and `--expect`, `--watch`, and `--fleet`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from lbctl.api import schema
from lbctl.cli import run
from tests.support import api
from tests.support.api import Fleet
from tests.support.api_server import serving
from tests.support.processes.ports import free_port
from tests.support.pseudo_terminal import on_terminal

WAITING = replace(api.DRIVEN, state="WAITING", reason="its next reload is due")
GONE = replace(api.ENVOY, node="edge-2", connected=False, state="GONE")


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


@pytest.fixture
def server(fleet: Fleet) -> Iterator[str]:
    with serving(fleet) as url:
        yield url


@pytest.mark.slow
def test_check_waits_for_the_reload_of_a_proxy(fleet: Fleet, server: str, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.connected = (WAITING,)
    assert run(["status", "--check", "--server", server]) == 3
    assert "ha is WAITING: its next reload is due" in capsys.readouterr().err
    reload = threading.Timer(0.7, setattr, (fleet, "connected", (api.DRIVEN,)))
    reload.start()
    assert run(["status", "--check", "--wait", "20s", "--server", server]) == 0
    reload.join()
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_wait_times_out_with_the_missing_proxies(fleet: Fleet, server: str, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.connected = (WAITING,)
    assert run(["status", "--check", "--wait", "1s", "--server", server]) == 3
    assert "ha is WAITING" in capsys.readouterr().err


def test_disconnected_envoy_is_not_expected(fleet: Fleet, server: str, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.connected = (
        api.ENVOY,
        GONE,
    )
    assert run(["status", "--check", "--server", server]) == 0
    assert run(["status", "--check", "--expect", "1", "--server", server]) == 0
    assert run(["status", "--check", "--expect", "2", "--server", server]) == 3
    message = "1 of 2 expected proxies are connected and in sync; disconnected: edge-2"
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("running", "dry_run", "reason", "problem"),
    [
        (True, False, None, ""),
        (False, True, None, ""),
        (False, False, None, "lbctl: the picker at 127.0.0.1:18001 is not running: it is starting\n"),
        (False, False, "it hangs", "lbctl: the picker at 127.0.0.1:18001 is not running: it hangs\n"),
    ],
)
def test_check_fails_if_a_required_picker_does_not_run(
    running: bool, dry_run: bool, reason: str | None, problem: str,
    fleet: Fleet, server: str, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    picker = schema.PickerStatus("127.0.0.1:18001", running, False, None, 1, reason, 0, 1)
    fleet.summary = api.status(picker=picker, dry_run=dry_run)
    assert run(["status", "--check", "--server", server]) == (3 if problem else 0)
    assert capsys.readouterr().err == problem


def test_picker_that_cannot_save_its_memory_is_shown(
    fleet: Fleet, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    picker = schema.PickerStatus("127.0.0.1:18001", True, False, None, 1, None, 0, 1, "No space left on device")
    fleet.summary = api.status(picker=picker)
    assert run(["status", "--server", server]) == 0
    assert "it cannot save its memory: No space left on device\n" in capsys.readouterr().out


def test_files_are_shown_as_being_read_at_the_start(
    fleet: Fleet, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    files = replace(api.FILES, valid=False, read=None)
    fleet.summary = api.status(ready=False, waiting="starting", fleet=files)
    assert run(["status", "--check", "--server", server]) == 3
    shown = capsys.readouterr()
    assert "files      fleet/: being read\n" in shown.out
    assert shown.err == "lbctl: not ready: starting\n"


@pytest.mark.slow
def test_check_waits_for_an_unreachable_serve(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--check", "--wait", "1s", "--server", "http://127.0.0.1:9"]) == 4
    assert "is not responding" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [["--wait", "3s"], ["--expect", "1"], ["--check", "--watch"], ["--check", "--wait", "soon"]]
)
def test_incompatible_options_are_refused(arguments: list[str], server: str) -> None:
    assert run(["status", *arguments, "--server", server]) == 64


@pytest.mark.slow
def test_watch_in_a_pipe_survives_a_restart_of_serve(fleet: Fleet) -> None:
    port = free_port()
    with serving(fleet, port=port) as url:
        code = "from lbctl.cli import main, watch; watch.INTERVAL = 0.2; main()"
        command = [sys.executable, "-c", code, "status", "proxies", "--watch", "--server", url]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        lines = process.stdout
        assert lines is not None
        assert lines.readline().startswith("NODE")
        assert lines.readline().startswith("edge-1  edge   envoy  SYNCED")
        assert lines.readline() == "\n"
        assert lines.readline().startswith("NODE")
    try:
        while "is not responding" not in (line := lines.readline()):
            assert line
        with serving(fleet, port=port):
            while not line.startswith("edge-1"):
                line = lines.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait(60)
        lines.close()


@pytest.mark.slow
def test_watch_on_a_terminal_redraws_within_its_width(fleet: Fleet, server: str) -> None:
    reason = "nginx: [emerg] bind() to 0.0.0.0:80 failed (98: Address already in use), and it was tried three times"
    fleet.connected = (
        api.ENVOY,
        replace(api.DRIVEN, state="FAILING", reason=reason),
    )
    with on_terminal(
        "status", "proxies", "--watch", "--server", server, constants={"lbctl.cli.watch.INTERVAL": 0.2}
    ) as terminal:
        terminal.await_text("three times")
        assert max(map(len, terminal.text.splitlines())) <= 80
        assert "\x1b[31mFAILING\x1b[0m" in terminal.shown
        terminal.forget()
        terminal.await_text("three times")
        assert "\x1b[H" in terminal.shown
        terminal.press("\x03")
        assert terminal.end() == 130
    with on_terminal("status", "proxies", "--server", server, environment={"NO_COLOR": "1"}) as terminal:
        assert terminal.end() == 0
        assert "\x1b[31m" not in terminal.shown


# ── --fleet ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_fleet_with_api(directory: Path, url: str, more: str = "") -> Path:
    file = directory / "fleet.yaml"
    file.write_text(f"version: 1\ncontrol: {{api: {{bind: '{url.removeprefix('http://')}'{more}}}, state: state}}\n")
    return file


def test_fleet_gives_the_server_and_its_token(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    token = tmp_path / "state" / "api-token"
    token.write_text("a-token-of-some-length\n")
    with serving(fleet, token) as url:
        file = str(write_fleet_with_api(tmp_path, url))
        assert run(["reload", "--fleet", file]) == 0
        assert run(["reload", "--fleet", str(tmp_path)]) == 0
        assert fleet.reloads == [False, False]


def test_reading_works_with_a_file_of_several_tokens(fleet: Fleet, tmp_path: Path) -> None:
    token = tmp_path / "tokens"
    token.write_text("anna:operate:token-of-anna\nviewer:read:token-of-viewer\n")
    with serving(fleet, token) as url:
        file = str(write_fleet_with_api(tmp_path, url, ", token_file: tokens"))
        assert run(["status", "--fleet", file]) == 0
        assert run(["reload", "--fleet", file]) == 4


def test_options_take_precedence_over_the_environment(
    fleet: Fleet, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(write_fleet_with_api(tmp_path, server))
    monkeypatch.setenv("LBCTL_SERVER", "http://127.0.0.1:9")
    assert run(["status", "-o", "json"]) == 4
    assert run(["status", "--fleet", file]) == 0
    capsys.readouterr()
    monkeypatch.setenv("LBCTL_FLEET", file)
    monkeypatch.delenv("LBCTL_SERVER")
    assert run(["status", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == "1"
    assert run(["status", "--server", "http://127.0.0.1:9"]) == 4


def test_unreadable_fleet_is_an_error_with_its_position(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "--fleet", str(tmp_path / "none.yaml")]) == 1
    assert "none.yaml" in capsys.readouterr().err
    (tmp_path / "fleet.yaml").write_text("version: 1\ncontrol: {api: [\n")
    assert run(["status", "--fleet", str(tmp_path)]) == 1
    assert "fleet.yaml:2:16: error LB004" in capsys.readouterr().err
