"""A request as it was sent, and the steps with which every proxy reads it before it matches rules.

Each `targets.<kind>.reading` has a function `read`. The kinds differ in which path escapes they decode, which requests
they reject, and whether they read a model from the body. Nothing here chooses a route.
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
"""Error message for a request whose model is ambiguous."""
CODED = (
    "the model in this compressed body cannot be read: send the body without content-encoding, or send the model in "
    "x-model"
)
"""Error message for a request whose body has a content coding that the proxy does not decode."""
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class Message:
    """A request as a client sends it."""

    method: str
    host: str
    """Value of the Host header; empty for a host that does not occur in any rule."""
    path: str
    """Path as in the request line, including escapes, without the query."""
    headers: tuple[tuple[str, str], ...] = ()
    """Headers in order, with names in lower case."""
    body: bytes = b""
    query: str = ""
    """Query as in the request line, without the question mark."""

    def values(self, name: str) -> list[str]:
        """Return the values of all header lines with this name, which must be in lower case."""
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
"""Type of `read`: Maps (message, its listener, the proxy's version) to the request as rules see it, or to a
rejection."""


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
    """Return the host in lower case, without the port and a final dot."""
    host = re.sub(r":[0-9]*\Z", "", message.host.lower())
    return host.removesuffix(".")


def decoded(path: str) -> str | None:
    """Return the path with every escape decoded, or None if it is ambiguous and therefore rejected by every proxy."""
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

    If the key is repeated, the first value is used with `first`, otherwise the last.
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
    """Return a body's content codings in lower case, or None if it has none."""
    names = [name.strip() for name in ",".join(message.values("content-encoding")).lower().split(",")]
    return ", ".join(name for name in names if name not in ("", "identity")) or None if message.body else None


def headers(message: Message) -> dict[str, tuple[str, ...]]:
    """Map each header name to its values, with one value per header line."""
    return {name: tuple(message.values(name)) for name, _ in message.headers}


def body_too_large(message: Message, limit: int | None) -> Refusal | None:
    """Return the rejection of a body of more than `limit` bytes, or None. With a limit of None, any size is allowed."""
    if limit is None or len(message.body) <= limit:
        return None
    return Refusal(413, f"the body has {len(message.body)} bytes, but at most {limit} are allowed or buffered")
