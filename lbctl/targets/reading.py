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

MODEL_HEADER = "x-model"
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})?")
_SLASHES = re.compile("//+")


@dataclass(frozen=True, slots=True)
class Message:
    """`path` as it stands in the request line, escapes and all, without query; `host` as in the Host header, empty
    without one; `headers` in their order, names in lower case."""

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


Version = tuple[int, ...]
Reader = Callable[[Message, Listener, Version], Request | Refusal]
"""(as sent, on which listener, by which version of the proxy) → as the rules see it."""


def host_of(message: Message) -> str:
    """Without case, port and the dot that a full name may end with."""
    host = re.sub(r":[0-9]*\Z", "", message.host.lower())
    return host.removesuffix(".")


def decoded(path: str) -> str | None:
    """Every escape as the byte that it stands for; None where one is no escape."""
    if any(found[1] is None for found in _ESCAPE.finditer(path)):
        return None
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)), path)


def merged(path: str) -> str:
    """Each run of slashes as one."""
    return _SLASHES.sub("/", path)


def by_model(listener: Listener) -> bool:
    return any(rule.models for rule in listener.rules)


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
