"""What a stream has to tell: what a client accepted, what it refused, and how far each type is."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

State = Literal["SYNCED", "STALE", "NACKED", "WAITING"]


@dataclass(frozen=True, slots=True)
class Acked:
    """The client has accepted a response."""

    type_url: str
    nonce: str
    version: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Nacked:
    """The client has refused a response. `names`: those that its words name, or else all of the response."""

    type_url: str
    nonce: str
    version: str
    names: tuple[str, ...]
    message: str


@dataclass(frozen=True, slots=True)
class TypeStatus:
    """How far one type of one stream is.

    SYNCED: all that there is has been accepted. STALE: something is sent or due, and not accepted. NACKED: something
    was refused, and is not sent again. WAITING: there is nothing for it yet. The versions are digests of the content
    that is asked for, equal where all of it has been accepted; "" before that.
    """

    type_url: str
    wildcard: bool
    names: tuple[str, ...]
    state: State
    acked_version: str
    offered_version: str
    message: str
    nacked: tuple[str, ...]


def blamed(names: Collection[str], words: str) -> tuple[str, ...]:
    """Those of the names that are at fault by Envoy's words; all, if it names none of them.

    Envoy writes `Error adding/updating cluster(s) llama: …, gpt: …`. A name that is set apart like that or by quotes
    counts before one that might be any word of the sentence.
    """
    said = [name for name in names if name and name in words]
    apart = tuple(name for name in said if re.search(rf"(?<![^\s,;('\"]){re.escape(name)}(?:['\"]|:\s)", words))
    whole = tuple(name for name in said if re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w/-]|\.\w)", words))
    return apart or whole or tuple(names)
