"""Reports prefixes that do not end at a segment boundary, because a fleet sends longer paths elsewhere.

`/v1/emb` also matches `/v1/embeddings` in nginx, HAProxy and Envoy. A prefix in a fleet consists of whole segments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lbctl.base.diagnostics import Path
from lbctl.importer.draft import Draft, addresses
from lbctl.importer.matching import PATHS, Match, covers, rank

_ENDINGS = "xyzq0123456789"
"""Characters that extend a prefix to a longer path, in order of preference."""
_SLOW = re.compile(r"\)[*+{]|[*+}][^*+]*[*+}][^*+]*[*+}][^*+]*[*+}]")
"""Expressions that may be slow for a path, with repeated groups or more than three repeats."""
_MAX_PATH = 256
_HINT = (
    "add a route with `path_regex` for these requests; if the other route is allowed to handle them, add a `/` to "
    "the end of the prefix in a copy of the configuration and import the copy"
)


def settle(draft: Draft) -> None:
    """Report the prefixes whose longer paths go to a different pool in the fleet, each with an example."""
    for name in draft.fleet["routes"]:
        path: Path = ("routes", name)
        route = _opened(draft, path)
        prefix = route.get("match", {}).get("path_prefix", "/")
        if prefix.endswith("/") or len(prefix) > _MAX_PATH or path in draft.whole_segments or path not in draft.origins:
            continue
        longer = _longer(draft, prefix)
        other = _taking(draft, route, longer) if _pools(route) and longer else None
        if other is None or not _pools(other[1]) or _replicas(draft, other[1]) == _replicas(draft, route):
            continue
        draft.longer_paths[name] = longer
        taking = f"use route {other[0]} ({_shown(other[1])}), not {_shown(route)}"
        message = f"requests for paths that continue {prefix} without a `/`, such as {longer}, {taking}"
        draft.ledger.misroute(draft.origins[path], message, _HINT)


def _opened(draft: Draft, path: Path) -> dict[str, Any]:
    """Return a route. If it is closed, include the keys that it will have once it is opened."""
    route: dict[str, Any] = draft.get(path)
    closed = draft.closed.get(path)
    return route if closed is None else route | closed.removed


def _longer(draft: Draft, prefix: str) -> str:
    """Return a path that begins with the prefix and has no separate route, or an empty string if there is none."""
    matches = [route.get("match", {}) for route in draft.fleet["routes"].values()]
    written = [match[key] for match in matches for key in ("path", "path_prefix") if key in match]
    paths = (f"{prefix}{ending}" for ending in _ENDINGS)
    return next((path for path in paths if not any(each.startswith(path) for each in written)), "")


def _taking(draft: Draft, route: Mapping[str, Any], path: str) -> tuple[str, Mapping[str, Any]] | None:
    """Return the route that handles another route's requests if they have a different path.

    The result is None if no such route exists, or if its path is an expression.
    """
    rest = {key: value for key, value in route["match"].items() if key not in PATHS}
    every = list(draft.fleet["listeners"])
    taking = [
        (rank(other["match"]), name)
        for name, other in draft.fleet["routes"].items()
        if set(other.get("listeners", every)) & set(route.get("listeners", every))
        and _takes(other["match"], rest, path)
    ]
    if not taking:
        return None
    other = draft.fleet["routes"][max(taking)[1]]
    # The proxy also prefers the expression, or the order of rules is decisive, which is checked elsewhere.
    return None if "path_regex" in other["match"] else (max(taking)[1], other)


def _takes(match: Match, rest: Match, path: str) -> bool:
    """Return whether a fleet's route handles all requests that have this path and satisfy the rest of a match."""
    wide = {key: value for key, value in match.items() if key not in PATHS}
    if not covers(wide, rest):
        return False
    if "path_regex" in match:
        return _SLOW.search(match["path_regex"]) is not None or re.fullmatch(match["path_regex"], path) is not None
    prefix = match.get("path_prefix", "/").rstrip("/")
    return match["path"] == path if "path" in match else path == prefix or path.startswith(f"{prefix}/")


def _pools(route: Mapping[str, Any]) -> tuple[str, ...]:
    if "respond" in route and "pool" not in route and "split" not in route:
        return ()
    return tuple(sorted(map(str, route.get("split", {})))) or tuple(filter(None, (route.get("pool"),)))


def _replicas(draft: Draft, route: Mapping[str, Any]) -> list[list[str]]:
    """Return the replica addresses in each of a route's pools. Two pools can have the same addresses."""
    pools = [draft.fleet["pools"].get(name, {}) for name in _pools(route)]
    return [sorted(addresses(pool)) for pool in pools]


def _shown(route: Mapping[str, Any]) -> str:
    return f"pool {' and '.join(_pools(route))}"
