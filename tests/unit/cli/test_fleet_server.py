"""`--fleet`: the address of the API of a fleet's `serve`, even if `lbctl up` uses another port."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from lbctl.api.client import ServeClient, UnavailableError
from lbctl.cli import fleet_server
from lbctl.serve.settings import remember_api
from lbctl.up.places import home_of

TOKEN = "a-token-for-the-test\n"


def server_of_fleet(path: str) -> tuple[str, str | None]:
    client = fleet_server.server_of_fleet(path)
    return client.url, client.token_file or None


@pytest.fixture(autouse=True)
def nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep a `serve` of this machine out of the tests."""

    def no_answer(*_: object) -> None:
        raise UnavailableError("nothing listens there")

    monkeypatch.setattr(ServeClient, "get", no_answer)


def test_api_of_a_running_up_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f"version: 1\ncontrol: {{state: {tmp_path}/state}}\n")
    of_the_fleet = ("http://127.0.0.1:18080", None)
    assert server_of_fleet(str(fleet)) == of_the_fleet
    home = home_of((str(fleet),))
    with home.locked():
        assert server_of_fleet(str(fleet)) == of_the_fleet, "it is just starting"
        home.announce("127.0.0.1:18084")
        home.state.mkdir()
        (home.state / "api-token").write_text(TOKEN)
        assert server_of_fleet(str(fleet)) == ("http://127.0.0.1:18084", str(home.state / "api-token"))
    assert server_of_fleet(str(fleet)) == of_the_fleet, "it has ended"
    with home.locked():
        assert server_of_fleet(str(fleet)) == of_the_fleet, "the next one has not said yet where it listens"


def test_user_without_home_gets_the_api_of_the_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(_: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")  # as for a user that no file knows, without HOME

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", classmethod(no_home))
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f"version: 1\ncontrol: {{state: {tmp_path}/state}}\n")
    assert server_of_fleet(str(fleet)) == ("http://127.0.0.1:18080", None)


def test_broken_file_still_names_its_server(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("version: 1\ncontrol: {api: {bind: 127.0.0.1:19090}, state: state}\npools: [\n")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "api-token").write_text(TOKEN)
    assert server_of_fleet(str(fleet)) == ("http://127.0.0.1:19090", str(tmp_path / "state" / "api-token"))


def test_last_address_of_the_state_takes_precedence(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("version: 1\ncontrol: {api: {bind: 127.0.0.1:19090}, state: state}\n")
    (tmp_path / "state").mkdir()
    for url in ("http://127.0.0.1:19190", "https://0.0.0.0:19191"):
        remember_api(tmp_path / "state", url)
    assert (tmp_path / "state" / "api-url").stat().st_mode & 0o777 == 0o600
    assert server_of_fleet(str(fleet))[0] == "https://127.0.0.1:19191"
    (tmp_path / "state" / "api-url").write_text("nonsense\n")
    assert server_of_fleet(str(fleet))[0] == "http://127.0.0.1:19090"


def test_unreadable_address_is_an_error(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(f"version: 1\ncontrol:\n  api: [\n  state: {tmp_path}/state\n")
    with pytest.raises(click.ClickException, match=r"--fleet: .*fleet\.yaml:3:8: error LB004"):
        server_of_fleet(str(fleet))


def test_broken_file_without_control_means_the_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text("version: [1\n")
    assert server_of_fleet(str(fleet))[0] == "http://127.0.0.1:18080"
    assert f"warning: --fleet: {fleet}:1:10: error LB004" in capsys.readouterr().err
