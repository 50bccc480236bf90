"""Makes a draft a valid fleet: a value that `validate` refuses becomes a comment with the reason.

The importers map what a directive means; whether a value fits the grammar of its key is decided here, by the model
itself, so that the two never disagree.
"""

from __future__ import annotations

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Path
from lbctl.importer.draft import Draft
from lbctl.importer.write import text
from lbctl.model.fleet import parse
from lbctl.model.load import SourceText
from lbctl.targets.load import complete

_MAX_ROUNDS = 40
_DECIDING = frozenset({"pool", "split", "match", "respond", "auth", "allow_from", "deny_from", "rewrite"})
"""Keys of a route without which it would take other requests, send them elsewhere, or no longer be protected."""
_NAMED = frozenset({"listeners", "routes", "pools", "proxies"})


def settle(draft: Draft) -> list[Diagnostic]:
    """Remove what is not valid, until the fleet is; returns the errors that remain, none in general."""
    for _ in range(_MAX_ROUNDS):
        errors = _errors(draft)
        repaired = [_repair(draft, error) for error in errors]
        if not any(repaired):
            return errors
    return _errors(draft)


def _errors(draft: Draft) -> list[Diagnostic]:
    diagnostics = Diagnostics()
    source = parse([SourceText("import", text(draft, "", "").encode(), ".")], diagnostics)
    if source is not None and not diagnostics.failed:
        complete(source, diagnostics)
    return [item for item in diagnostics if item.severity == "error" and item.code not in {"LB001", "LB503"}]


def _repair(draft: Draft, error: Diagnostic) -> bool:
    """Remove the smallest value that the error is about; a route without its pool refuses its requests."""
    path = _existing(draft, error.path)
    if len(path) < 2 or path[0] not in _NAMED:
        return False
    reason = "no key of a fleet means this" if error.code == "LB012" else error.message
    route = path[0] == "routes" and (len(path) == 2 or path[2] in _DECIDING)
    if route and not (draft.get(path[:2]) or {}).get("respond"):
        draft.close(path[:2], "this route could not be carried over")
        lost = draft.ledger.revoke(path)
    elif path[0] == "routes" and path[2:3] == ("match",):
        lost = draft.drop(path[:2])
        reason = f"{reason}; the whole route is left out, and another one may take its requests"
    else:
        lost = draft.drop(path)
    for statement in lost:
        draft.ledger.omit(statement, reason, path[:2])
    return True


def _existing(draft: Draft, path: Path) -> Path:
    while path and draft.get(path) is None:
        path = path[:-1]
    return path
