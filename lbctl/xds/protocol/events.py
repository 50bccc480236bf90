"""The events of a stream (ACK and NACK) and the status of each type."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

State = Literal["SYNCED", "STALE", "NACKED", "WAITING"]


@dataclass(frozen=True, slots=True)
class Acked:
    """The client has accepted a response (ACK)."""

    type_url: str
    nonce: str
    version: str
    names: tuple[str, ...]
    """The resources of the response."""


@dataclass(frozen=True, slots=True)
class Nacked:
    """The client has rejected a response (NACK)."""

    type_url: str
    nonce: str
    version: str
    names: tuple[str, ...]
    """Resources named in the client's message, or all resources of the response if it names none."""
    message: str
    """The client's error."""


@dataclass(frozen=True, slots=True)
class TypeStatus:
    """The status of one type on one stream.

    SYNCED: all content has been accepted. STALE: something is sent or due, and not yet accepted. NACKED: something was
    rejected, and is not sent again. WAITING: the server has no content for the subscription yet. The versions are
    digests of the subscribed content. The two versions are equal if all of the content has been accepted, and empty at
    first.
    """

    type_url: str
    wildcard: bool
    """Whether the client subscribes to all resources of the type."""
    names: tuple[str, ...]
    """Resources subscribed to by name."""
    count: int
    """Number of names. The names themselves are dropped when the stream ends."""
    state: State
    acked_version: str
    """Digest of the accepted content; empty before the first ACK."""
    offered_version: str
    """Digest of the content that was last sent; empty before the first response."""
    message: str
    """Client's error while it is NACKED; otherwise empty."""
    nacked: tuple[str, ...]
    """Resources that the client rejects."""


def blamed(names: Collection[str], message: str) -> tuple[str, ...]:
    """Return the names that Envoy's message blames, or all names if it does not blame any of them."""
    return mentioned(names, message) or tuple(names)


def mentioned(names: Collection[str], message: str) -> tuple[str, ...]:
    """Return the names that Envoy's message blames; empty if it mentions none of them.

    Envoy writes `Error adding/updating cluster(s) llama: …, gpt: …`. A name delimited in this way or by quotes takes
    precedence over a name that could be an ordinary word of the sentence.
    """
    found = [name for name in names if name and name in message]
    delimited = tuple(name for name in found if re.search(rf"(?<![^\s,;('\"]){re.escape(name)}(?:['\"]|:\s)", message))
    whole = tuple(name for name in found if re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w/-]|\.\w)", message))
    return delimited or whole
