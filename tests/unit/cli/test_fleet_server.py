"""`--fleet`: the address of the API of a fleet's `serve`, also if `lbctl up` uses another port."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.cli.fleet_server import server_of_fleet
from lbctl.up.places import home_of

TOKEN = "a-token-for-the-test\n"


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
