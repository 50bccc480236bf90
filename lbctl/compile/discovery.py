"""Replicas from a file in Prometheus' file_sd form: `[{"targets": ["host:port"], "labels": {…}}]`.

The labels gpu, gpu_count, weight, region, zone, priority and name are the replica's keys, the others its labels. The
file is read when the fleet is compiled; a missing file leaves the pool empty, and `files` warns about it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lbctl.base.diagnostics import Diagnostic, Position, show
from lbctl.base.errors import reason_of
from lbctl.base.paths import is_file
from lbctl.compile.allowed_files import refusal
from lbctl.compile.context import Context, FileTarget
from lbctl.compile.convert import address
from lbctl.compile.files import file_of, read_regular
from lbctl.compile.listing import NotAListError, TargetGroup, groups
from lbctl.model.errors import messages_of
from lbctl.model.node import descend
from lbctl.model.pool import Pool, Replica

_KEYS = frozenset({"gpu", "gpu_count", "weight", "region", "zone", "priority", "name"})
_NUMBERS = {"gpu_count": int, "priority": int, "weight": float}
MAX_BYTES = 4 << 20
_HINT = '[{"targets": ["10.0.0.1:8000"], "labels": {"gpu": "L4"}}]'


def with_file_targets(ctx: Context, name: str, pool: Pool) -> Pool:
    """Return the pool with the replicas that its file of targets lists. Reports LB114 for an invalid file."""
    if pool.discovery is None or pool.discovery.file is None:
        return pool
    node = descend(ctx.source.root, ("pools", name, "discovery", "file", "path"))
    if node is None or refusal(ctx.source, ("pools", name, "discovery", "file", "path"), node) is not None:
        return pool
    file = file_of(ctx.source, node)
    content = ctx.source.target_contents.get(str(file))
    data = read_targets(file) if content is None else content
    if data is None:
        return pool
    replicas = _replicas(ctx, _groups(ctx, str(file), data))
    ctx.discovered[name] = tuple(FileTarget(position, str(address(replica.address))) for replica, position in replicas)
    return pool.model_copy(update={"replicas": [replica for replica, _ in replicas]})


def read_targets(file: Path) -> bytes | None:
    """Read a file of targets. Return None if it does not exist, and nothing if it cannot be read or is too large."""
    try:
        return read_regular(file, MAX_BYTES) if is_file(file) else None
    except OSError:
        return b""


def _groups(ctx: Context, file: str, data: bytes) -> list[TargetGroup]:
    try:
        target_groups = groups(file, data.decode("utf-8-sig", errors="replace"))
    except NotAListError as error:
        reason = "" if data else _unreadable(Path(file))
        _refuse(ctx, error.position, reason or f"this file is {error}, not a list of targets")
        return []
    if not target_groups:
        message, hint = "this file names no target: the pool is empty", _HINT
        ctx.diagnostics.add(Diagnostic("LB114", message, Position(file, 1, 1), (), hint, "warning"))
    return target_groups


def _unreadable(file: Path) -> str:
    """Return why a file of targets cannot be read. Empty if it can."""
    try:
        read_regular(file, MAX_BYTES)
    except OSError as error:
        return f"this file cannot be read: {reason_of(error)}"
    return ""


def _replicas(ctx: Context, groups: list[TargetGroup]) -> list[tuple[Replica, Position]]:
    replicas: list[tuple[Replica, Position]] = []
    for index, group in enumerate(groups):
        value = group.value
        targets, labels = (value.get("targets"), value.get("labels", {})) if isinstance(value, dict) else (None, None)
        if not isinstance(targets, list) or not isinstance(labels, dict):
            message = f"group {index + 1} has no list of targets, or labels that are no map"
            _refuse(ctx, group.position, message)
            continue
        positions = ((target, group.position_of(target)) for target in targets)
        parsed = ((_replica(ctx, position, target, labels), position) for target, position in positions)
        replicas += ((replica, position) for replica, position in parsed if replica is not None)
    return replicas


def _replica(ctx: Context, position: Position, target: object, labels: dict[str, Any]) -> Replica | None:
    keys = {key: _number(key, value) for key, value in labels.items() if key in _KEYS}
    others = {key: value for key, value in labels.items() if key not in _KEYS}
    try:
        return Replica.model_validate({"address": target, "labels": others, **keys})
    except ValidationError as error:
        for key, message, hint in messages_of(error, Replica):
            _refuse(ctx, position, f"target {show(target)}: {key}: {message}", hint)
        return None


def _number(key: str, value: object) -> object:
    """Parse a numeric label: labels are strings in file_sd, and the model needs numbers."""
    try:
        return _NUMBERS[key](value) if key in _NUMBERS and isinstance(value, str) else value
    except ValueError:
        return value


def _refuse(ctx: Context, position: Position, message: str, hint: str = _HINT) -> None:
    ctx.diagnostics.add(Diagnostic("LB114", message, position, (), hint))
