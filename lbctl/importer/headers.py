"""Headers that contain the client's address, and strings with variables, in fleet-file form."""

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
"""Default networks of trusted peers, whose headers contain the client's address."""


def text(value: str, variable: re.Pattern[str], meanings: Mapping[str, str]) -> str | None:
    """Return the value with fleet variables, or None if a variable has no equivalent or if text looks like one.

    The first group of `variable` that matched is looked up in `meanings`.
    """
    if any(match[0][1:-1].strip() in VARIABLES for match in _WORD.finditer(variable.sub("", value))):
        return None
    names = [next(filter(None, match.groups())) for match in variable.finditer(value)]
    if any(name not in meanings for name in names):
        return None
    return variable.sub(lambda match: meanings[next(filter(None, match.groups()))], value)


def put(draft: Draft, route: Path, name: str, value: str, *statements: Statement) -> None:
    """Set a request header on a route.

    A header with the client's address becomes a listener setting if the listener's peers are known.
    """
    listeners = [("listeners", each) for each in draft.get((*route, "listeners")) or draft.fleet["listeners"]]
    if value != CLIENT or not all(draft.get((*path, "client_address")) for path in listeners):
        draft.put((*route, "headers", "request", "set", name), value, *statements)
        return
    for path in listeners:
        names = draft.get((*path, "client_address", "forward")) or ["x-real-ip"]
        draft.put((*path, "client_address", "forward"), list(dict.fromkeys([*names, name])), *statements)


def named_by(draft: Draft, route: Path, header: str, statement: Statement, *, decides: bool = False) -> None:
    """Make the listeners of a route read the client's address from a header, if it comes from near peers.

    `settle` removes this setting from listeners with address lists, unless the address also `decides` about access in
    the configuration.
    """
    for each in draft.get((*route, "listeners")) or list(draft.fleet["listeners"]):
        path = ("listeners", each, "client_address")
        if decides:
            draft.guessed.pop(path, None)
        if draft.get(path) is None:
            draft.put(path, {"trusted": list(_NEAR), "header": header}, statement)
            if not decides:
                draft.guessed[path] = statement
            message = f"any client that can reach this proxy can send {header} and forge its address"
            hint = "lbctl trusts it only from private networks: add your CDN's networks to `client_address.trusted`"
            draft.ledger.advise(statement, message, hint)
        elif draft.get((*path, "header")) in {None, header}:
            draft.put((*path, "header"), header, statement)
        else:
            draft.ledger.omit(statement, "a listener can read the client's address from only one header", path[:2])


def settle(draft: Draft) -> None:
    """Remove the address header of listeners with address lists, because these lists apply to peers."""
    for path, statement in draft.guessed.items():
        listener = draft.get(path[:2]) or {}
        routes = [item for item in draft.fleet["routes"].values() if path[1] in item.get("listeners", [path[1]])]
        if any(key in item for key in ("allow_from", "deny_from") for item in (listener, *routes)):
            draft.drop(path)
            reason = "this header would let clients bypass `allow_from` and `deny_from`, which check the peer's address"
            draft.ledger.omit(statement, reason, path[:2])
