"""Signs requests that one member forwards to another; the signature replaces the caller's token.

A member with a key signs with that key and states the name of the caller's token. Members without a key sign with a key
derived from the token, which proves that both members have the token without revealing it to anyone who reads the
request. A signature is valid only once, for a single request to a single member, and for one minute on the members'
shared clock.
"""

from __future__ import annotations

import base64
import hmac
import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar

from lbctl.base.foreign_json import parse_object
from lbctl.serve.ha import fields
from lbctl.store.records import UNREADABLE
from lbctl.store.signing import Keyring, request_key, request_signature

_T = TypeVar("_T")
SCHEME = "lbctl-member"
"""Scheme used in the `authorization` header."""
_VALID = 60.0
"""Seconds before and after its timestamp during which a signature is valid."""
_MAX_SEEN = 10_000
"""Maximum number of requests remembered so that no request is performed twice."""


class NotSignedError(Exception):
    """A request's signature is not valid.

    The message states the reason but does not contain anything from the request.
    """


@dataclass(frozen=True, slots=True)
class MemberRequest:
    """The signed parts of a request."""

    method: str
    path: str
    """The path, including the query."""
    body: bytes


class MemberRequests:
    """Signs this member's requests, and verifies requests from other members."""

    def __init__(self, name: str, keys: Keyring, now: Callable[[], float]) -> None:
        """`name`: this member's name. `now`: the members' shared clock, in seconds since the epoch."""
        self._name = name
        self._keys = keys
        self._now = now
        self._seen: dict[str, float] = {}
        """Maps each signed request's number to the time of its signature."""

    def sign(self, request: MemberRequest, receiver: str, actor: str, token: bytes) -> str:
        """Return the `authorization` header for a request to another member.

        `actor` and `token`: the caller's token name and the token itself.
        """
        row = {
            "to": receiver,
            "from": self._name,
            "actor": actor,
            "at": round(self._now(), 3),
            "number": secrets.token_hex(16),
        }
        parts = _parts(row, request)
        if self._keys.keys:
            row["key"] = self._keys.sign("request", *parts)
        if self._keys.accepts_unsigned:
            row["token"] = request_signature(request_key(token), *parts)
        return f"{SCHEME} {base64.urlsafe_b64encode(json.dumps(row).encode()).decode()}"

    def verify(self, given: str, request: MemberRequest, tokens: Iterable[tuple[_T, bytes]]) -> tuple[str, _T | None]:
        """Return the actor, and the name of the entry in `tokens` with which the request was signed.

        The name is None if the request was signed with a member's key.

        `given`: the header value without its scheme. Raises NotSignedError.
        """
        try:
            row = _read(given)
        except UNREADABLE:
            raise NotSignedError("the member signature is malformed") from None
        parts, owner = _parts(row, request), None
        if not self._keys.verifies(row["key"], "request", *parts):
            if not self._keys.accepts_unsigned:
                raise NotSignedError("the request is not signed with one of this control plane's keys")
            owners = [name for name, secret in tokens if _is_of(row["token"], secret, parts)]
            if not owners:
                raise NotSignedError("the request is not signed with one of this member's tokens")
            owner = owners[0]
        if row["to"] != self._name:
            raise NotSignedError(f"the request is addressed to member {row['to']}")
        self._check_time(row["number"], row["at"])
        return row["actor"], owner

    def _check_time(self, number: str, at: float) -> None:
        now = self._now()
        if abs(now - at) > _VALID:
            raise NotSignedError("the request's signature is too old, or the members' clocks differ")
        self._seen = {known: since for known, since in self._seen.items() if now - since <= 2 * _VALID}
        if number in self._seen or len(self._seen) >= _MAX_SEEN:
            raise NotSignedError("the request has already been executed")
        self._seen[number] = now


def _read(given: str) -> dict[str, Any]:
    row = parse_object(base64.urlsafe_b64decode(given))
    return {
        "to": fields.name("to", row["to"]),
        "from": fields.name("from", row["from"]),
        "actor": fields.line("actor", row["actor"]),
        "at": fields.time("at", row["at"]),
        "number": fields.line("number", row["number"]),
        "key": fields.line("key", row.get("key", "")),
        "token": fields.line("token", row.get("token", "")),
    }


def _parts(row: Mapping[str, Any], request: MemberRequest) -> tuple[str, ...]:
    return (
        *(str(row[name]) for name in ("to", "from", "actor", "at", "number")),
        request.method, request.path, sha256(request.body).hexdigest(),
    )  # fmt: skip


def _is_of(signature: str, secret: bytes, parts: tuple[str, ...]) -> bool:
    return hmac.compare_digest(request_signature(request_key(secret), *parts).encode(), signature.encode())
