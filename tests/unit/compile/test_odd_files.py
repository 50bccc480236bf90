"""Paths that are not regular files: a symlink loop, a pipe, a socket, a directory, a device."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from lbctl.cli import run
from lbctl.serve.fleet import key_files, reload
from tests.support.fleets import fleet_of, write_fleet
from tests.support.reload import Fleet, certificate, sizes

AUTH = {"api_keys": {"file": "KEYS"}, "jwt": {"issuer": "https://i", "jwks_file": "JWKS"}}
DISCOVERED = {"discovery": {"file": {"path": "TARGETS"}}, "tls": {"ca": "CA"}}
ODD = {
    "loop": ("too many levels of symbolic links", "cannot be read: too many levels of symbolic links"),
    "fifo": ("not a regular file", "is not a regular file"),
    "socket": ("no such device or address", "is not a regular file"),
    "directory": ("is a directory", "is not a regular file"),
    "device": ("not a regular file", "is not a regular file"),
}
"""Kind of file → the reason in LB503, and the end of the message of LB110."""


def place_odd_file(place: Path, kind: str) -> None:
    match kind:
        case "loop":
            place.symlink_to(place.name)
        case "fifo":
            os.mkfifo(place)
        case "socket":
            with socket.socket(socket.AF_UNIX) as opened:
                opened.bind(str(place))
        case "directory":
            place.mkdir()
        case _:
            place.symlink_to("/dev/zero")


@pytest.mark.parametrize("kind", ODD)
def test_validate_and_render_report_unreadable_files(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path may not be long
    write_fleet(Path(), fleet_of(route={"auth": AUTH}, pools={"discovered": DISCOVERED}))
    for name in ("KEYS", "JWKS", "TARGETS", "CA"):
        place_odd_file(Path(name), kind)
    assert run(["validate", "fleet.yaml"]) == 0
    in_parentheses, at_the_end = ODD[kind]
    lines = capfd.readouterr().err.splitlines()
    assert [line.partition(": warning ")[2].partition(": it authenticates")[0] for line in lines] == [
        f"LB503 routes.everything.auth.api_keys.file: 'KEYS' cannot be read ({in_parentheses})",
        f"LB503 routes.everything.auth.jwt.jwks_file: 'JWKS' cannot be read ({in_parentheses})",
        f"LB110 pools.discovered.discovery.file.path: 'TARGETS' {at_the_end}",
        f"LB110 pools.discovered.tls.ca: 'CA' {at_the_end}",
    ]
    assert run(["render", "-t", "nginx", "--require-files", "fleet.yaml"]) == 1
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("kind", ODD)
def test_serve_keeps_the_last_valid_files_without_blocking(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Let files count as completely written at once, so that no load waits for them to settle.
    monkeypatch.setattr(reload, "_QUIET", 0.0)
    monkeypatch.setattr(key_files, "_SETTLE_NS", 0)
    fleet = Fleet(tmp_path)
    before = certificate(fleet.load())
    for name in ("keys.yaml", "server.key", "server.crt"):
        file = tmp_path / ("secrets" if name == "keys.yaml" else "tls") / name
        file.unlink()
        with monkeypatch.context() as context:
            context.chdir(file.parent)
            place_odd_file(Path(name), kind)
    outcomes: list[object] = []
    thread = threading.Thread(target=lambda: outcomes.append(fleet.load()), daemon=True)
    thread.start()
    thread.join(60)
    assert outcomes, "load blocks on a pipe"
    outcome = fleet.load()
    assert outcome.loaded is None
    assert outcome.refused is not None
    assert outcome.refused.startswith("key file 'secrets/keys.yaml' cannot be used")
    fleet.target(3)
    outcome = fleet.load()
    assert (sizes(outcome)["filed"], certificate(outcome)) == (3, before)
