"""`lbctl key new` prints a key once, writes the line for it, and imports no heavy modules."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.cli import run
from lbctl.cli.key import _NAME
from lbctl.compile.credential_files import is_secret, parse_keys
from lbctl.model.values import NAME


def new_key(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    assert run(["key", "new", *arguments]) == 0
    out, err = capfd.readouterr()
    return out.strip(), err


def test_new_key_is_printed_with_its_line(capfd: pytest.CaptureFixture[str]) -> None:
    key, message = new_key(capfd, "acme")
    assert len(key) > 40
    assert is_secret(key)
    assert f": sha256:{hashlib.sha256(key.encode()).hexdigest()}: acme\n" in message
    assert key not in message
    assert f": {(plain := new_key(capfd, 'acme', '--plain'))[0]}: acme\n" in plain[1]
    assert plain[0] != key
    hashed = "the line contains a hash, which only HAProxy supports; nginx and Envoy need --plain"
    assert hashed in message
    assert hashed not in plain[1]


@pytest.mark.parametrize("plain", [[], ["--plain"]])
def test_line_is_appended_to_a_private_file(
    plain: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "keys"
    first, message = new_key(capfd, "acme", "-f", str(file), *plain)
    assert file.stat().st_mode & 0o777 == 0o600
    assert first not in message
    file.write_text(file.read_text().rstrip("\n"))
    second, _ = new_key(capfd, "globex", "-f", str(file), *plain)
    keys = parse_keys("keys", file.read_text(), Diagnostics())
    assert keys is not None
    shown = {(item.key or item.sha256, item.tenant) for item in keys}
    wanted = [first, second] if plain else [hashlib.sha256(key.encode()).hexdigest() for key in (first, second)]
    assert shown == {(wanted[0], "acme"), (wanted[1], "globex")}


@pytest.mark.parametrize("tenant", ["Acme Inc", "", "-", "a" * 64])
def test_invalid_tenant_is_refused(tenant: str) -> None:
    assert run(["key", "new", "--", tenant]) == 64
    assert _NAME.pattern == NAME.pattern


def test_without_a_writable_file_no_key_is_printed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "fifo")
    for place in (tmp_path, tmp_path / "no" / "keys", tmp_path / "fifo"):
        assert run(["key", "new", "acme", "-f", str(place)]) == 1
        out, message = capfd.readouterr()
        assert out == ""
        assert message.startswith(f"lbctl: cannot write {place}: ")


def test_key_new_imports_nothing_heavy() -> None:
    code = "import sys; from lbctl.cli import run; run(['key', 'new', 'acme']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert {"pydantic", "yaml", "lbctl.model", "jinja2", "google.protobuf"} & set(done.stderr.split()) == set()
