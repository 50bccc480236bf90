"""The form of a signed text in a store: `signed:1:STAMP.EPOCH:SIGNATURE:TEXT`.

The stamp grows with each text that a control plane signs, so that an older one that is written again is recognised.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lbctl.store.keyring import Keyring, Purpose

_FORM = re.compile(r"signed:1:([0-9]{1,17})\.([0-9]{1,17}):([0-9a-f]{64}):")


@dataclass(frozen=True, slots=True)
class Envelope:
    """A signed text, taken apart and not verified."""

    stamp: int
    """Milliseconds since the epoch at which it was signed, or more; it grows with each text."""
    epoch: int
    """The epoch in which it was written; 0 for an announcement."""
    signature: str
    """The signature, in hexadecimal."""
    text: str
    """The text."""


def seal(keys: Keyring, purpose: Purpose, name: str, stamp: int, epoch: int, text: str) -> str:
    """Return the text with its signature, which is valid for this name alone; the text itself without a key."""
    signature = keys.sign(purpose, name, stamp, epoch, text)
    return f"signed:1:{stamp}.{epoch}:{signature}:{text}" if signature else text


def parse(value: str) -> Envelope | None:
    """Take a signed text apart; None for one that is not signed."""
    match = _FORM.match(value)
    return Envelope(int(match[1]), int(match[2]), match[3], value[match.end() :]) if match else None


def is_valid(keys: Keyring, purpose: Purpose, name: str, envelope: Envelope) -> bool:
    """Return whether a member with one of the keys has signed the text for this name."""
    return keys.verifies(envelope.signature, purpose, name, envelope.stamp, envelope.epoch, envelope.text)


def is_newest(keys: Keyring, purpose: Purpose, name: str, envelope: Envelope) -> bool:
    """Return whether the text is signed with the key that signs now."""
    return keys.is_newest(envelope.signature, purpose, name, envelope.stamp, envelope.epoch, envelope.text)
