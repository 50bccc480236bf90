"""API keys of which the key file has only the hash: a proxy that compares keys as they are refuses them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.secrets import ApiKey
from lbctl.ir.snapshot import View
from lbctl.targets.features import BY_ID

CODE = BY_ID["route.auth.api_keys"].code
_FIX = "lbctl key new TENANT --plain -f FILE; the file is then readable by its owner alone"


@dataclass(frozen=True, slots=True)
class HashOnly:
    """The API keys of a route of which only the hash is known."""

    route: str
    count: int
    """How many of its keys they are."""
    total: int
    """How many keys the route has."""


def hash_only(view: View) -> Iterator[HashOnly]:
    """Yield the routes of the view that ask for such keys."""
    for name, route in view.routes.items():
        asks = route.auth is not None and route.auth.api_keys is not None
        found = of_route(name, view.api_keys.get(name, ())) if asks else None
        if found is not None:
            yield found


def of_route(route: str, keys: Sequence[ApiKey]) -> HashOnly | None:
    """Return the keys of a route of which only the hash is known; None if there are none."""
    count = sum(1 for item in keys if not item.key)
    return HashOnly(route, count, len(keys)) if count else None


def warning(title: str, keys: HashOnly) -> Diagnostic:
    """Return the warning for a proxy that compares no hashes; `title` is the name of its kind."""
    message = f"{title} compares no hashes: it refuses {keys.count} of {keys.total} keys, of which the file has hashes"
    path = ("routes", keys.route, "auth", "api_keys", "file")
    return Diagnostic(CODE, message, path=path, hint=_FIX, severity="warning")
