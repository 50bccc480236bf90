"""Replicas that a file names, in Prometheus' file_sd form: `[{"targets": ["host:port"], "labels": {…}}]`.

The labels gpu, gpu_count, weight, region, zone, priority and name are the replica's keys, the others its labels. The
file is read as it stands when the fleet is compiled; a missing one leaves the pool empty, and `files` warns of it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lbctl.base.diagnostics import Diagnostic, Position, show
from lbctl.compile.context import Context
from lbctl.compile.files import file_of
from lbctl.model.errors import words_of
from lbctl.model.node import descend
from lbctl.model.pool import Pool, Replica

_KEYS = frozenset({"gpu", "gpu_count", "weight", "region", "zone", "priority", "name"})
_NUMBERS = {"gpu_count": int, "priority": int, "weight": float}
_LARGEST = 4 << 20
_HINT = '[{"targets": ["10.0.0.1:8000"], "labels": {"gpu": "L4"}}]'


def with_discovered(ctx: Context, name: str, pool: Pool) -> Pool:
    """The pool with the replicas of its file, where it is discovered by one; LB114 for a file that is no file_sd."""
    if pool.discovery is None or pool.discovery.file is None:
        return pool
    node = descend(ctx.source.root, ("pools", name, "discovery", "file", "path"))
    place = file_of(ctx.source, node) if node is not None else Path()
    if not place.is_file() or place.stat().st_size > _LARGEST:
        return pool
    return pool.model_copy(update={"replicas": _replicas(ctx, str(place), _groups(ctx, place))})


def _groups(ctx: Context, place: Path) -> list[Any]:
    try:
        groups = json.loads(place.read_bytes())
    except (ValueError, OSError, RecursionError):
        groups = None
    if isinstance(groups, list):
        return groups
    _refuse(ctx, str(place), "this is no list of targets in JSON")
    return []


def _replicas(ctx: Context, file: str, groups: list[Any]) -> list[Replica]:
    found: list[Replica] = []
    for index, group in enumerate(groups):
        targets, labels = (group.get("targets"), group.get("labels", {})) if isinstance(group, dict) else (None, None)
        if not isinstance(targets, list) or not isinstance(labels, dict):
            _refuse(ctx, file, f"group {index + 1} has no list of targets, or labels that are no map")
            continue
        found += (item for target in targets if (item := _replica(ctx, file, target, labels)) is not None)
    return found


def _replica(ctx: Context, file: str, target: object, labels: dict[str, Any]) -> Replica | None:
    keys = {key: _number(key, value) for key, value in labels.items() if key in _KEYS}
    others = {key: value for key, value in labels.items() if key not in _KEYS}
    try:
        return Replica.model_validate({"address": target, "labels": others, **keys})
    except ValidationError as error:
        for where, message, hint in words_of(error, Replica):
            _refuse(ctx, file, f"target {show(target)}: {where}: {message}", hint)
        return None


def _number(key: str, value: object) -> object:
    """Labels are strings in file_sd; the model wants numbers."""
    try:
        return _NUMBERS[key](value) if key in _NUMBERS and isinstance(value, str) else value
    except ValueError:
        return value


def _refuse(ctx: Context, file: str, message: str, hint: str = _HINT) -> None:
    ctx.diagnostics.add(Diagnostic("LB114", message, Position(file), (), hint))
