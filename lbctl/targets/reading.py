"""A request as it is sent, and the common steps of all proxies to read it before they match rules.

Each `targets.<kind>.reading` has one function `read`: the kinds differ in the escapes of a path that they decode, in
the requests that they reject, and in whether they read a model from a body. Nothing here chooses a route.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from lbctl.ir.listeners import Listener
from lbctl.ir.matching import Request
from lbctl.targets import query_model, request_grammar

MODEL_HEADER = "x-model"
UNCLEAR = (
    "the model is ambiguous: send the body as a plain JSON object with exactly one model, and no other model in x-model"
)
"""Error message for a client whose request is ambiguous about its model."""
CODED = (
    "the model in this compressed body cannot be read: send the body without content-encoding, or send the model in "
    "x-model"
)
"""Error message for a client whose body has a content coding that the proxy does not decode."""
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class Message:
    """A request as a client sends it."""

    method: str
    host: str
    """Value of the Host header; empty for a host that no rule names."""
    path: str
    """Path as in the request line, with its escapes and without the query."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers in order, with names in lower case."""
    body: bytes = b""
    query: str = ""
    """Query as in the request line, without its question mark."""

    def values(self, name: str) -> list[str]:
        """Return the values of all header lines with that name, which must be in lower case."""
        return [value for header, value in self.headers if header == name]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The proxy responds itself before it matches any rule."""

    status: int
    message: str
    """Message in the response."""


AMBIGUOUS_PATH = Refusal(400, request_grammar.TARGET_MESSAGE)

Version = tuple[int, ...]
Reader = Callable[[Message, Listener, Version], Request | Refusal]
"""Type of `read`: (message, its listener, the proxy's version) → the request as rules see it, or a rejection."""


def refused(message: Message) -> Refusal | None:
    """Return the rejection of an ambiguous method or host, which is the same in every proxy, or None."""
    if request_grammar.is_refused_method(message.method):
        return Refusal(405, request_grammar.METHOD_MESSAGE)
    return (
        None
        if not message.host or request_grammar.is_host(message.host)
        else Refusal(400, request_grammar.HOST_MESSAGE)
    )


def host_of(message: Message) -> str:
    """Return the host in lower case, without the port and without a final dot."""
    host = re.sub(r":[0-9]*\Z", "", message.host.lower())
    return host.removesuffix(".")


def decoded(path: str) -> str | None:
    """Return the path with every escape decoded, or None if it is ambiguous: every proxy rejects such a path."""
    if request_grammar.is_ambiguous(path):
        return None
    return _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), path)


def by_model(listener: Listener) -> bool:
    """Return whether a rule of the listener matches by model."""
    return any(rule.models for rule in listener.rules)


def wants_clear_model(listener: Listener) -> bool:
    """Return whether a rule of the listener rejects requests with an ambiguous model."""
    return any(rule.clear_model for rule in listener.rules)


def model_in(body: bytes, first: bool) -> str | None:
    """Return the string `model` of a JSON object, or None.

    If the key is repeated, `first` selects its first value, otherwise the last one is used.
    """

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        return dict(reversed(items)) if first else dict(items)

    try:
        document = json.loads(body, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        return None
    model = document.get("model") if isinstance(document, dict) else None
    return model if isinstance(model, str) else None


def model_in_query(message: Message, listener: Listener, *, decoded: bool) -> str | None:
    """Return the parameter `model` of a GET on a listener that matches by model, or None.

    `decoded`: whether the proxy decodes the query.
    """
    is_read = message.method == "GET" and by_model(listener)
    return query_model.first(message.query, decoded=decoded) if is_read else None


def coding(message: Message) -> str | None:
    """Return the content codings of a body in lower case, or None without one."""
    names = [name.strip() for name in ",".join(message.values("content-encoding")).lower().split(",")]
    return ", ".join(name for name in names if name not in ("", "identity")) or None if message.body else None


def headers(message: Message) -> dict[str, tuple[str, ...]]:
    """Return name → values of the headers, with one value for each header line."""
    return {name: tuple(message.values(name)) for name, _ in message.headers}


def body_too_large(message: Message, limit: int | None) -> Refusal | None:
    """Return the rejection of a body with more than `limit` bytes, or None. A limit of None allows any size."""
    if limit is None or len(message.body) <= limit:
        return None
    return Refusal(413, f"the body has {len(message.body)} bytes, but at most {limit} are allowed or buffered")
