"""Replicas that a file names, in Prometheus' file_sd form: `[{"targets": ["host:port"], "labels": {…}}]`.

The labels gpu, gpu_count, weight, region, zone, priority and name are the replica's keys, the others its labels. The
file is read as it stands when the fleet is compiled; a missing one leaves the pool empty, and `files` warns of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lbctl.base.diagnostics import Diagnostic, Position, show
from lbctl.compile.context import Context, Discovered
from lbctl.compile.convert import address
from lbctl.compile.files import file_of
from lbctl.compile.listing import Group, NoListError, groups
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
    stand_in = ctx.source.stand_ins.get(str(place))
    data = content(place) if stand_in is None else stand_in
    if data is None:
        return pool
    found = _replicas(ctx, _groups(ctx, str(place), data))
    ctx.discovered[name] = tuple(Discovered(where, str(address(item.address))) for item, where in found)
    return pool.model_copy(update={"replicas": [item for item, _ in found]})


def content(place: Path) -> bytes | None:
    """Of a file of targets; None where there is none, nothing (which is no list) where it cannot be read."""
    try:
        return place.read_bytes() if place.is_file() and place.stat().st_size <= _LARGEST else None
    except OSError:
        return b""


def _groups(ctx: Context, file: str, data: bytes) -> list[Group]:
    try:
        found = groups(file, data.decode("utf-8-sig", errors="replace"))
    except NoListError as error:
        _refuse(ctx, error.position, "this is no list of targets in JSON")
        return []
    if not found:
        message, hint = "this file names no target: the pool is empty", _HINT
        ctx.diagnostics.add(Diagnostic("LB114", message, Position(file, 1, 1), (), hint, "warning"))
    return found


def _replicas(ctx: Context, groups: list[Group]) -> list[tuple[Replica, Position]]:
    found: list[tuple[Replica, Position]] = []
    for index, group in enumerate(groups):
        value = group.value
        targets, labels = (value.get("targets"), value.get("labels", {})) if isinstance(value, dict) else (None, None)
        if not isinstance(targets, list) or not isinstance(labels, dict):
            message = f"group {index + 1} has no list of targets, or labels that are no map"
            _refuse(ctx, group.position, message)
            continue
        placed = ((target, group.place(target)) for target in targets)
        made = ((_replica(ctx, where, target, labels), where) for target, where in placed)
        found += ((item, where) for item, where in made if item is not None)
    return found


def _replica(ctx: Context, where: Position, target: object, labels: dict[str, Any]) -> Replica | None:
    keys = {key: _number(key, value) for key, value in labels.items() if key in _KEYS}
    others = {key: value for key, value in labels.items() if key not in _KEYS}
    try:
        return Replica.model_validate({"address": target, "labels": others, **keys})
    except ValidationError as error:
        for key, message, hint in words_of(error, Replica):
            _refuse(ctx, where, f"target {show(target)}: {key}: {message}", hint)
        return None


def _number(key: str, value: object) -> object:
    """Labels are strings in file_sd; the model wants numbers."""
    try:
        return _NUMBERS[key](value) if key in _NUMBERS and isinstance(value, str) else value
    except ValueError:
        return value


def _refuse(ctx: Context, where: Position, message: str, hint: str = _HINT) -> None:
    ctx.diagnostics.add(Diagnostic("LB114", message, where, (), hint))
