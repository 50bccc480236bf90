"""Key files: what is let in, what is refused, and that nothing of them is ever repeated."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

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
    assert re.match(r"keys:2:\d+: error LB507", found[0])
    assert "hunter2" not in found[0]


def test_a_key_in_the_place_of_the_tenant_is_not_repeated(tmp_path: Path) -> None:
    _, found = _read(tmp_path, "acme: sk-HUNTER2\n", JWKS)
    assert [line.split(" ")[:3] for line in found] == [["keys:1:7:", "error", "LB121:"]]
    assert "HUNTER2" not in found[0]


@pytest.mark.parametrize(
    ("line", "key", "tenant"),
    [
        ('"sk-1": acme', "sk-1", "acme"),
        ("'sk-1': 'acme'", "sk-1", "acme"),
        ('"sk-1" : "acme"   # since May: ours', "sk-1", "acme"),
        ("'it''s': acme", "it's", "acme"),
        (r'"a\"b\\c\/d": acme', 'a"b\\c/d', "acme"),
        ('"#1": acme', "#1", "acme"),
        ("'a:b': acme", "a:b", "acme"),
        ("a:b:c: acme # d: e", "a:b:c", "acme"),
        ("a#b: acme", "a#b", "acme"),
        ("a'b\"c: acme", "a'b\"c", "acme"),
        ("{a}[b]: acme", "{a}[b]", "acme"),
        ("null: acme", "null", "acme"),
        ("007: 42", "007", "42"),
    ],
)
def test_a_line_is_read_as_yaml_reads_it(tmp_path: Path, line: str, key: str, tenant: str) -> None:
    secrets, found = _read(tmp_path, f"---\n{line}\r\n{HASH}: globex\n", JWKS)
    assert found == []
    assert secrets.api_keys["keys"] == tuple(
        sorted([ApiKey(tenant, key=key), ApiKey("globex", sha256="ab" * 32)], key=lambda item: item.key or HASH)
    )
    if not line.startswith("{"):
        assert [str(item) for item in yaml.load(line, yaml.BaseLoader).items()] == [str((key, tenant))]


def test_quotes_of_a_hash_are_no_part_of_it(tmp_path: Path) -> None:
    secrets, found = _read(tmp_path, f"'{HASH}': globex\n", JWKS)
    assert (secrets.api_keys["keys"], found) == ((ApiKey("globex", sha256="ab" * 32),), [])


@pytest.mark.parametrize(
    ("line", "column"),
    [
        ('"hunter2: acme', 1),
        ("'hunter2: acme", 1),
        ('"hunter2"x: acme', 1),
        ('"hunter2\\n": acme', 1),
        ('"hun ter2": acme', 1),
        ('  "hunter2": "ac\\me"', 14),
        ("hunter2: 'acme", 1),
        ('"": acme', 1),
        (f"hunter2: {'acme ' * 999}", 1),
    ],
)
def test_quotes_that_do_not_close_or_hold_no_key_are_an_error_at_their_place(
    tmp_path: Path, line: str, column: int
) -> None:
    _, found = _read(tmp_path, f"good: acme\n{line}\n", JWKS)
    assert [item.split(" ")[:3] for item in found] == [[f"keys:2:{column}:", "error", "LB507:"]]
    assert "hunter2" not in found[0]


_RANDOM = "sk-9f8e7d6c5b4a39281706"


@pytest.mark.parametrize(
    "line", [f"alice: {_RANDOM}", f'"alice": "{_RANDOM}"', f"bob: {_RANDOM.upper()}", "eve: sk-abcdefghijklmnop",
             "team-a: 8f14e45fceea167a5a36dedd4bea2543", f"alice: {HASH}"]
)  # fmt: skip
def test_key_and_tenant_that_are_swapped_are_an_error_that_does_not_repeat_them(tmp_path: Path, line: str) -> None:
    _, found = _read(tmp_path, f"{HASH}: globex\n{line}\n", JWKS)
    assert [item.split(" ")[1:3] for item in found] == [["error", "LB121:"]]
    assert found[0].startswith("keys:2:")
    assert "9f8e" not in found[0].lower()
    assert "8f14" not in found[0]


@pytest.mark.parametrize(
    "line",
    [
        f"{_RANDOM}: alice",
        "key: sk-telecom",
        "alice: customer-2024-production",
        f"{_RANDOM}: 550e8400-e29b-41d4-a716-446655440000",
        f"{'ab12' * 8}: {'cd34' * 8}",
        "sk-1: 550e8400-e29b-41d4-a716-446655440000",
    ],
)
def test_keys_and_tenants_that_stand_where_they_should_are_taken(tmp_path: Path, line: str) -> None:
    assert _read(tmp_path, f"{line}\n", JWKS)[1] == []


def test_a_file_of_a_like_name_is_named_where_one_is_missing(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("sk-1: acme\n")
    _, found = _read(tmp_path, None, JWKS)
    assert "did you mean 'keys.yaml'?" in found[0]


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
    assert "warning LB503 routes.all.auth.jwt.jwks_file: 'jwks' holds no key" in found[0]


def test_a_file_without_a_key_is_a_warning_that_nobody_is_let_in(tmp_path: Path) -> None:
    _, found = _read(tmp_path, "# nobody yet\n", JWKS)
    assert len(found) == 1
    assert "warning LB503 routes.all.auth.api_keys.file: 'keys' holds no key" in found[0]


def test_a_key_is_not_shown_when_it_is_printed() -> None:
    assert repr(ApiKey("acme", key="hunter2", sha256="ab")) == "ApiKey(tenant='acme')"


_USERS_FLEET: dict[str, Any] = {**FLEET, "routes": {"all": {"pool": "p", "auth": {"basic": {"file": "users"}}}}}


def _users(tmp_path: Path, text: str, fleet: object = _USERS_FLEET) -> tuple[Secrets, list[str]]:
    (tmp_path / "users").write_text(text)
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(fleet))
    found = Diagnostics()
    source = read([str(tmp_path / "fleet.yaml")], found)
    assert source is not None
    return read_secrets(source, False, found), [str(item) for item in found]


def test_users_are_tenants_and_what_they_send_is_their_key(tmp_path: Path) -> None:
    secrets, found = _users(tmp_path, "---\nbob: 'it''s'  # no part of it\nalice: \"a: #b\"\n")
    assert found == []
    assert secrets.api_keys["users"] == (ApiKey("alice", key="YWxpY2U6YTogI2I="), ApiKey("bob", key="Ym9iOml0J3M="))


@pytest.mark.parametrize("line", ["bob", "Bob: secret-1", "bob: 'secret-1", "bob:secret-1", "bob: sécret-1", "bob: ''"])
def test_a_line_without_a_user_and_a_password_is_refused_and_never_repeated(tmp_path: Path, line: str) -> None:
    secrets, (message,) = _users(tmp_path, f"alice: wonder-1\n{line}\n")
    assert "users" not in secrets.api_keys
    assert "users:2:1:" in message
    assert "LB507" in message
    assert not re.search("ecret|cret|wonder", message)


def test_a_user_occurs_once_and_a_file_is_of_one_kind(tmp_path: Path) -> None:
    _, (message,) = _users(tmp_path, "bob: secret-1\nbob: secret-2\n")
    assert "LB507" in message
    both = {"pool": "p", "auth": {"api_keys": {"file": "users"}}}
    _, found = _users(tmp_path, "bob: secret-1\n", {**_USERS_FLEET, "routes": {"a": both, **_USERS_FLEET["routes"]}})
    assert "LB143" in found[0]


_HOSTED = """\
version: 1
pools:
  provider:
    replicas: [{address: "127.0.0.1:1"}]
    upstream: {host: api, headers: {Authorization: {prefix: "Bearer ", file: key}, x-org: lab}}
