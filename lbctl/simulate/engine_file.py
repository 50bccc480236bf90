"""A YAML file with engine costs, for the strongest replica or by GPU type.

a: 0.03          # seconds per iteration; b: per sequence, c: per context token, p: per prompt token; sequences, cache
gpus:
  L40S: {a: 0.06, p: 0.0003}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position, did_you_mean
from lbctl.base.errors import reason_of
from lbctl.model.node import Node
from lbctl.model.yaml import read as read_yaml
from lbctl.simulate.engine import CostModel

WHOLE = ("sequences", "cache")
"""Costs that are integers."""
KEYS = tuple(item.name for item in fields(CostModel))
"""Names of the costs."""
_MAX_COUNTS = {"sequences": 65_536, "cache": 100_000_000}
_MAX_SECONDS = 1000.0
"""Maximum of the other costs, in seconds."""
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class EngineFile:
    """The costs of engines."""

    strongest: CostModel = field(default_factory=CostModel)
    """Costs of the strongest replica, which are also the defaults for the others."""
    gpus: Mapping[str, CostModel] = field(default_factory=dict)
    """Maps a GPU type to the costs of a replica with that GPU."""


def read(name: str, diagnostics: Diagnostics) -> EngineFile | None:
    """Return the costs from a file; None if it has errors, which are reported as LB032."""
    try:
        with Path(name).open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        diagnostics.add(Diagnostic("LB032", f"it cannot be read: {reason_of(error)}", Position(name)))
        return None
    if len(data) > _MAX_BYTES:
        diagnostics.add(Diagnostic("LB032", f"it is larger than {_MAX_BYTES >> 20} MiB", Position(name)))
        return None
    before = len(diagnostics)
    own = Diagnostics()
    root = read_yaml(data, name, own)
    diagnostics.extend(replace(each, code="LB032", hint="") if each.code == "LB004" else each for each in own)
    if root is None or not isinstance(root.value, dict):
        return None
    content = dict(root.value)
    by_gpu = content.pop("gpus", None)
    strongest = _costs(content, CostModel(), diagnostics)
    gpus = {}
    if by_gpu is not None and not isinstance(by_gpu.value, dict):
        _wrong(by_gpu, "gpus must be a map from GPU types to costs", diagnostics)
    elif by_gpu is not None and isinstance(by_gpu.value, dict):
        for gpu, node in by_gpu.value.items():
            if isinstance(node.value, dict):
                gpus[gpu] = _costs(node.value, strongest, diagnostics)
            else:
                _wrong(node, f"{gpu} must be a map of costs", diagnostics)
    return EngineFile(strongest, gpus) if len(diagnostics) == before else None


def _costs(content: Mapping[str, Node], default: CostModel, diagnostics: Diagnostics) -> CostModel:
    values: dict[str, Any] = {}
    for key, node in content.items():
        if key not in KEYS:
            hint = did_you_mean(key, KEYS) or f"use one of {', '.join(KEYS)}"
            diagnostics.add(Diagnostic("LB032", f"{key!r} is not an engine cost", node.key_position, hint=hint))
            continue
        number = cost(key, node.value)
        if number is None:
            diagnostics.add(Diagnostic("LB032", f"{key} must be {wanted(key)}", node.position))
        else:
            values[key] = int(number) if key in WHOLE else number
    return replace(default, **values)


def cost(key: str, value: object) -> float | None:
    """Return a cost's value; None if it is invalid."""
    most = _MAX_COUNTS.get(key, _MAX_SECONDS)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
        return None
    return None if key in WHOLE and value != int(value) else float(value)


def wanted(key: str) -> str:
    """Return a description of a cost's valid values."""
    if key in WHOLE:
        return f"a whole number from 1 to {_MAX_COUNTS[key]:,}"
    return f"a positive number of seconds, at most {_MAX_SECONDS:g}"


def _wrong(node: Node, message: str, diagnostics: Diagnostics) -> None:
    diagnostics.add(Diagnostic("LB032", message, node.position))
