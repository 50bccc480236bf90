"""Values of a draft that hold a secret of the configuration: none of them reaches the fleet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lbctl.base.diagnostics import Path
from lbctl.importer.draft import LOCATION, Draft

STAND_IN = "not-copied"
"""The value of a header in a match in place of a secret: no client sends it."""
_TEXTS = {"routes": frozenset({"match", "headers", "respond", "rewrite"}), "pools": frozenset({"health", "upstream"})}
"""The keys below which a value is a text of the configuration."""


def settle(draft: Draft) -> None:
    """Take out the values that hold a secret, each with a finding at the directive that it came from."""
    for path, value in list(_leaves(draft.fleet, ())):
        if path[2:3] and path[2] in _TEXTS.get(str(path[0]), ()) and draft.ledger.secrets.inside(value):
            _withhold(draft, path)


def _withhold(draft: Draft, path: Path) -> None:
    shown, sources = ".".join(map(str, path)), draft.ledger.carriers(path)
    if path[2:4] == ("match", "headers"):
        draft.put(path, STAND_IN)
        hint = f"{shown} is {STAND_IN!r}: write the value there, or requests with it take another route"
    elif path[2] in {"match", "rewrite"} or path[2:] == LOCATION:
        draft.close(path[:2], "it has a secret in its path")
        hint = f"the route refuses its requests: {shown} would hold the secret"
    else:
        draft.drop(path)
        hint = f"{shown} was left out: write it by hand where the fleet may hold it"
    for statement in sources[:1]:
        draft.ledger.secret(statement, "this holds a secret, which was not copied", hint)
        draft.ledger.omit(statement, "a value that holds a secret is not copied", path[:2])


def _leaves(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(child, (*path, key))
    elif isinstance(value, str):
        yield path, value
