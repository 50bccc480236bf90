"""The shared builder of fleets: a complete, valid fleet, in which a test sets only the relevant keys.

`fleet_of()` is a fleet as a dict, `fleet_text()` the same as YAML, `write_fleet()` the same as a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lbctl.base.diagnostics import Diagnostics
from lbctl.targets.load import Loaded, load

Fleet = dict[str, Any]


def replica(name: str = "a", address: str = "127.0.0.1:9", **keys: Any) -> dict[str, Any]:
    """Return an item of a pool's `replicas`, with additional keys (weight, priority, drain …)."""
    return {"name": name, "address": address, **keys}


def pool(*replicas: Mapping[str, Any], **keys: Any) -> dict[str, Any]:
    """Return a pool of these replicas, by default one, with additional keys (balance, health, connections …)."""
    return {"replicas": [dict(item) for item in replicas] or [replica()], **keys}


def fleet_of(
    pool: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
    *,
    route: Mapping[str, Any] | None = None,
    listener: Mapping[str, Any] | None = None,
    **sections: Mapping[str, Any],
) -> Fleet:
    """Return a fleet with one listener `gateway`, one route `everything` for the path prefix / and one pool `pool`.

    `pool` is that pool, or its replicas; by default one replica. `route` and `listener` add keys to the route and the
    listener. `sections` (listeners, routes, pools …) are merged in by name.
    """
    whole = dict(pool) if isinstance(pool, Mapping) else {"replicas": [dict(item) for item in pool] or [replica()]}
    fleet: Fleet = {
        "version": 1,
        "listeners": {"gateway": {"bind": "127.0.0.1:8080", **(listener or {})}},
        "routes": {"everything": {"match": {"path_prefix": "/"}, "pool": "pool", **(route or {})}},
        "pools": {"pool": whole},
    }
    for name, section in sections.items():
        fleet[name] = {**fleet.get(name, {}), **section}
    return fleet


def yaml_of(fleet: Mapping[str, Any]) -> str:
    """Return the YAML of a fleet. A part that occurs twice is written twice, not as an alias."""
    text: str = yaml.dump(json.loads(json.dumps(fleet)), Dumper=yaml.CSafeDumper, sort_keys=False)
    return text


def fleet_text(*pool: Mapping[str, Any], **keys: Any) -> str:
    """Return the YAML of `fleet_of` with the same arguments."""
    return yaml_of(fleet_of(*pool, **keys))


def write_fleet(directory: Path, fleet: Mapping[str, Any], name: str = "fleet.yaml") -> Path:
    """Write the fleet into the directory, and return the path of its file."""
    path = directory / name
    path.write_text(yaml_of(fleet))
    return path


def load_fleet(directory: Path, fleet: Mapping[str, Any], name: str = "fleet.yaml") -> Loaded:
    """Write the fleet into the directory, load it as `lbctl render` does, and return it. It must be valid."""
    diagnostics = Diagnostics()
    loaded = load([str(write_fleet(directory, fleet, name))], diagnostics)
    assert loaded is not None, [str(item) for item in diagnostics]
    return loaded
