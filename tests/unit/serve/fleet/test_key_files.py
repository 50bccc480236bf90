"""Key files under `serve`: a truncated, missing or broken file does not revoke the keys in use."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from lbctl.serve.fleet import key_files
from lbctl.serve.fleet.reload import LoadOutcome
from tests.support.reload import FileClock, Fleet, sizes

KEYS = "".join(f"sk-{number}: tenant{number}\n" for number in range(10))
_JWK = {"kty": "RSA", "n": "AQ", "e": "AQAB"}


def jwks(*names: str) -> str:
    return json.dumps({"keys": [{**_JWK, "kid": name} for name in names]})


@pytest.fixture
def fleet(tmp_path: Path, file_clock: FileClock) -> Fleet:
    fleet = Fleet(tmp_path, file_clock)
    (tmp_path / "routes.yaml").write_text(
        'version: 1\nroutes: {token: {match: {path_prefix: /t}, pool: llama, auth: {jwt: {issuer: "https://i", '
        "jwks_file: secrets/jwks.json}}}}\n"
    )
    write(fleet, KEYS)
    write(fleet, jwks("a", "b"), "jwks.json")
    assert fleet.load().refused is None
    return fleet


def write(fleet: Fleet, text: str, name: str = "keys.yaml") -> None:
    """Replace a file of secrets atomically, as a deployment does."""
    beside = fleet.folder / "secrets" / f".{name}"
    beside.write_text(text)
    beside.replace(fleet.folder / "secrets" / name)


def tenants(outcome: LoadOutcome) -> list[str]:
    assert outcome.fleet is not None, [str(item) for item in outcome.diagnostics]
    return [key.tenant for key in outcome.fleet.secrets.api_keys["secrets/keys.yaml"]]


def served(fleet: Fleet) -> list[str]:
    """Return the tenants of the running fleet, even if the files have errors."""
    (fleet.folder / "targets.json").write_text('[{"targets": ["10.1.0.1:80", "10.1.0.2:80", "10.1.0.9:80"]}]')
    return tenants(fleet.load())


DAMAGES = {"empty": "", "no key left": "# all of them\n", "half": KEYS[: len(KEYS) // 3] + "\n", "broken": "no key\n"}


@pytest.mark.parametrize("damage", [None, *DAMAGES.values()], ids=["gone", *DAMAGES])
def test_damaged_key_file_is_an_error_and_old_keys_stay(fleet: Fleet, damage: str | None) -> None:
    before = tenants(fleet.load())
    if damage is None:
        (fleet.folder / "secrets/keys.yaml").unlink()
    else:
        write(fleet, damage)
    outcome = fleet.load()
    assert outcome.loaded is None
    assert outcome.refused is not None
    assert outcome.refused.startswith("key file 'secrets/keys.yaml' ")
    assert outcome.refused.endswith("the 10 keys that it contained before stay in use")
    messages = [line for line in fleet.messages(outcome) if "LB53" in line]
    assert len(messages) == 1
    assert messages[0].startswith("fleet.yaml:7:46: error LB53")
    assert "sk-" not in str(fleet.messages(outcome))
    assert served(fleet) == before
    write(fleet, KEYS)
    assert fleet.load().diagnostics == ()


@pytest.mark.parametrize("text", [None, "", jwks(), '{"keys": [{"kty": "RSA"', "[]"])
def test_damaged_jwks_is_an_error_and_old_keys_stay(fleet: Fleet, text: str | None) -> None:
    if text is None:
        (fleet.folder / "secrets/jwks.json").unlink()
    else:
        write(fleet, text, "jwks.json")
    outcome = fleet.load()
    assert outcome.loaded is None
    assert outcome.refused is not None
    assert outcome.refused.endswith("the 2 keys that it contained before stay in use")
    fleet.target(3)
    outcome = fleet.load()
    assert outcome.running is not None
    assert outcome.running.secrets.jwks == {"secrets/jwks.json": jwks("a", "b")}


def test_revoked_key_is_removed_at_once(fleet: Fleet) -> None:
    write(fleet, KEYS.replace("sk-3: tenant3\n", ""))
    assert "tenant3" not in tenants(fleet.load())


def test_all_keys_are_rotated_at_once(fleet: Fleet) -> None:
    write(fleet, KEYS.replace("sk-", "sk-new-").replace("tenant", "team"))
    assert tenants(fleet.load()) == [f"team{number}" for number in range(10)]


def test_revoking_most_keys_needs_confirmation(fleet: Fleet) -> None:
    for left in ("sk-0: tenant0\n", ""):
        write(fleet, left)
        outcome = fleet.load()
        assert [(item.code, item.path) for item in outcome.shrink] == [
            ("LB531", ("routes", "all", "auth", "api_keys", "file"))
        ]
        assert tenants(fleet.load(allow_shrink=True)) == (["tenant0"] if left else [])
        assert fleet.load().refused is None


def test_revoking_the_last_key_always_needs_confirmation(fleet: Fleet) -> None:
    (fleet.folder / "shrink.yaml").write_text("version: 1\ncontrol: {max_shrink: 100%}\n")
    text = (fleet.folder / "fleet.yaml").read_text()
    (fleet.folder / "fleet.yaml").write_text(text.replace("control:\n", "control:\n  max_shrink: 100%\n"))
    (fleet.folder / "shrink.yaml").unlink()
    assert fleet.load().refused is None
    write(fleet, "")
    assert [item.code for item in fleet.load().shrink] == ["LB531"]


def test_wrong_path_is_an_error_at_its_position_and_keys_stay(fleet: Fleet) -> None:
    text = (fleet.folder / "fleet.yaml").read_text()
    (fleet.folder / "fleet.yaml").write_text(text.replace("secrets/keys.yaml", "secrets/kyes.yaml"))
    outcome = fleet.load()
    assert fleet.messages(outcome)[0].startswith(
        "fleet.yaml:7:46: error LB530 routes.all.auth.api_keys.file: key file 'secrets/kyes.yaml' cannot be used: "
        "the 10 keys that 'secrets/keys.yaml' contained stay in use"
    )
    assert len(served(fleet)) == 10


def test_new_path_to_fewer_keys_needs_confirmation(fleet: Fleet) -> None:
    write(fleet, "sk-9: tenant9\n", "other.yaml")
    text = (fleet.folder / "fleet.yaml").read_text()
    (fleet.folder / "fleet.yaml").write_text(text.replace("secrets/keys.yaml", "secrets/other.yaml"))
    assert [item.code for item in fleet.load().shrink] == ["LB531"]


def test_missing_key_file_is_an_error_at_its_position(tmp_path: Path, file_clock: FileClock) -> None:
    fleet = Fleet(tmp_path, file_clock)
    (tmp_path / "secrets/keys.yaml").unlink()
    outcome = fleet.load()
    assert outcome.loaded is None
    assert [line[:36] for line in fleet.messages(outcome)] == ["fleet.yaml:7:46: error LB503 routes."]
    assert fleet.folder / "secrets/keys.yaml" in outcome.files


def test_slowly_written_file_is_not_used_before_it_is_complete(fleet: Fleet, file_clock: FileClock) -> None:
    """A file that is more than half written would pass as a small change."""
    lines = KEYS.splitlines(keepends=True)
    file = fleet.folder / "secrets/keys.yaml"
    file.write_text("")
    sleeps = itertools.count(1)

    def write_every_fifth_time() -> None:
        if lines and next(sleeps) % 5 == 0:
            with file.open("a") as opened:
                opened.write(lines.pop(0))
            file_clock.restart()

    file_clock.while_sleeping = write_every_fifth_time
    for _ in range(10):
        outcome = fleet.load()
        assert outcome.fleet is None or len(tenants(outcome)) == 10
    assert not lines
    assert len(tenants(fleet.load())) == 10


def test_file_that_is_completed_during_the_check_is_read_again(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    file, is_unsettled = fleet.folder / "secrets/keys.yaml", key_files.unsettled_file
    lines = KEYS.splitlines(keepends=True)
    file.write_text("".join(lines[:-1]))

    def complete_first(*arguments: Any) -> Path | None:
        if file.read_text() != KEYS:
            file.write_text(KEYS)
        return is_unsettled(*arguments)

    monkeypatch.setattr(key_files, "unsettled_file", complete_first)
    assert len(tenants(fleet.load())) == 10


def test_keys_are_followed_while_the_yaml_is_broken(fleet: Fleet) -> None:
    (fleet.folder / "fleet.yaml").write_text("version: 1\npools: {")
    fleet.load()
    write(fleet, KEYS + "sk-10: tenant10\n")
    assert len(tenants(fleet.load())) == 11
    write(fleet, "")
    outcome = fleet.load()
    assert len(tenants(outcome)) == 11
    assert any("warning LB531" in line for line in fleet.messages(outcome))
    assert sizes(outcome)["llama"] == 10
