"""Pools into routes: which request goes where, by the way in which each kind of server names its model.

One pool gets the paths that its kind answers. Several pools of OpenAI's API are told apart by the model in the body,
several of the v2 protocol by the model in the path; what can be told apart by neither gets a path of its own, which is
taken off again before the replica sees it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lbctl.init.models import MOST
from lbctl.init.pools import Pool, unique

_PREFIX = re.compile(r"/(?:[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}/){0,9}(?:[A-Za-z0-9_-][A-Za-z0-9._-]{0,99})?")
_LONGEST_LIST = 1900
"""Characters of the answer to GET /v1/models; a fleet's own answers have 2,000 at most."""


@dataclass(frozen=True, slots=True)
class Route:
    """`models`: in the body. `pools`: one, or several that share its requests by their replicas. `rewrite`: what stands
    in place of the prefix. `answer`: the proxy's own; then there are no pools, and `prefix` is the whole path."""

    name: str
    prefix: str
    models: tuple[str, ...] = ()
    pools: tuple[Pool, ...] = ()
    rewrite: str = ""
    answer: str = ""


def routes_of(pools: Sequence[Pool]) -> list[Route]:
    """At least one for each pool; every name once."""
    taken: set[str] = set()
    if len(pools) == 1:
        return [Route(unique(pools[0].name, taken), item, pools=(pools[0],)) for item in _prefixes(pools[0])]
    openai = [item for item in pools if item.kind.api == "openai"]
    v2 = [item for item in pools if item.kind.api == "v2"]
    found = [*_by_model(openai, taken), *_by_path(v2, taken)]
    reached = {item.name for route in found for item in route.pools}
    return [*found, *(_aside(item, taken) for item in pools if item.name not in reached)]


def _prefixes(pool: Pool) -> tuple[str, ...]:
    apps = pool.first.apps
    good = tuple(prefix for prefix, _ in apps if _PREFIX.fullmatch(prefix))
    return good if good and len(good) == len(apps) <= MOST else pool.kind.prefixes


def _by_model(pools: Sequence[Pool], taken: set[str]) -> Iterator[Route]:
    """One pool of OpenAI's API gets all of it; of several each its models, and who asks for the list gets all."""
    if len(pools) == 1:
        yield Route(unique(pools[0].name, taken), "/v1/", pools=(pools[0],))
        return
    serving = _serving({item.name: item.first.models.names for item in pools})
    groups: dict[tuple[str, ...], list[str]] = {}
    for model, names in serving.items():
        groups.setdefault(names, []).append(model)
    for names, models in groups.items():
        members = tuple(item for item in pools if item.name in names)
        yield Route(unique(members[0].name, taken), "/v1/", tuple(models), members)
    listing = _listing(list(serving))
    if serving and len(listing) <= _LONGEST_LIST:
        yield Route(unique("models", taken), "/v1/models", answer=listing)


def _by_path(pools: Sequence[Pool], taken: set[str]) -> Iterator[Route]:
    if len(pools) == 1:
        yield Route(unique(pools[0].name, taken), "/v2/models/", pools=(pools[0],))
        return
    for model, names in _serving({item.name: item.segments for item in pools}).items():
        members = tuple(item for item in pools if item.name in names)
        yield Route(unique(members[0].name, taken), f"/v2/models/{model}/", pools=members)


def _serving(models: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Model → the pools that have it."""
    every = sorted({model for names in models.values() for model in names})
    return {model: tuple(pool for pool, names in models.items() if model in names) for model in every}


def _aside(pool: Pool, taken: set[str]) -> Route:
    return Route(unique(pool.name, taken), f"/{pool.name}/", pools=(pool,), rewrite="/")


def _listing(models: Sequence[str]) -> str:
    """JSON without a single quote: names of models have none."""
    entries = [{"id": item, "object": "model", "created": 0, "owned_by": "lbctl"} for item in models]
    return json.dumps({"object": "list", "data": entries}, separators=(",", ":"))
