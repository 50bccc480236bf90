"""Key files: what is let in, what is refused, and that nothing of them is ever repeated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from lbctl.base.diagnostics import Diagnostics
from lbctl.compile.secrets import read_secrets
from lbctl.ir.secrets import ApiKey, Secrets
from lbctl.model.fleet import read

FLEET = {
    "version": 1,
    "listeners": {"gateway": {"bind": "127.0.0.1:8080"}},
    "routes": {
        "all": {
            "pool": "p",
            "auth": {"api_keys": {"file": "keys"}, "jwt": {"issuer": "https://i", "jwks_file": "jwks"}},
        }
    },
    "pools": {"p": {"replicas": [{"address": "127.0.0.1:1"}]}},
}
HASH = "sha256:" + "ab" * 32
JWKS = json.dumps({"keys": [{"kty": "RSA", "n": "AQ", "e": "AQAB"}]})


def _read(folder: Path, keys: str | None, jwks: str | None, required: bool = False) -> tuple[Secrets, list[str]]:
    (folder / "fleet.yaml").write_text(yaml.safe_dump(FLEET))
    for name, text in (("keys", keys), ("jwks", jwks)):
        if text is not None:
            (folder / name).write_text(text)
    diagnostics = Diagnostics()
    source = read([str(folder / "fleet.yaml")], diagnostics)
    assert source is not None
    secrets = read_secrets(source, required, diagnostics)
    return secrets, [str(item).replace(f"{folder}/", "") for item in diagnostics]


def test_plain_and_hashed_keys_are_read_with_their_tenants(tmp_path: Path) -> None:
    secrets, found = _read(tmp_path, f"# ours\nsk-1: acme\n\n{HASH}: globex\n", JWKS)
    assert found == []
    assert secrets.api_keys["keys"] == (ApiKey("globex", sha256="ab" * 32), ApiKey("acme", key="sk-1"))
    assert secrets.jwks["jwks"] == JWKS


def test_a_missing_file_warns_and_lets_nobody_in(tmp_path: Path) -> None:
    secrets, found = _read(tmp_path, None, None)
    assert [line.split(":")[3].split()[0:2] for line in found] == [["warning", "LB503"], ["warning", "LB503"]]
    assert secrets == Secrets()


def test_a_missing_file_is_an_error_where_files_are_required(tmp_path: Path) -> None:
    _, found = _read(tmp_path, None, None, required=True)
    assert [" error LB503 " in line for line in found] == [True, True]


@pytest.mark.parametrize(
    "line", ["hunter2", "hunter2:acme", "sha256:123: acme", "hun ter2: acme", "hunter2: ACME", "hunter2: ", ": acme"]
)
def test_a_line_that_is_no_key_is_an_error_at_its_line_that_does_not_repeat_the_key(tmp_path: Path, line: str) -> None:
    _, found = _read(tmp_path, f"good: acme\n{line}\n", JWKS)
    assert len(found) == 1
    assert found[0].startswith("keys:2:1: error LB507")
    assert "hunter2" not in found[0]


def test_a_key_in_the_place_of_the_tenant_is_not_repeated(tmp_path: Path) -> None:
    _, found = _read(tmp_path, "acme: sk-HUNTER2\n", JWKS)
    assert [line.split(" ")[:3] for line in found] == [["keys:1:1:", "error", "LB507:"]]
    assert "HUNTER2" not in found[0]


def test_a_key_that_stands_twice_is_an_error(tmp_path: Path) -> None:
    _, found = _read(tmp_path, "sk-1: acme\nsk-1: globex\n", JWKS)
    assert [line.split(" ")[:3] for line in found] == [["keys:2:1:", "error", "LB507:"]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no json", "not JSON"),
        ("[]", "no list of keys"),
        ('{"keys": [1]}', "no list of keys"),
        ('{"keys": [{"kty": "RSA", "d": "hunter2"}]}', "private or symmetric"),
        ('{"keys": [{"kty": "RSA", "n": "hunter2!", "e": "AQAB"}]}', "not base64url"),
        ('{"keys": [{"kty": "oct", "k": "hunter2"}]}', "private or symmetric"),
    ],
)
def test_what_is_no_public_jwks_is_an_error_at_the_key_that_names_it(tmp_path: Path, text: str, words: str) -> None:
    _, found = _read(tmp_path, "sk-1: acme\n", text)
    assert len(found) == 1
    assert "LB508 routes.all.auth.jwt.jwks_file" in found[0]
    assert words in found[0]
    assert "hunter2" not in found[0]


def test_a_set_without_a_key_is_a_warning_that_nobody_is_let_in(tmp_path: Path) -> None:
    _, found = _read(tmp_path, "sk-1: acme\n", '{"keys": []}')
    assert len(found) == 1
    assert "warning LB503 routes.all.auth.jwt.jwks_file: this set holds no key" in found[0]


def test_a_key_is_not_shown_when_it_is_printed() -> None:
    assert repr(ApiKey("acme", key="hunter2", sha256="ab")) == "ApiKey(tenant='acme')"
