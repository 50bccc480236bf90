"""Determines the GPU types from an exporter's metrics. Only names in lbctl's own GPU table are recognised."""

from __future__ import annotations

import re

from lbctl.compile.gpus import gpu_named

_LINES = {
    "agent": ('UUID="', 'modelName="'),
    "dcgm": ('UUID="', 'modelName="'),
    "nvidia_gpu_exporter": ('uuid="', 'name="'),
    "amd": ('serial_number="', 'card_model="'),
}
"""Maps each kind of exporter to the labels that contain the GPU's identity and name."""


def gpus_of(source: str, page: bytes) -> tuple[str, ...]:
    """Return the name of each GPU in the metrics, sorted by identity. Empty if the metrics contain no names."""
    identity_label, name_label = _LINES[source]
    names: dict[str, str] = {}
    for line in page.decode("utf-8", "replace").splitlines():
        identity, name = _label(line, identity_label), _label(line, name_label)
        if identity and name:
            names[identity] = name
    return tuple(names[identity] for identity in sorted(names))


def gpu_type(names: tuple[str, ...]) -> str:
    """Return the GPU's name in the table if all GPUs are of the same known type, or "" otherwise."""
    types = {gpu_named(name) for name in names}
    return types.pop() if len(types) == 1 else ""


def _label(line: str, start: str) -> str:
    match = re.search(rf'[{{,]{start}([^"]{{1,200}})"', line)
    return match[1] if match else ""
