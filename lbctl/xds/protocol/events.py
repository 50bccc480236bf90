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
    """The client has rejected a response (NACK). `names` are those in its message, or else all of the response."""

    type_url: str
    nonce: str
    version: str
    names: tuple[str, ...]
    """The resources that its message names, or else all of the response."""
    message: str
    """The client's error."""


@dataclass(frozen=True, slots=True)
class TypeStatus:
    """The status of one type on one stream.

    SYNCED: all content has been accepted. STALE: something is sent or due, and not yet accepted. NACKED: something was
    rejected, and is not sent again. WAITING: the server has no content for the subscription yet. The versions are
    digests of the subscribed content, equal where all of it has been accepted, and empty before that.
    """

    type_url: str
    wildcard: bool
    """Whether the client asks for all resources of the type."""
    names: tuple[str, ...]
    """The resources that it asks for by name."""
    count: int
    """The number of names; the names themselves are dropped when the stream ends."""
    state: State
    """How far the client has the content."""
    acked_version: str
    """The digest of what it has accepted; empty before the first."""
    offered_version: str
    """The digest of what was last sent; empty before the first."""
    message: str
    """The client's error while it is NACKED; otherwise empty."""
    nacked: tuple[str, ...]
    """The resources that it rejects."""


def blamed(names: Collection[str], message: str) -> tuple[str, ...]:
    """Return the names that Envoy's message blames, or all names if it mentions none of them."""
    return mentioned(names, message) or tuple(names)


def mentioned(names: Collection[str], message: str) -> tuple[str, ...]:
    """Return the names that Envoy's message blames; empty if it mentions none of them.

    Envoy writes `Error adding/updating cluster(s) llama: …, gpt: …`. A name that is delimited like that or by quotes
    takes precedence over one that might be any word of the sentence.
    """
    found = [name for name in names if name and name in message]
    delimited = tuple(name for name in found if re.search(rf"(?<![^\s,;('\"]){re.escape(name)}(?:['\"]|:\s)", message))
    whole = tuple(name for name in found if re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w/-]|\.\w)", message))
    return delimited or whole
