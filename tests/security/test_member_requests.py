"""Requests that a member forwards: valid signers, their scope, and protection against replays."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest

from lbctl.serve.ha.requests import SCHEME, MemberRequest, MemberRequests, NotSignedError
from lbctl.store.signing import Keyring

KEY, OTHER = b"key-" * 8, b"not-" * 8
SIGNED = Keyring("lbctl", (KEY,), accepts_unsigned=False)
CHANGING = Keyring("lbctl", (KEY,), accepts_unsigned=True)
REQUEST = MemberRequest("POST", "/api/v1/overrides", b'{"kind": "drain"}')
TOKENS = [("reader", b"another-token"), ("operator", b"the-operators-token")]


def member(name: str, keys: Keyring, now: float = 1000.0) -> MemberRequests:
    return MemberRequests(name, keys, lambda: now)


def signed_by(keys: Keyring, *, receiver: str = "cp-1", token: bytes = TOKENS[1][1]) -> str:
    scheme, _, given = member("cp-2", keys).sign(REQUEST, receiver, "anna", token).partition(" ")
    assert scheme == SCHEME
    return given


def result(given: str, keys: Keyring, request: MemberRequest = REQUEST, now: float = 1000.0) -> tuple[str, str | None]:
    return member("cp-1", keys, now).verify(given, request, TOKENS)


def test_member_with_the_key_states_the_actor() -> None:
    assert result(signed_by(SIGNED), SIGNED) == ("anna", None)
    assert result(signed_by(SIGNED), Keyring("lbctl", (OTHER, KEY), accepts_unsigned=False)) == ("anna", None)


def test_member_without_a_key_proves_the_token() -> None:
    assert result(signed_by(Keyring()), Keyring()) == ("anna", "operator")
    assert result(signed_by(Keyring(), token=b"another-token"), Keyring()) == ("anna", "reader")


@pytest.mark.parametrize(("sender", "receiver"), [(Keyring(), CHANGING), (CHANGING, Keyring()), (CHANGING, SIGNED)])
def test_members_understand_each_other_while_they_get_a_key(sender: Keyring, receiver: Keyring) -> None:
    assert result(signed_by(sender), receiver)[0] == "anna"


def test_request_has_neither_token_nor_key() -> None:
    for keys in (Keyring(), CHANGING, SIGNED):
        content = base64.urlsafe_b64decode(signed_by(keys))
        assert TOKENS[1][1] not in content
        assert KEY not in content


@pytest.mark.parametrize(
    ("sender", "receiver", "reason"),
    [
        (Keyring(), SIGNED, "not signed with one of this control plane's keys"),
        (
            Keyring("lbctl", (OTHER,), accepts_unsigned=False),
            SIGNED,
            "not signed with one of this control plane's keys",
        ),
        (
            Keyring("another", (KEY,), accepts_unsigned=False),
            SIGNED,
            "not signed with one of this control plane's keys",
        ),
        (SIGNED, Keyring(), "not signed with one of this member's tokens"),
    ],
)
def test_request_of_a_stranger_is_refused(sender: Keyring, receiver: Keyring, reason: str) -> None:
    with pytest.raises(NotSignedError, match=reason):
        result(signed_by(sender), receiver)


@pytest.mark.parametrize(
    "changed",
    [
        replace(REQUEST, method="DELETE"),
        replace(REQUEST, path="/api/v1/rollback"),
        replace(REQUEST, path="/api/v1/overrides?x=1"),
        replace(REQUEST, body=b'{"kind": "weight"}'),
    ],
)
def test_signature_is_valid_for_one_request(changed: MemberRequest) -> None:
    for keys in (SIGNED, Keyring()):
        with pytest.raises(NotSignedError):
            result(signed_by(keys), keys, changed)


@pytest.mark.parametrize("field", ["to", "from", "actor", "at", "number"])
def test_changed_field_is_refused(field: str) -> None:
    row = json.loads(base64.urlsafe_b64decode(signed_by(SIGNED)))
    row[field] = 1001.0 if field == "at" else "cp-9"
    with pytest.raises(NotSignedError, match="not signed with one of this control plane's keys"):
        result(base64.urlsafe_b64encode(json.dumps(row).encode()).decode(), SIGNED)


def test_request_counts_once_for_its_receiver_and_for_a_minute() -> None:
    given, receiver = signed_by(SIGNED), member("cp-1", SIGNED)
    receiver.verify(given, REQUEST, TOKENS)
    with pytest.raises(NotSignedError, match="already been executed"):
        receiver.verify(given, REQUEST, TOKENS)
    with pytest.raises(NotSignedError, match="addressed to member cp-3"):
        result(signed_by(SIGNED, receiver="cp-3"), SIGNED)
    for now in (1061.0, 939.0):
        with pytest.raises(NotSignedError, match="too old"):
            result(given, SIGNED, now=now)


@pytest.mark.parametrize(
    "given",
    ["", "?", "e30=", base64.b64encode(b"[" * 5000).decode(), base64.b64encode(b'{"to": 1}').decode(), "é"],
)
def test_malformed_signature_is_refused(given: str) -> None:
    with pytest.raises(NotSignedError, match="malformed"):
        result(given, SIGNED)
