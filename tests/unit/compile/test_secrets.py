"""Key files: accepted and rejected lines, and messages that never repeat a secret."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from lbctl.base.diagnostics import Diagnostics
from lbctl.compile.secrets import read_secrets
from lbctl.ir.secrets import ApiKey, Secrets
from lbctl.model.fleet import read
from tests.support.fleets import Fleet, fleet_of, pool, write_fleet, yaml_of

HASH = "sha256:" + "ab" * 32
JWKS = json.dumps({"keys": [{"kty": "RSA", "n": "AQ", "e": "AQAB"}]})
KEYS_FLEET = fleet_of(
    route={"auth": {"api_keys": {"file": "keys"}, "jwt": {"issuer": "https://i", "jwks_file": "jwks"}}}
)
USERS_FLEET = fleet_of(route={"auth": {"basic": {"file": "users"}}})
HOSTED_FLEET = fleet_of(
    pool(upstream={"host": "api", "headers": {"Authorization": {"prefix": "Bearer ", "file": "key"}, "x-org": "lab"}})
)


def secrets_of(directory: Path, fleet: Fleet, *, required: bool = False) -> tuple[Secrets, list[str]]:
    """Return the secrets of the fleet, and the diagnostics with paths relative to the directory."""
    diagnostics = Diagnostics()
    source = read([str(write_fleet(directory, fleet))], diagnostics)
    assert source is not None
    secrets = read_secrets(source, required, diagnostics)
    return secrets, [str(item).replace(f"{directory}/", "") for item in diagnostics]


def read_key_files(
    directory: Path, keys: str | None, jwks: str | None, required: bool = False
) -> tuple[Secrets, list[str]]:
    for name, text in (("keys", keys), ("jwks", jwks)):
        if text is not None:
            (directory / name).write_text(text)
    return secrets_of(directory, KEYS_FLEET, required=required)


def test_plain_and_hashed_keys_are_read_with_their_tenants(tmp_path: Path) -> None:
    secrets, diagnostics = read_key_files(tmp_path, f"# ours\nsk-1: acme\n\n{HASH}: globex\n", JWKS)
    assert diagnostics == []
    assert secrets.api_keys["keys"] == (ApiKey("globex", sha256="ab" * 32), ApiKey("acme", key="sk-1"))
    assert secrets.jwks["jwks"] == JWKS


def test_a_missing_key_file_is_a_warning_without_keys(tmp_path: Path) -> None:
    secrets, diagnostics = read_key_files(tmp_path, None, None)
    assert [line.split(":")[3].split()[0:2] for line in diagnostics] == [["warning", "LB503"], ["warning", "LB503"]]
    assert secrets == Secrets()


def test_a_missing_key_file_is_an_error_if_files_are_required(tmp_path: Path) -> None:
    _, diagnostics = read_key_files(tmp_path, None, None, required=True)
    assert [" error LB503 " in line for line in diagnostics] == [True, True]


@pytest.mark.parametrize(
    "line", ["hunter2", "hunter2:acme", "sha256:123: acme", "hun ter2: acme", "hunter2: ACME", "hunter2: ", ": acme"]
)
def test_a_bad_key_line_is_an_error_without_the_key(tmp_path: Path, line: str) -> None:
    _, diagnostics = read_key_files(tmp_path, f"good: acme\n{line}\n", JWKS)
    assert len(diagnostics) == 1
    assert re.match(r"keys:2:\d+: error LB507", diagnostics[0])
    assert "hunter2" not in diagnostics[0]


def test_a_key_in_place_of_the_tenant_is_not_repeated(tmp_path: Path) -> None:
    _, diagnostics = read_key_files(tmp_path, "acme: sk-HUNTER2\n", JWKS)
    assert [line.split(" ")[:3] for line in diagnostics] == [["keys:1:7:", "error", "LB121:"]]
    assert "HUNTER2" not in diagnostics[0]


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
def test_a_key_line_is_read_like_yaml(tmp_path: Path, line: str, key: str, tenant: str) -> None:
    secrets, diagnostics = read_key_files(tmp_path, f"---\n{line}\r\n{HASH}: globex\n", JWKS)
    assert diagnostics == []
    assert secrets.api_keys["keys"] == tuple(
        sorted([ApiKey(tenant, key=key), ApiKey("globex", sha256="ab" * 32)], key=lambda item: item.key or HASH)
    )
    if not line.startswith("{"):
        assert [str(item) for item in yaml.load(line, yaml.BaseLoader).items()] == [str((key, tenant))]


def test_quotes_around_a_hash_are_removed(tmp_path: Path) -> None:
    secrets, diagnostics = read_key_files(tmp_path, f"'{HASH}': globex\n", JWKS)
    assert (secrets.api_keys["keys"], diagnostics) == ((ApiKey("globex", sha256="ab" * 32),), [])


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
def test_bad_quotes_are_an_error_at_their_position(tmp_path: Path, line: str, column: int) -> None:
    _, diagnostics = read_key_files(tmp_path, f"good: acme\n{line}\n", JWKS)
    assert [item.split(" ")[:3] for item in diagnostics] == [[f"keys:2:{column}:", "error", "LB507:"]]
    assert "hunter2" not in diagnostics[0]


_RANDOM = "sk-9f8e7d6c5b4a39281706"


@pytest.mark.parametrize(
    "line", [f"alice: {_RANDOM}", f'"alice": "{_RANDOM}"', f"bob: {_RANDOM.upper()}", "eve: sk-abcdefghijklmnop",
             "team-a: 8f14e45fceea167a5a36dedd4bea2543", f"alice: {HASH}"]
)  # fmt: skip
def test_swapped_key_and_tenant_are_an_error_without_the_key(tmp_path: Path, line: str) -> None:
    _, diagnostics = read_key_files(tmp_path, f"{HASH}: globex\n{line}\n", JWKS)
    assert [item.split(" ")[1:3] for item in diagnostics] == [["error", "LB121:"]]
    assert diagnostics[0].startswith("keys:2:")
    assert "9f8e" not in diagnostics[0].lower()
    assert "8f14" not in diagnostics[0]


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
def test_keys_and_tenants_in_the_right_order_are_accepted(tmp_path: Path, line: str) -> None:
    assert read_key_files(tmp_path, f"{line}\n", JWKS)[1] == []


def test_a_missing_file_suggests_a_similar_name(tmp_path: Path) -> None:
    (tmp_path / "keys.yaml").write_text("sk-1: acme\n")
    _, diagnostics = read_key_files(tmp_path, None, JWKS)
    assert "did you mean 'keys.yaml'?" in diagnostics[0]


def test_a_missing_file_suggests_no_file_of_the_fleet(tmp_path: Path) -> None:
    fleet = fleet_of(route={"auth": {"api_keys": {"file": "fleet-keys.yaml"}}})
    _, diagnostics = secrets_of(tmp_path, fleet)
    assert "did you mean" not in diagnostics[0]
    (tmp_path / "fleet-key.yaml").write_text("sk-1: acme\n")
    _, diagnostics = secrets_of(tmp_path, fleet)
    assert "did you mean 'fleet-key.yaml'?" in diagnostics[0]


def test_a_duplicate_key_is_an_error(tmp_path: Path) -> None:
    _, diagnostics = read_key_files(tmp_path, "sk-1: acme\nsk-1: globex\n", JWKS)
    assert [line.split(" ")[:3] for line in diagnostics] == [["keys:2:1:", "error", "LB507:"]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no json", "not JSON"),
        ("[]", "not contain a list of keys"),
        ('{"keys": [1]}', "not contain a list of keys"),
        ('{"keys": [{"kty": "RSA", "d": "hunter2"}]}', "private or symmetric"),
        ('{"keys": [{"kty": "RSA", "n": "hunter2!", "e": "AQAB"}]}', "not base64url"),
        ('{"keys": [{"kty": "oct", "k": "hunter2"}]}', "private or symmetric"),
    ],
)
def test_a_bad_jwks_is_an_error_at_the_key_that_names_it(tmp_path: Path, text: str, words: str) -> None:
    _, diagnostics = read_key_files(tmp_path, "sk-1: acme\n", text)
    assert len(diagnostics) == 1
    assert "LB508 routes.everything.auth.jwt.jwks_file" in diagnostics[0]
    assert words in diagnostics[0]
    assert "hunter2" not in diagnostics[0]


def test_an_empty_jwks_is_a_warning(tmp_path: Path) -> None:
    _, diagnostics = read_key_files(tmp_path, "sk-1: acme\n", '{"keys": []}')
    assert len(diagnostics) == 1
    assert "warning LB503 routes.everything.auth.jwt.jwks_file: 'jwks' contains no key" in diagnostics[0]


def test_an_empty_key_file_is_a_warning(tmp_path: Path) -> None:
    _, diagnostics = read_key_files(tmp_path, "# nobody yet\n", JWKS)
    assert len(diagnostics) == 1
    assert "warning LB503 routes.everything.auth.api_keys.file: 'keys' contains no key" in diagnostics[0]


def test_repr_does_not_show_the_key() -> None:
    assert repr(ApiKey("acme", key="hunter2", sha256="ab")) == "ApiKey(tenant='acme')"


def read_users(directory: Path, text: str, fleet: Fleet = USERS_FLEET) -> tuple[Secrets, list[str]]:
    (directory / "users").write_text(text)
    return secrets_of(directory, fleet)


def test_users_become_tenants_with_basic_credentials_as_key(tmp_path: Path) -> None:
    secrets, diagnostics = read_users(tmp_path, "---\nbob: 'it''s'  # no part of it\nalice: \"a: #b\"\n")
    assert diagnostics == []
    assert secrets.api_keys["users"] == (ApiKey("alice", key="YWxpY2U6YTogI2I="), ApiKey("bob", key="Ym9iOml0J3M="))


@pytest.mark.parametrize("line", ["bob", "Bob: secret-1", "bob: 'secret-1", "bob:secret-1", "bob: sécret-1", "bob: ''"])
def test_a_bad_user_line_is_an_error_without_the_password(tmp_path: Path, line: str) -> None:
    secrets, (message,) = read_users(tmp_path, f"alice: wonder-1\n{line}\n")
    assert "users" not in secrets.api_keys
    assert "users:2:1:" in message
    assert "LB507" in message
    assert not re.search("ecret|cret|wonder", message)


def test_duplicate_users_and_mixed_files_are_errors(tmp_path: Path) -> None:
    _, (message,) = read_users(tmp_path, "bob: secret-1\nbob: secret-2\n")
    assert "LB507" in message
    by_key = {"pool": "pool", "auth": {"api_keys": {"file": "users"}}}
    mixed = fleet_of(route={"auth": {"basic": {"file": "users"}}}, routes={"by-key": by_key})
    _, diagnostics = read_users(tmp_path, "bob: secret-1\n", mixed)
    assert "LB143" in diagnostics[0]


def read_hosted_secret(directory: Path, content: bytes) -> tuple[Secrets, list[str]]:
    (directory / "key").write_bytes(content)
    return secrets_of(directory, HOSTED_FLEET)


def test_white_space_around_a_hosted_api_secret_is_removed(tmp_path: Path) -> None:
    secrets, diagnostics = read_hosted_secret(tmp_path, b'\n sk-1 $%"2 \r\n')
    assert (diagnostics, secrets.headers["key"].value) == ([], 'sk-1 $%"2')
    assert "sk-1" not in repr(secrets)


@pytest.mark.parametrize("content", [b"", b" \n", b"sk-1\nsk-2\n", b"sk\x001", b"sk-\xc3\xa9", b"k" * 2049])
def test_a_secret_no_header_can_carry_is_an_error(content: bytes, tmp_path: Path) -> None:
    secrets, diagnostics = read_hosted_secret(tmp_path, content)
    line = yaml_of(HOSTED_FLEET).splitlines().index("          file: key") + 1
    assert (secrets.headers, len(diagnostics)) == ({}, 1)
    assert diagnostics[0].startswith(
        f"fleet.yaml:{line}:17: error LB150 pools.pool.upstream.headers.Authorization.file: "
    )
