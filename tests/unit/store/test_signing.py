"""The keys of a control plane: their file, and what a signature is valid for."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.ir.proxies import Store
from lbctl.store import signing
from lbctl.store.credentials import read_keyring
from lbctl.store.interface import UnusableError
from lbctl.store.signing import Keyring, parse_keys

OLD, NEW = "old-" * 8, "new-" * 8


def keys(*lines: str, scope: str = "lbctl") -> Keyring:
    return parse_keys("\n".join(lines), scope)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "its first line is not a key"),
        ("# only a comment\n", "its first line is not a key"),
        (f"unsigned\n{NEW}\n", "its first line is not a key"),
        (f"{NEW}\nshort\n", "key 2 is shorter than 32 characters"),
        (f"{NEW}\n" * 5, "it has 5 keys, but at most 4 are allowed"),
    ],
)
def test_unusable_key_file_is_refused_with_the_reason(content: str, reason: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(content)
    with pytest.raises(UnusableError, match=reason) as error:
        read_keyring(Store("redis://h", key_file=str(file)))
    assert str(file) in str(error.value)
    assert NEW not in str(error.value)


def test_missing_key_file_is_refused_and_none_is_allowed(tmp_path: Path) -> None:
    with pytest.raises(UnusableError, match="cannot be read"):
        read_keyring(Store("redis://h", key_file=str(tmp_path / "missing")))
    assert read_keyring(Store("redis://h")) == Keyring()


def test_first_key_signs_and_each_key_verifies() -> None:
    both = keys(NEW, OLD)
    by_old, by_new = keys(OLD).sign("record", "a"), both.sign("record", "a")
    assert by_new == keys(NEW).sign("record", "a")
    assert both.verifies(by_old, "record", "a")
    assert both.verifies(by_new, "record", "a")
    assert both.is_newest(by_new, "record", "a")
    assert not both.is_newest(by_old, "record", "a")
    assert not keys(NEW).verifies(by_old, "record", "a")


def test_signature_is_valid_for_its_purpose_and_parts_alone() -> None:
    ring = keys(NEW)
    made = ring.sign("record", "ab", "c")
    assert ring.verifies(made, "record", "ab", "c")
    assert not ring.verifies(made, "announcement", "ab", "c")
    assert not ring.verifies(made, "record", "a", "bc")
    assert not keys(NEW, scope="another").verifies(made, "record", "ab", "c")
    for forged in ("", made[:-1], made + "0", "é", "\ud800"):
        assert not ring.verifies(forged, "record", "ab", "c")


def test_keys_are_not_shown() -> None:
    assert NEW not in repr(keys(NEW))


def test_instance_belongs_to_its_member() -> None:
    ring = keys(NEW)
    instance = ring.new_instance("cp-1")
    assert keys(OLD, NEW).owns("cp-1", instance)
    assert not ring.owns("cp-2", instance)
    assert not ring.owns("cp-1", Keyring().new_instance("cp-1"))
    assert keys(NEW, "unsigned").owns("cp-1", Keyring().new_instance("cp-1"))
    assert not keys(NEW, "unsigned").owns("cp-1", keys(OLD).new_instance("cp-1"))


def test_envelope_has_the_text_and_is_valid_for_its_name() -> None:
    ring = keys(NEW)
    written = signing.seal(ring, "record", "overrides", 1700, 12, 'any "text":\n\ud800')
    sealed = signing.parse_envelope(written)
    assert sealed is not None
    assert (sealed.stamp, sealed.epoch, sealed.text) == (1700, 12, 'any "text":\n\ud800')
    assert signing.is_valid(ring, "record", "overrides", sealed)
    assert not signing.is_valid(ring, "record", "rollouts", sealed)
    changed = signing.parse_envelope(written.replace("1700.12", "1701.12"))
    assert changed is not None
    assert not signing.is_valid(ring, "record", "overrides", changed)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"a": 1}', "null", "eJwDAAAAAAE=", "signed:1:1.1:ab:x", "signed:1:-1.1:" + "0" * 64 + ":x"]
)
def test_text_without_an_envelope_is_not_signed(text: str) -> None:
    assert signing.parse_envelope(text) is None
    assert signing.seal(Keyring(), "record", "a", 1, 1, text) == text
