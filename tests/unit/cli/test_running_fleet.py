"""`--fleet` with a `serve` whose state the file does not name, and with another fleet at the address."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from lbctl.api import client as api_client
from lbctl.api import schema
from lbctl.api.any_version import AnyVersionFleet, AnyVersionListens, AnyVersionStatus
from lbctl.api.client import ServeClient, UnavailableError
from lbctl.cli import fleet_server, run, running_fleet
from lbctl.cli.doctor import places
from lbctl.cli.doctor.api import ApiCheck
from lbctl.cli.doctor.check import DoctorResult
from lbctl.serve.settings import Options, remember_api
from tests.support import api
from tests.support.api import Fleet
from tests.support.api_server import serving

TOKEN = "a-token-for-the-test\n"


def server_of_fleet(path: str) -> tuple[str, str | None]:
    client = fleet_server.server_of_fleet(path)
    return client.url, client.token_file or None


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The API of a serve that runs `fleet.yaml` with a state that the file does not name."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    fleet, state = Fleet(), tmp_path / "own-state"
    state.mkdir()
    (state / "api-token").write_text(TOKEN)
    with serving(fleet, state / "api-token") as url:
        for name in ("fleet.yaml", "other.yaml"):
            bind = url.removeprefix("http://")
            text = f"version: 1\ncontrol: {{api: {{bind: {bind!r}}}, state: {tmp_path}/none}}\n"
            (tmp_path / name).write_text(text)
        files = replace(api.FILES, paths=("fleet.yaml",), directory=str(tmp_path))
        fleet.summary = api.status(fleet=files, listens=schema.Listens(None, None, bind, str(state)))
        remember_api(state, url)
        yield url


def test_token_is_in_the_state_that_the_api_reports(running: str, tmp_path: Path) -> None:
    fleet, token = tmp_path / "fleet.yaml", tmp_path / "own-state" / "api-token"
    assert server_of_fleet(str(fleet)) == (running, str(token))
    assert server_of_fleet(str(tmp_path)) == (running, str(token)), "of a directory with the file"
    assert run(["reload", "--fleet", str(fleet)]) == 0


def test_token_of_the_running_state_is_preferred(running: str, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "api-token").write_text("a-token-of-an-earlier-start\n")
    assert server_of_fleet(str(tmp_path / "fleet.yaml")) == (running, str(tmp_path / "own-state" / "api-token"))


def test_other_fleet_gets_no_token(running: str, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "api-token").write_text(TOKEN)
    assert server_of_fleet(str(tmp_path / "other.yaml")) == (running, None)


def test_default_server_with_another_fleet_gets_no_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet, state, sent = tmp_path / "fleet.yaml", tmp_path / "state", []

    def answered(client: ServeClient, *_: object) -> AnyVersionStatus:
        sent.append(client.token())
        return AnyVersionStatus(fleet=AnyVersionFleet(str(tmp_path), ("state",)))

    state.mkdir()
    (state / "api-token").write_text(TOKEN)
    fleet.write_text(f"version: 1\ncontrol: {{state: {state}}}\n")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(api_client, "TOKEN", str(state / "api-token"))
    monkeypatch.setattr(ServeClient, "get", answered)
    monkeypatch.setattr(ServeClient, "post", answered)
    remember_api(state, api_client.DEFAULT_SERVER)
    run(["reload", "--fleet", str(fleet)])
    assert sent == ["", ""], "neither with the question whose serve it is nor with the command"


@pytest.mark.parametrize("answer", [AnyVersionStatus(), UnavailableError("401: a token is needed")])
def test_server_that_names_no_fleet_gets_a_token_if_named(
    answer: AnyVersionStatus | UnavailableError, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answered(*_: object) -> AnyVersionStatus:
        if isinstance(answer, UnavailableError):
            raise answer
        return answer

    url, token, fleet = "http://127.0.0.1:19090", tmp_path / "default" / "api-token", tmp_path / "fleet.yaml"
    token.parent.mkdir()
    token.write_text(TOKEN)
    monkeypatch.setattr(ServeClient, "get", answered)
    monkeypatch.setattr(fleet_server, "_options", lambda path: Options((path,), str(token.parent)))
    remember_api(token.parent, url)
    fleet.write_text("version: 1\n")
    assert server_of_fleet(str(fleet)) == (url, None), "the file names neither state nor address"
    fleet.write_text("version: 1\ncontrol: {api: {bind: 127.0.0.1:19090}}\n")
    assert server_of_fleet(str(fleet)) == (url, str(token)), "the file names the address"
    fleet.write_text("version: 1\ncontrol: {api: {bind: 127.0.0.1:19091}}\n")
    assert server_of_fleet(str(fleet)) == (url, None), "the file names another address"
    fleet.write_text(f"version: 1\ncontrol: {{state: {token.parent}}}\n")
    assert server_of_fleet(str(fleet)) == (url, str(token)), "the file names the state"


def test_fleet_in_a_subdirectory_is_another_one(tmp_path: Path) -> None:
    status = AnyVersionStatus(fleet=AnyVersionFleet(str(tmp_path), ("staging/fleet.yaml",)))
    assert running_fleet.runs(status, str(tmp_path / "staging"))
    assert not running_fleet.runs(status, str(tmp_path))


@pytest.mark.parametrize("text", ["a\0b", "\ud800", "\x1b[31m"])
def test_texts_that_are_not_paths_do_no_harm(text: str, tmp_path: Path) -> None:
    status = AnyVersionStatus(fleet=AnyVersionFleet(f"/{text}", (text,)), listens=AnyVersionListens(state=text))
    assert not running_fleet.runs(status, str(tmp_path))
    assert running_fleet.names_of(status).isprintable()
    assert running_fleet.token_in(text) is None


def test_secret_that_another_process_names_is_not_a_token(running: str, tmp_path: Path) -> None:
    fleet, state = tmp_path / "fleet.yaml", tmp_path / "own-state"
    remember_api(state, "http://127.0.0.1:9")
    assert server_of_fleet(str(fleet)) == (running, None), "the state is of a serve with another address"
    remember_api(state, running)
    (state / "api-token").rename(tmp_path / "secret")
    (state / "api-token").symlink_to(tmp_path / "secret")
    assert server_of_fleet(str(fleet)) == (running, None), "a link to another file"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
def test_state_of_another_user_has_no_token(running: str, tmp_path: Path) -> None:
    os.chown(tmp_path / "own-state", 1, 1)
    assert server_of_fleet(str(tmp_path / "fleet.yaml")) == (running, None)


def test_other_fleet_at_the_address_of_the_file_is_named(
    running: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.yaml"
    assert run(["status", "--fleet", str(other)]) == 0
    warning = f"lbctl: warning: --fleet: serve at {running} runs {tmp_path}/fleet.yaml, not {other}\n"
    assert capsys.readouterr().err == warning


def test_other_fleet_at_the_default_address_is_refused(
    running: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(f"version: 1\ncontrol: {{state: {tmp_path}/none}}\n")
    monkeypatch.setattr(fleet_server, "_reachable", lambda _: running.removeprefix("http://"))
    assert run(["status", "--fleet", str(other)]) == 4
    shown = capsys.readouterr()
    assert shown.out == ""
    assert (
        f"no running serve was found for {other}, and serve at {running} runs {tmp_path}/fleet.yaml (start" in shown.err
    )
    monkeypatch.setattr("lbctl.serve.settings.last_api", lambda _: running)
    other.write_text("version: 1\n")
    assert run(["status", "--fleet", str(other)]) == 4, "the default state, which the file does not name either"
    (tmp_path / "fleet.yaml").unlink()
    assert run(["status", "--fleet", str(other)]) == 0, "a container, for example, whose paths are not those of here"
    assert "warning: --fleet: serve at" in capsys.readouterr().err


@pytest.mark.parametrize(("host", "is_sent"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_doctor_sends_a_token_beyond_loopback_alone(
    host: str, is_sent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[ServeClient] = []

    def check(server: ServeClient, _needed: bool) -> ApiCheck:
        clients.append(server)
        return ApiCheck(DoctorResult("serve", "skipped", ""))

    monkeypatch.setattr("lbctl.cli.doctor.api.api", check)
    monkeypatch.setattr("lbctl.cli.doctor.programs.programs", lambda _: ())
    (tmp_path / "api-token").write_text(TOKEN)
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f"version: 1\ncontrol: {{api: {{bind: '{host}:18080'}}, state: {tmp_path}}}\n")
    run(["doctor", str(fleet)])
    assert [item.token_file for item in clients] == [str(tmp_path / "api-token") if is_sent else ""]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another user")
@pytest.mark.parametrize("owner", [0, 1])
def test_doctor_needs_only_the_state_of_the_user(
    running: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: int
) -> None:
    asked: list[tuple[Path, bool]] = []

    def state(place: Path, needed: bool) -> DoctorResult:
        asked.append((place, needed))
        return DoctorResult("state", "ok", "")

    monkeypatch.setattr("lbctl.cli.doctor.places.state", state)
    monkeypatch.setattr("lbctl.cli.doctor.programs.programs", lambda _: ())
    os.chown(tmp_path / "own-state", owner, owner)
    for text in ("version: 1\n", f"version: 1\ncontrol: {{state: {tmp_path}/none}}\n"):
        (tmp_path / "fleet.yaml").write_text(text)
        run(["doctor", str(tmp_path / "fleet.yaml"), "--server", running])
    assert asked == 2 * [(tmp_path / "own-state", owner == 0)]


@pytest.mark.parametrize(("needed", "state"), [(False, "skipped"), (True, "failed")])
def test_doctor_advises_no_chown_of_another_users_state(
    needed: bool, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places.os, "access", lambda *_: False)
    monkeypatch.setattr(places.os, "geteuid", lambda: os.getuid() + 1)
    check = places.state(tmp_path, needed=needed)
    assert (check.state, "chown" in check.todo) == (state, False)
    assert check.message.endswith("only a serve process of that user can use it")


@pytest.mark.parametrize("listens", [None, AnyVersionListens(), AnyVersionListens(xds="")])
def test_doctor_with_a_serve_that_reports_no_addresses(
    listens: AnyVersionListens | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = AnyVersionStatus(fleet=AnyVersionFleet(str(tmp_path), ("fleet.yaml",)), listens=listens)
    found = ApiCheck(DoctorResult("serve", "ok", ""), (), status)
    monkeypatch.setattr("lbctl.cli.doctor.api.api", lambda _server, _needed: found)
    monkeypatch.setattr("lbctl.cli.doctor.programs.programs", lambda _: ())
    (tmp_path / "fleet.yaml").write_text(f"version: 1\ncontrol: {{state: {tmp_path}}}\n")
    assert run(["doctor", str(tmp_path / "fleet.yaml")]) in (0, 3)
