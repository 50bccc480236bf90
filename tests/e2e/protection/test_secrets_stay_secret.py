"""Keys of clients are only in the key file and in one rendered file that only its owner can read.

They are not in the main configuration, in the output of lbctl, or in a log of the proxy, even after errors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from lbctl.cli import run
from tests.support.fleets import Fleet, write_fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.client import Client
from tests.support.processes.fleet import Gateway, fleet_of, put, render, running
from tests.support.processes.replicas import replicas
from tests.support.processes.tokens import ISSUER, Issuer, bearer

_KEYS = ("sk-Live7f3kQ", "sk-Seldom9dPz", "xoxb-odd$%{}\"'")
_FILE = "".join(f"{key}: tenant{number}\n" for number, key in enumerate(_KEYS))
_MARKS = ("Live7f3kQ", "Seldom9dPz", "xoxb")
_APART = {
    "nginx": "nginx-api-keys-everything.map",
    "haproxy": "haproxy-api-keys-everything.map",
    "envoy": "envoy-listeners.yaml",
}


def _keyed_fleet(address: str, **auth: Any) -> Fleet:
    route = {"auth": {"api_keys": {"file": "keys"}, **auth}, "rate_limit": [{"by": "tenant", "rate": "2/m"}]}
    return fleet_of({"replicas": [{"name": "a", "address": address}]}, route=route)


@contextmanager
def _used(kind: Kind, *options: str, **auth: Any) -> Iterator[tuple[Gateway, str]]:
    """Yield a gateway after requests that were accepted, rejected, limited and aborted; and a token among them."""
    token = Issuer().rs256()
    files = {"keys": _FILE, "jwks.json": Issuer().jwks()}
    with replicas("a") as (a,):
        fleet = _keyed_fleet(a.address, **auth)
        with running(kind, fleet, files=files, options=options) as gateway:
            for key in (*_KEYS, f"Bearer {_KEYS[0]}", f"{_KEYS[0]}x", f"Bearer {token}"):
                for path in ("/", "/v1/chat/completions", "/%zz", "/x/../y"):
                    gateway.post(path, b'{"model": "m"}', {"authorization": key})
            a.behave(fault="reset")
            gateway.get(headers={"authorization": _KEYS[1]})
            a.refuse()
            gateway.get(headers={"authorization": _KEYS[1]})
            gateway.request(
                "GET", "/", [("authorization", _KEYS[0]), ("authorization", _KEYS[1]), ("content-length", "x")]
            )
            gateway.access_log(20)
            yield gateway, token


def _secrets_in(text: str, *more: str) -> list[str]:
    """Return the secrets that a text contains, in any quoting."""
    return [secret for secret in (*_MARKS, *more) if secret in text]


def test_keys_are_in_one_private_file_and_in_no_log(kind: Kind) -> None:
    with _used(kind, "--check") as (gateway, token):
        directory = gateway.proxy.directory
        rendered = {file.name: file for file in (directory / "out").iterdir()}
        holding = [name for name, file in rendered.items() if _secrets_in(file.read_text())]
        assert holding == ([] if kind == "haproxy" else [_APART[kind]])
        assert rendered[_APART[kind]].stat().st_mode & 0o777 == 0o600
        assert all(file.stat().st_mode & 0o777 == 0o644 for name, file in rendered.items() if name != _APART[kind])
        signature = token.rsplit(".", 1)[1]
        written = {file for file in directory.rglob("*") if file.is_file() and file.parent != directory / "out"}
        leaks = {file.name for file in written if _secrets_in(file.read_text(errors="replace"), signature)}
        assert leaks == {"keys"}
        assert _secrets_in(gateway.messages, signature) == []


@pytest.mark.parametrize("kind", ["haproxy", "envoy"])
def test_keys_and_tokens_are_in_no_log(kind: Kind) -> None:
    jwt = {"issuer": ISSUER, "jwks_file": "jwks.json", "tenant_claim": "org"}
    with _used(kind, jwt=jwt, forward_credentials=True) as (gateway, token):
        assert gateway.get(headers=bearer(token)).status in (200, 429, 503)
        logs = gateway.proxy.stdout.read_text() + gateway.proxy.stderr.read_text() + gateway.messages
        assert _secrets_in(logs, token, token.split(".")[1], token.rsplit(".", 1)[1]) == []


def test_haproxy_file_contains_hashes(tmp_path: Path) -> None:
    put(tmp_path, {"keys": _FILE})
    done = render("haproxy", write_fleet(tmp_path, _keyed_fleet("127.0.0.1:1")), tmp_path / "out")
    assert done.code == 0, done.stderr
    lines = (tmp_path / "out" / _APART["haproxy"]).read_text().splitlines()
    assert sorted(line.split(" ")[1] for line in lines) == ["tenant0", "tenant1", "tenant2"]
    assert all(len(line.split(" ")[0]) == 64 for line in lines)


def test_envoy_admin_port_shows_no_key() -> None:
    with _used("envoy") as (gateway, _):
        where = yaml.safe_load(gateway.proxy.config.read_text())["admin"]["address"]["socket_address"]
        dump = Client(where["port_value"]).get("/config_dump").text
    assert "ApiKeyAuthPerRoute" in dump
    assert _secrets_in(dump) == []


def test_file_readable_by_others_is_corrected(kind: Kind, tmp_path: Path) -> None:
    put(tmp_path, {"keys": _FILE})
    path = write_fleet(tmp_path, _keyed_fleet("127.0.0.1:1"))
    file = tmp_path / "out" / _APART[kind]
    for _ in range(2):
        assert render(kind, path, tmp_path / "out").code == 0
        assert file.stat().st_mode & 0o777 == 0o600
        file.chmod(0o644)


def test_output_of_lbctl_contains_no_key(kind: Kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a configuration on standard output, nor the errors of invalid key files or of a failed check."""
    wrong = f"{_FILE}{_KEYS[0]}: twice\n{_KEYS[1]} without a tenant\nsk-third:nothing\nsk-fourth: NO TENANT\n"
    for keys in (_FILE, wrong):
        put(tmp_path, {"keys": keys})
        path = write_fleet(tmp_path, _keyed_fleet("127.0.0.1:1"))
        for command in (
            ["render", "-t", kind],
            ["render", "-t", kind, "-d", str(tmp_path / "out"), "--check"],
            ["validate"],
        ):
            code = run([*command, str(path)])
            output, errors = capsys.readouterr()
            assert "Traceback" not in errors
            assert _secrets_in(output + errors, "sk-third", "sk-fourth") == []
            if keys == wrong:
                assert code == 1
                assert re.findall(r"keys:([0-9]+):[0-9]+: error LB507", errors) == ["4", "5", "6", "7"]
