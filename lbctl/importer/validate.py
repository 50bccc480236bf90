"""Makes a draft a valid fleet: a value that `validate` refuses becomes a comment with the reason.

The importers map what a directive means; whether a value fits the grammar of its key is decided here, by the model
itself, so that the two never disagree.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lbctl.base import diagnostics as d
from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.importer.draft import Draft
from lbctl.importer.write import text
from lbctl.model.fleet import parse
from lbctl.model.load import SourceText
from lbctl.targets.load import complete

_MAX_ROUNDS = 40
_DECIDING = frozenset({"pool", "split", "match", "respond", "auth", "allow_from", "deny_from", "rewrite"})
"""Keys of a route without which it would take other requests, send them elsewhere, or no longer be protected."""
_PROTECTING = frozenset({"auth", "allow_from", "deny_from"})
_GUARDING = frozenset({"tls", "proxy_protocol", "client_address", "allow_from", "deny_from"})
"""Keys of a listener without which its routes would no longer be protected."""
_NAMED = frozenset({"listeners", "routes", "pools", "proxies"})
_HINT = "the comment at its place has the line of the configuration: write the key by hand"


def settle(draft: Draft) -> list[Diagnostic]:
    """Remove what is not valid, until the fleet is; returns the errors that remain, none in general."""
    for _ in range(_MAX_ROUNDS):
        errors = _errors(draft)
        if not _repair_all(draft, errors):
            return errors
    return _errors(draft)


def _repair_all(draft: Draft, errors: list[Diagnostic]) -> bool:
    """Repair each value once, the last one of a list first; returns whether any could be."""
    found = {_removable(_existing(draft, error.path)): error for error in reversed(errors)}
    found = {path: error for path, error in found.items() if not any(path[:size] in found for size in range(len(path)))}
    # An error about a value that an earlier repair removed is settled: the values around it stay.
    repaired = [_repair(draft, error, path) for path, error in found.items() if _existing(draft, path) == path]
    return any(repaired)


def _removable(path: d.Path) -> d.Path:
    """Return the path of the value to remove: a replica without its address is none."""
    is_address = path[:1] == ("pools",) and path[2:3] == ("replicas",) and path[4:] == ("address",)
    return path[:-1] if is_address else path


def _errors(draft: Draft) -> list[Diagnostic]:
    diagnostics = Diagnostics()
    source = parse([SourceText("import", text(draft, "", "").encode(), ".")], diagnostics)
    if source is not None and not diagnostics.failed:
        own = {str(Path(name)): content.encode() for name, content in draft.own_files().items()}
        complete(replace(source, target_contents=own), diagnostics)
    return [item for item in diagnostics if item.severity == "error" and item.code not in {"LB001", "LB503"}]


def _repair(draft: Draft, error: Diagnostic, path: d.Path) -> bool:
    """Remove the smallest value that the error is about; a route without its pool refuses its requests.

    Whatever is removed leaves a comment and a finding.
    """
    if len(path) < 2 or path[0] not in _NAMED:
        return False
    reason = "no key of a fleet means this" if error.code == "LB012" else error.message
    origins = draft.ledger.carriers(path)
    route = path[0] == "routes" and (len(path) == 2 or path[2] in _DECIDING)
    if route and not (draft.get(path[:2]) or {}).get("respond"):
        by_hand = str(path[2]) if len(path) > 2 and path[2] in _PROTECTING else ""
        draft.close(path[:2], "this route could not be carried over", by_hand=by_hand)
        lost = draft.ledger.revoke(path)
    elif path[0] == "routes" and path[2:3] == ("match",):
        lost = draft.drop(path[:2])
        reason = f"{reason}; the whole route is left out, and another one may take its requests"
    else:
        _close_routes(draft, path)
        lost = draft.drop(path)
    if path[0] == "pools" and path[2:3] in {("affinity",), ("balance",)} and (origins or lost):
        draft.unkept.setdefault(path[:2], (origins or lost)[0])
    lines = set[tuple[str, int]]()
    for statement in lost or origins:
        draft.ledger.omit(statement, reason, path[:2])
        if (line := (statement.position.file, statement.position.line)) not in lines:
            lines.add(line)
            draft.ledger.advise(statement, f"{'.'.join(map(str, path))} was left out: {reason}", _HINT)
    return True


def _close_routes(draft: Draft, path: d.Path) -> None:
    """Close the routes of a listener that loses what protects it."""
    if path[0] != "listeners" or (len(path) > 2 and path[2] not in _GUARDING):
        return
    for name, route in draft.fleet["routes"].items():
        if path[1] in route.get("listeners", [path[1]]) and "respond" not in route:
            draft.close(("routes", name), "what protects its listener could not be carried over")


def _existing(draft: Draft, path: d.Path) -> d.Path:
    while path and draft.get(path) is None:
        path = path[:-1]
    return path
