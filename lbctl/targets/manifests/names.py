"""Names of Kubernetes objects, derived from the fleet's names.

The same parts always give the same name. Kubernetes allows fewer characters than the fleet, and all separators may
occur within the fleet's names. A name is therefore readable only if it is also unambiguous. Otherwise, it ends with a
digest of the parts.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

Parts = tuple[str, ...]
_DIGEST = 8
"""Number of hexadecimal digits of a digest."""


@dataclass(frozen=True, slots=True)
class NameGrammar:
    """Grammar of the names of one kind of object."""

    kind: str
    max_length: int
    dots: bool = True
    """Whether a name may contain dots, between labels."""
    starts_with_letter: bool = False
    separator: str = "-"
    """Separator of the parts."""


SERVICE = NameGrammar("Service", 63, dots=False, starts_with_letter=True)
"""A DNS label (RFC 1035)."""


def object_name(kind: str) -> NameGrammar:
    """Return the grammar of most kinds of objects: a DNS subdomain (RFC 1123)."""
    return NameGrammar(kind, 253)


def names(grammar: NameGrammar, wanted: Iterable[Parts]) -> dict[Parts, str]:
    """Return a distinct name for each of `wanted`.

    `wanted` must contain all names of one proxy. Another proxy must not affect them, because a renamed object would
    exist twice.
    """
    readable = {parts: grammar.separator.join(parts) for parts in wanted}
    counts = Counter(readable.values())
    return {
        parts: text if _is_valid(grammar, text) and counts[text] == 1 else _with_digest(grammar, parts, text)
        for parts, text in readable.items()
    }


def _is_valid(grammar: NameGrammar, text: str) -> bool:
    return text == _replaced(grammar, text) and len(text) <= grammar.max_length


def _with_digest(grammar: NameGrammar, parts: Parts, text: str) -> str:
    digest = hashlib.sha256("\0".join((grammar.kind, *parts)).encode()).hexdigest()[:_DIGEST]
    head = _replaced(grammar, text)[: grammar.max_length - _DIGEST - 1].rstrip("-.")
    return f"{head}-{digest}"


def _replaced(grammar: NameGrammar, text: str) -> str:
    """Return the text with every character that the grammar does not allow replaced or removed."""
    text = re.sub(r"[^a-z0-9.-]" if grammar.dots else r"[^a-z0-9-]", "-", text.lower())
    labels = [label.strip("-") for label in text.split(".")]
    text = ".".join(label for label in labels if label) or "x"
    return f"x{text}" if grammar.starts_with_letter and text[0].isdecimal() else text
