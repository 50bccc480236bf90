"""The query fields that have the same format in SPOP (HAProxy) and HTTP (nginx)."""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote

from lbctl.ir.locality import Place
from lbctl.pick.waiting import PRIORITIES
from lbctl.picker.messages import Caller

PICK_PATH = "/pick/"
"""Path of a query, without the pool name."""
MAX_CALLERS = 512
"""Maximum number of cached combinations of proxy, route and tenant."""
_PICK_ID = re.compile("[0-9a-f-]{36}")


@lru_cache(MAX_CALLERS)
def caller(target: str, proxy: str, tenant: str) -> Caller:
    """Return the caller.

    In `target`, which is a path and query string, names are percent-encoded but commas are not.
    """
    path, _, query = target.partition("?")
    values = {key: value for key, _, value in (part.partition("=") for part in query.split("&"))}
    regions = frozenset(unquote(item) for item in values.get("regions", "").split(",") if item)
    region, zone = (unquote(values.get(key, "")) or None for key in ("region", "zone"))
    pool, leaves_busy = unquote(path.removeprefix(PICK_PATH)), values.get("busy") == "1"
    return Caller(
        pool, proxy, regions, Place(region, zone), leaves_busy=leaves_busy, tenant=tenant,
        priority=priority_named(values.get("priority", "")), waits=values.get("wait") == "1",
        route=unquote(values.get("route", "")),
    )  # fmt: skip


def priority_named(text: str) -> str:
    """Return the priority with this name, or `normal` if there is no such priority."""
    return text if text in PRIORITIES else "normal"


def pick_id(text: str) -> str:
    """Return the pick ID chosen by a proxy; empty if `text` is not a UUID."""
    return text if _PICK_ID.fullmatch(text) else ""


def body_length(text: str, beginning: bytes) -> int:
    """Return the length of the client's entire body: the number in `text`, or else the length of `beginning`."""
    return (int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else 0) or len(beginning)
