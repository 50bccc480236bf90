"""API keys whose key file contains only the hash. A proxy that compares keys in plain text rejects them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.secrets import ApiKey
from lbctl.ir.snapshot import View
from lbctl.targets.features import BY_ID

CODE = BY_ID["route.auth.api_keys"].code
_FIX = "run lbctl key new TENANT --plain -f FILE; only its owner can then read the file"


@dataclass(frozen=True, slots=True)
class HashOnly:
    """API keys of a route for which only the hash is known."""

    route: str
    count: int
    """Number of these keys."""
    total: int
    """Total number of keys of the route."""


def hash_only(view: View) -> Iterator[HashOnly]:
    """Yield the routes of the view with such keys."""
    for name, route in view.routes.items():
        asks = route.auth is not None and route.auth.api_keys is not None
        found = of_route(name, view.api_keys.get(name, ())) if asks else None
        if found is not None:
            yield found


def of_route(route: str, keys: Sequence[ApiKey]) -> HashOnly | None:
    """Return the keys of a route for which only the hash is known; None if there are none."""
    count = sum(1 for item in keys if not item.key)
    return HashOnly(route, count, len(keys)) if count else None


def warning(title: str, keys: HashOnly) -> Diagnostic:
    """Return the warning for a proxy that cannot compare hashes. `title` is the name of its kind."""
    refused = f"it rejects {keys.count} of {keys.total} keys, because the file contains only their hashes"
    message = f"{title} cannot compare hashes: {refused}"
    path = ("routes", keys.route, "auth", "api_keys", "file")
    return Diagnostic(CODE, message, path=path, hint=_FIX, severity="warning")
