"""Headers that carry the client's address, and texts with variables, as a fleet writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from lbctl.base.diagnostics import Path
from lbctl.importer.draft import Draft
from lbctl.importer.statement import Statement
from lbctl.ir.header_text import VARIABLES

CLIENT = "{client_ip}"
_WORD = re.compile(r"\{\s*[A-Za-z0-9_.-]+\s*\}")
_NEAR = ["127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7"]
"""Where a peer may be that names clients, as long as nobody says which one does."""


def text(value: str, variable: re.Pattern[str], meanings: Mapping[str, str]) -> str | None:
    """Return the value with the words of a fleet; None if a variable has no meaning there, or a text looks like one.

    The first group of `variable` that matched is looked up in `meanings`.
    """
    if any(match[0][1:-1].strip() in VARIABLES for match in _WORD.finditer(variable.sub("", value))):
        return None
    names = [next(filter(None, match.groups())) for match in variable.finditer(value)]
    if any(name not in meanings for name in names):
        return None
    return variable.sub(lambda match: meanings[next(filter(None, match.groups()))], value)


def put(draft: Draft, route: Path, name: str, value: str, *statements: Statement) -> None:
    """Have a route set a request header; one with the client's address is the listener's where it names its peers."""
    listeners = [("listeners", each) for each in draft.get((*route, "listeners")) or draft.fleet["listeners"]]
    if value != CLIENT or not all(draft.get((*path, "client_address")) for path in listeners):
        draft.put((*route, "headers", "request", "set", name), value, *statements)
        return
    for path in listeners:
        names = draft.get((*path, "client_address", "forward")) or ["x-real-ip"]
        draft.put((*path, "client_address", "forward"), list(dict.fromkeys([*names, name])), *statements)


def named_by(draft: Draft, route: Path, header: str, statement: Statement, *, decides: bool = False) -> None:
    """Have the listeners of a route read the client's address from a header, from peers that are near.

    Unless that address also `decides` in the configuration who is let in, `settle` leaves it out where lists do.
    """
    for each in draft.get((*route, "listeners")) or list(draft.fleet["listeners"]):
        path = ("listeners", each, "client_address")
        if decides:
            draft.guessed.pop(path, None)
        if draft.get(path) is None:
            draft.put(path, {"trusted": list(_NEAR), "header": header}, statement)
            if not decides:
                draft.guessed[path] = statement
            message = f"anybody who reaches this proxy can send {header}, and so choose the address that is believed"
            hint = "only peers in private networks are believed: write those of your CDN into `client_address.trusted`"
            draft.ledger.advise(statement, message, hint)
        elif draft.get((*path, "header")) in {None, header}:
            draft.put((*path, "header"), header, statement)
        else:
            draft.ledger.omit(statement, "a listener reads the client's address from one header", path[:2])


def settle(draft: Draft) -> None:
    """Leave out addresses that headers name where lists of addresses are: those are of the peers."""
    for path, statement in draft.guessed.items():
        listener = draft.get(path[:2]) or {}
        routes = [item for item in draft.fleet["routes"].values() if path[1] in item.get("listeners", [path[1]])]
        if any(key in item for key in ("allow_from", "deny_from") for item in (listener, *routes)):
            draft.drop(path)
            reason = "the lists of addresses are of the peers: a header that names the client would get around them"
            draft.ledger.omit(statement, reason, path[:2])
