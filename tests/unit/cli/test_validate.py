"""`lbctl validate` confirms a valid fleet on a terminal, and prints nothing in a pipe."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lbctl.cli import run
from tests.support.fleets import fleet_of, write_fleet


@pytest.mark.parametrize("is_terminal", [True, False])
def test_valid_fleet_is_one_line_on_a_terminal(
    is_terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_fleet(tmp_path, fleet_of())
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    assert run(["validate", str(file)]) == 0
    line = "lbctl: valid: 1 listener, 1 route, 1 pool, 1 replica\n"
    assert tuple(capsys.readouterr()) == ("", line if is_terminal else "")


def test_invalid_fleet_is_not_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text("version: 1\nrouts: {}\n")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run(["validate", str(tmp_path / "fleet.yaml")]) == 1
    assert "lbctl: valid" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kinds", "named"),
    [((), "nginx, envoy: "), (("haproxy",), ""), (("envoy", "haproxy"), "Envoy "), (("nginx",), "nginx ")],
)
def test_hashed_keys_are_reported_for_proxies_that_refuse_them(
    kinds: tuple[str, ...], named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "keys").write_text(f"sha256:{'0' * 64}: acme\n")
    sections = {"proxies": {kind: {"kind": kind} for kind in kinds}} if kinds else {}
    file = str(write_fleet(tmp_path, fleet_of(route={"auth": {"api_keys": {"file": "keys"}}}, **sections)))
    assert run(["validate", file]) == 0
    validated = capsys.readouterr().err
    assert run(["lint", "--select", "LB443", file]) == 0
    linted = capsys.readouterr().out
    message = f"LB443 routes.everything.auth.api_keys.file: {named}cannot compare hashes: it rejects 1 of 1 keys"
    assert (message in validated, message in linted) == (bool(named), bool(named))
    assert ("LB443" in validated) == bool(named)
    assert ("`proxies`" in linted) == (not kinds)


@pytest.mark.parametrize(("count", "codes"), [(16, []), (17, ["LB206"])])
def test_objects_with_other_settings_are_reported(
    count: int, codes: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replicas = [{"name": f"r{number}", "address": f"10.0.0.{number}:80", "weight": number} for number in range(1, 18)]
    sections = {"proxies": {"edge": {"kind": "gateway-api", "kubernetes": {"namespace": "ml", "gateway_class": "eg"}}}}
    fleet = fleet_of({"replicas": replicas[:count]}, **sections)
    fleet["listeners"]["gateway"] = {"bind": "0.0.0.0:80"}
    assert run(["validate", "-o", "json", str(write_fleet(tmp_path, fleet))]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [item["code"] for item in found] == codes
    assert all(item["line"] for item in found)


@pytest.mark.parametrize("command", [("validate",), ("render", "-t", "envoy")])
@pytest.mark.parametrize(
    ("bind", "tls", "missing"),
    [
        ("10.0.0.5:18001", None, "without TLS"),
        ("10.0.0.5:18001", {}, "without client certificates"),
        ("10.0.0.5:18001", {"client_ca": "tls/ca.crt"}, ""),
        ("127.0.0.1:18001", None, ""),
    ],
)
def test_exposed_picker_is_a_warning(
    command: tuple[str, ...],
    bind: str,
    tls: dict[str, str] | None,
    missing: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    xds = {} if tls is None else {"xds": {"tls": {"certificate": "tls/xds.crt", "key": "tls/xds.key"} | tls}}
    pool = {"balance": {"algorithm": "pick"}, "replicas": [{"name": "a", "address": "10.0.0.1:80"}]}
    fleet = fleet_of(pool, control={"picker": {"bind": bind}} | xds)
    file = write_fleet(tmp_path, fleet)
    assert run([*command, str(file)]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "LB513" in line]
    assert len(lines) == bool(missing)
    for line in lines:
        assert line.startswith(f"{file}:")
        assert f"warning LB513 control.picker.bind: the picker on {bind} {missing} would accept prompts" in line
        assert "set certificate, key and client_ca in control.xds.tls" in line