"""


def _hosted(folder: Path, content: bytes) -> tuple[Secrets, list[str]]:
    (folder / "fleet.yaml").write_text(_HOSTED)
    (folder / "key").write_bytes(content)
    diagnostics = Diagnostics()
    source = read([str(folder / "fleet.yaml")], diagnostics)
    assert source is not None
    secrets = read_secrets(source, False, diagnostics)
    return secrets, [
        f"{item.position.line}:{item.position.column} {item.code}" for item in diagnostics if item.position
    ]


def test_the_secret_of_a_hosted_api_is_read_without_the_white_space_at_its_ends(tmp_path: Path) -> None:
    secrets, found = _hosted(tmp_path, b'\n sk-1 $%"2 \r\n')
    assert (found, secrets.headers["key"].value) == ([], 'sk-1 $%"2')
    assert "sk-1" not in repr(secrets)


@pytest.mark.parametrize("content", [b"", b" \n", b"sk-1\nsk-2\n", b"sk\x001", b"sk-\xc3\xa9", b"k" * 2049])
def test_what_no_header_can_carry_is_refused_where_the_file_is_named(content: bytes, tmp_path: Path) -> None:
    secrets, found = _hosted(tmp_path, content)
    assert (secrets.headers, found) == ({}, ["5:78 LB150"])
