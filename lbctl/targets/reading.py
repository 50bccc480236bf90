"""A request as it is sent, and what the kinds of proxies share in reading it before their rules are asked.

Each `targets.<kind>.reading` has one function `read`: they differ in which escapes of a path they decode, in what they
refuse, and in whether they look for a model in a body. Nothing here decides about a route.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass

from lbctl.ir.listeners import Listener
from lbctl.ir.matching import Request
from lbctl.targets import request_host, request_method, request_target

MODEL_HEADER = "x-model"
UNCLEAR = "send the body as one plain JSON object with one model, and no other one in x-model"
"""What a client is told whose request does not say clearly which model it is for."""
_ESCAPE = re.compile("%([0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True)
class Message:
    """`path` as it stands in the request line, escapes and all, without query; `host` as in the Host header, empty
    for one that no rule names; `headers` in their order, names in lower case."""

    method: str
    host: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""

    def values(self, name: str) -> list[str]:
        return [value for known, value in self.headers if known == name]


@dataclass(frozen=True, slots=True)
class Refusal:
    """The proxy answers by itself before any rule is asked."""

    status: int
    words: str


AMBIGUOUS_PATH = Refusal(400, request_target.MESSAGE)

Version = tuple[int, ...]
Reader = Callable[[Message, Listener, Version], Request | Refusal]
"""(as sent, on which listener, by which version of the proxy) → as the rules see it."""


def refused(message: Message) -> Refusal | None:
    """What every proxy says to a method or a host that servers read in two ways."""
    if request_method.is_refused(message.method):
        return Refusal(405, request_method.MESSAGE)
    return None if not message.host or request_host.is_host(message.host) else Refusal(400, request_host.MESSAGE)


def host_of(message: Message) -> str:
    """Without case, port and the dot that a full name may end with."""
    host = re.sub(r":[0-9]*\Z", "", message.host.lower())
    return host.removesuffix(".")


def decoded(path: str) -> str | None:
    """Every escape as the byte that it stands for; None where the path is ambiguous, which every proxy refuses."""
    if request_target.is_ambiguous(path):
        return None
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), path)


def by_model(listener: Listener) -> bool:
    return any(rule.models for rule in listener.rules)


def wants_clear_model(listener: Listener) -> bool:
    return any(rule.clear_model for rule in listener.rules)


def model_in(body: bytes, first: bool) -> str | None:
    """The text of `model` in a JSON object. `first`: where it stands twice the first counts, else the last."""

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        return dict(reversed(items)) if first else dict(items)

    try:
        found = json.loads(body, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        return None
    model = found.get("model") if isinstance(found, dict) else None
    return model if isinstance(model, str) else None


def headers(message: Message) -> dict[str, tuple[str, ...]]:
    """Each line of a header by itself."""
    return {name: tuple(message.values(name)) for name, _ in message.headers}


def body_too_large(message: Message, most: int | None) -> Refusal | None:
    if most is None or len(message.body) <= most:
        return None
    return Refusal(413, f"the body has {len(message.body)} bytes, and {most} are allowed or held")
