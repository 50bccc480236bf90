"""Removes values that contain a secret from the configuration, so that none of them is written to the fleet.

A match that needs the secret gets a placeholder, which any client could send. For this reason, its route does not
forward any requests. Requests with the secret then use another route. That route is also closed if the first route
rejected or protected them.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator
from typing import Any

from lbctl.base.diagnostics import Path
from lbctl.importer.draft import LOCATION, Draft
from lbctl.importer.matching import covers, rank
from lbctl.importer.secrets import is_random
from lbctl.importer.statement import Statement

STAND_IN = "not-copied"
"""Placeholder for a secret in a match."""
_TEXTS = {"routes": frozenset({"match", "headers", "respond", "rewrite"}), "pools": frozenset({"health", "upstream"})}
"""Keys that contain strings from the configuration."""
_WORDS = frozenset({"hosts", "methods"})
"""Keys in a match that do not contain secrets."""
_PROTECTING = ("auth", "allow_from", "deny_from")


def settle(draft: Draft) -> None:
    """Remove the values that contain a secret, and report a finding at the directive for each."""
    before = copy.deepcopy(draft.fleet["routes"])
    matched = dict[str, list[Statement]]()
    for path, value in list(_leaves(draft.fleet, ())):
        if path[2:3] and path[2] in _TEXTS.get(str(path[0]), ()) and _is_secret(draft, path, value):
            sources = draft.ledger.carriers(path)
            if path[2] == "match":
                matched.setdefault(str(path[1]), sources)
            _withhold(draft, path, sources)
    at = {name: items[0] if items else draft.origins["routes", name] for name, items in matched.items()}
    for name, source in at.items():
        _close_other(draft, before[name], _other(draft, before, name, at), source)
    for name, source in at.items():
        _report_other(draft, name, before[name], _other(draft, before, name, at), source)


def _is_secret(draft: Draft, path: Path, value: str) -> bool:
    if path[2:4] == ("match", "headers"):
        return draft.ledger.secrets.compared(str(path[4]), value)
    if "headers" in path[2:-1] and is_random(value):
        return True
    return path[3:4] not in {(key,) for key in _WORDS} and draft.ledger.secrets.written(value)


def _withhold(draft: Draft, path: Path, sources: list[Statement]) -> None:
    shown = ".".join(map(str, path))
    if path[2] == "match":
        draft.put(path, f"/{STAND_IN}" if str(path[3]).startswith("path") else STAND_IN)
        if not _refuses(draft.get(path[:2])):
            draft.close(path[:2], "the match of the route contains a secret, which was not copied", by_hand="match")
        hint = (
            f"{shown} is a placeholder, and the route refuses all requests: write the value there, then replace "
            "`respond`"
        )
    elif path[2] == "rewrite" or path[2:] == LOCATION:
        draft.close(path[:2], "the path contains a secret")
        hint = f"the route refuses all requests, because {shown} would contain the secret"
    else:
        draft.drop(path)
        hint = f"{shown} was left out: write it by hand if the fleet file may contain the secret"
    for statement in sources[:1]:
        draft.ledger.secret(statement, "this contains a secret, which was not copied", hint)
        draft.ledger.omit(statement, "values that contain a secret are not copied", path[:2])


def _other(draft: Draft, before: dict[str, Any], name: str, matched: Collection[str]) -> str | None:
    """Return the route that handles the requests for a route whose match no longer contains a secret.

    The result is None if these requests are rejected.
    """
    routes, route = draft.fleet["routes"], before[name]
    others = [
        other
        for other in routes
        if other not in matched and _share(route, routes[other]) and covers(before[other]["match"], route["match"])
    ]
    other = max(others, key=lambda each: rank(before[each]["match"]), default=None)
    return None if other is None or _refuses(routes[other]) else other


def _close_other(draft: Draft, route: dict[str, Any], other: str | None, source: Statement) -> None:
    """Close the other route if it handles requests that this route rejects or protects."""
    if other is None:
        return
    taking = draft.fleet["routes"][other]
    if _refuses(route) or any(route.get(key, taking.get(key)) != taking.get(key) for key in _PROTECTING):
        why = "another route protects some of the same requests with a secret, which was not copied"
        draft.ledger.omit(source, f"{why}: the route refuses all requests", ("routes", other))
        draft.close(("routes", other), why)


def _report_other(draft: Draft, name: str, route: dict[str, Any], other: str | None, source: Statement) -> None:
    """Report the other route if it sends the requests to another pool."""
    taking = draft.fleet["routes"][other] if other is not None else route
    if any(route.get(key) != taking.get(key) for key in ("pool", "split")):
        draft.ledger.misroute(source, f"requests for route {name} use route {other}, because a secret was not copied")


def _share(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two routes share a listener."""
    return "listeners" not in one or "listeners" not in other or bool({*one["listeners"]} & {*other["listeners"]})


def _refuses(route: dict[str, Any]) -> bool:
    return int((route.get("respond") or {}).get("status", 0)) >= 400


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(child, (*path, key))
    elif isinstance(value, str):
        yield path, value
