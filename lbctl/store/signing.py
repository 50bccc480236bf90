"""The keys shared by a control plane's members, and the texts that the members sign with them.

Everything in a shared store, and every request from one member to another, is signed with HMAC-SHA256. Each purpose has
a separate key, derived from the key in the file, so that a signature for one purpose is never valid for another. A
signed text is `signed:1:STAMP.EPOCH:SIGNATURE:TEXT`. The stamp grows with each text that a control plane signs, so that
replays of older texts are detected.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

Purpose = Literal["record", "announcement", "lease", "request"]
UNSIGNED = "unsigned"
"""Key-file line that permits unsigned content."""
MIN_KEY = 32
"""Minimum length of a key in characters."""
_MAX_KEYS = 4
_SHORT = 32
"""Length of the signature in an instance, in characters."""
_FORM = re.compile(r"signed:1:([0-9]{1,17})\.([0-9]{1,17}):([0-9a-f]{64}):")


@dataclass(frozen=True, slots=True)
class Keyring:
    """The keys of a control plane. The first key signs, and each key verifies."""

    scope: str = ""
    """The control plane. A signature is not valid in another control plane that uses the same key."""
    keys: tuple[bytes, ...] = field(default=(), repr=False)
    """Keys; empty if lbctl neither signs nor verifies content."""
    accepts_unsigned: bool = True
    """Whether content without a signature is accepted."""

    def sign(self, purpose: Purpose, *parts: str | int) -> str:
        """Return the signature of the parts, in hexadecimal; empty without a key."""
        return _mac(self.keys[0], self.scope, purpose, parts) if self.keys else ""

    def verifies(self, signature: str, purpose: Purpose, *parts: str | int) -> bool:
        """Return whether the signature of the parts was made with one of the keys."""
        return any(_equal(_mac(key, self.scope, purpose, parts), signature) for key in self.keys)

    def is_newest(self, signature: str, purpose: Purpose, *parts: str | int) -> bool:
        """Return whether the signature of the parts was made with the current signing key."""
        return _equal(self.sign(purpose, *parts), signature)

    def new_instance(self, member: str) -> str:
        """Return unique text, signed for this member."""
        number = secrets.token_hex(8)
        return number + self.sign("lease", member, number)[:_SHORT]

    def owns(self, member: str, instance: str) -> bool:
        """Return whether this text was created by `new_instance` for the member, with one of the keys."""
        number, signature = instance[:16], instance[16:]
        if not signature and self.accepts_unsigned:
            return True
        made = [_mac(key, self.scope, "lease", (member, number))[:_SHORT] for key in self.keys]
        return not self.keys or any(_equal(each, signature) for each in made)


def parse_keys(content: str, scope: str = "") -> Keyring:
    """Parse the lines of a key file.

    Raises ValueError with the reason. The reason does not contain any key.
    """
    lines = list(_lines(content))
    keys = tuple(line.encode() for line in lines if line != UNSIGNED)
    if not keys or lines[0] == UNSIGNED:
        raise ValueError(f"its first line is not a key; create a key with: openssl rand -hex {MIN_KEY}")
    if short := next((number for number, key in enumerate(keys, 1) if len(key) < MIN_KEY), 0):
        raise ValueError(
            f"key {short} is shorter than {MIN_KEY} characters; create a key with: openssl rand -hex {MIN_KEY}"
        )
    if len(keys) > _MAX_KEYS:
        raise ValueError(f"it has {len(keys)} keys, but at most {_MAX_KEYS} are allowed: remove old keys")
    return Keyring(scope, keys, UNSIGNED in lines)


def request_key(secret: bytes) -> bytes:
    """Return the key with which a caller signs requests. The key is derived from the token, which is not sent."""
    return hmac.digest(secret, b"lbctl 1 token of a forwarded request", "sha256")


def request_signature(key: bytes, *parts: str | int) -> str:
    """Return the signature of a request, made with a token's key."""
    return _mac(key, "", "request", parts)


@dataclass(frozen=True, slots=True)
class Envelope:
    """The unverified parts of a signed text."""

    stamp: int
    """Milliseconds since the epoch at the time of signing, or more. The number grows with each text."""
    epoch: int
    """Epoch of the write; 0 for an announcement."""
    signature: str
    """Signature in hexadecimal."""
    text: str


def seal(keys: Keyring, purpose: Purpose, name: str, stamp: int, epoch: int, text: str) -> str:
    """Return the text with its signature, which is valid only for this name. Without a key, return the text itself."""
    signature = keys.sign(purpose, name, stamp, epoch, text)
    return f"signed:1:{stamp}.{epoch}:{signature}:{text}" if signature else text


def parse_envelope(value: str) -> Envelope | None:
    """Split a signed text into its parts; None if the text is not signed."""
    match = _FORM.match(value)
    return Envelope(int(match[1]), int(match[2]), match[3], value[match.end() :]) if match else None


def is_valid(keys: Keyring, purpose: Purpose, name: str, envelope: Envelope) -> bool:
    """Return whether the text was signed for this name with one of the keys."""
    return keys.verifies(envelope.signature, purpose, name, envelope.stamp, envelope.epoch, envelope.text)


def is_newest(keys: Keyring, purpose: Purpose, name: str, envelope: Envelope) -> bool:
    """Return whether the text was signed with the current signing key."""
    return keys.is_newest(envelope.signature, purpose, name, envelope.stamp, envelope.epoch, envelope.text)


def _lines(content: str) -> Iterator[str]:
    for line in map(str.strip, content.splitlines()):
        if line and not line.startswith("#"):
            yield line


def _mac(key: bytes, scope: str, purpose: str, parts: tuple[str | int, ...]) -> str:
    derived = hmac.digest(key, f"lbctl 1 {purpose}\0{scope}".encode(), "sha256")
    made = hmac.new(derived, digestmod=hashlib.sha256)
    for part in parts:
        content = str(part).encode("utf-8", "surrogatepass")
        made.update(b"%d:" % len(content))
        made.update(content)
    return made.hexdigest()


def _equal(made: str, given: str) -> bool:
    return bool(made) and hmac.compare_digest(made.encode(), given.encode("utf-8", "surrogatepass"))
