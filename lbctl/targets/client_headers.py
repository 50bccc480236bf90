"""Request headers with which a client could speak in the name of a proxy: removed from peers that are not trusted.

They say who the client is, how and for which host it came, or that another method or path is meant than those that the
proxy chose a route by. A peer in `client_address.trusted` may send them; without `client_address` nobody may.
Names are compared with `_` as `-`, since many a server (CGI, WSGI) takes one for the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

FORWARDED_PREFIX = "x-forwarded-"
"""All such headers; nginx, which removes headers by whole names, those in `CLAIMS`."""
CLAIMS = (
    "cf-connecting-ip",
    "forwarded",
    "proxy",
    "true-client-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "x-envoy-external-address",
    "x-forwarded",
    "x-forwarded-by",
    "x-forwarded-client-cert",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-prefix",
    "x-forwarded-scheme",
    "x-forwarded-server",
    "x-forwarded-ssl",
    "x-host",
    "x-http-method",
    "x-http-method-override",
    "x-method-override",
    "x-original-forwarded-for",
    "x-original-host",
    "x-original-url",
    "x-real-ip",
    "x-rewrite-url",
    "x-ssl-client-cert",
)
"""Besides `x-forwarded-for` and `x-forwarded-proto`, which every proxy writes itself."""
INTERNAL_PREFIX = "x-lbctl-internal-"
"""How headers begin that only lbctl's own filters write and read: removed from everybody."""
INTERNAL = tuple(f"{INTERNAL_PREFIX}{name}" for name in ("anyone", "tenant", "token"))
HOP_BY_HOP = ("http2-settings", "keep-alive", "proxy-connection")
"""What speaks of the client's connection to the proxy alone: removed from everybody, as is `upgrade` to anything but
WebSocket. `te` stays, since gRPC asks for it."""
_FRAMING = ("content_length", "transfer_encoding")
"""What servers that take `_` for `-` would read as the framing of the message: removed from everybody."""


_LONGEST_GROUP = 64
"""Characters of the names in one of `claim_groups`. Envoy refuses an expression of over 100 instructions unless its
bootstrap says otherwise, and a character is one instruction or, as `[-_]`, two."""


def claim_groups(names: Iterable[str] = ()) -> list[str]:
    """`claims` as several expressions, each short enough for an Envoy with any bootstrap."""
    groups: list[list[str]] = [[f"{_spelled(FORWARDED_PREFIX)}.*"]]
    size = len(FORWARDED_PREFIX)
    for name in _whole_names(names):
        if size + len(name) > _LONGEST_GROUP:
            groups.append([])
            size = 0
        groups[-1].append(_spelled(name))
        size += len(name)
    return [f"^(?:{'|'.join(group)})$" for group in groups]


def claims(names: Iterable[str] = ()) -> str:
    """A regular expression for the whole name of a header that only a trusted peer may send; `names`: further ones."""
    whole = "|".join(map(_spelled, _whole_names(names)))
    return f"^(?:{_spelled(FORWARDED_PREFIX)}.*|{whole})$"


def forgeries(names: Iterable[str] = ()) -> str:
    """A regular expression for the whole name of a header that no client may send; `names`: further ones."""
    return (
        "^(?:"
        + "|".join((f"{_spelled(INTERNAL_PREFIX)}.*", *_FRAMING, *map(_spelled, (*HOP_BY_HOP, *sorted(names)))))
        + ")$"
    )


def _whole_names(names: Iterable[str]) -> list[str]:
    return [name for name in sorted({*CLAIMS, *names}) if not name.startswith(FORWARDED_PREFIX)]


def _spelled(name: str) -> str:
    return "".join("[-_]" if char in "-_" else re.escape(char) for char in name.lower())
