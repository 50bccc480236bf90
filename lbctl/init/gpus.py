"""Reads the GPU types on an exporter's page, by their names in lbctl's own table; other names stay unknown."""

from __future__ import annotations

import re

_TABLE = (
    (r"\bB200\b", "B200"),
    (r"\bGH200\b", "GH200"),
    (r"\bH200\b", "H200"),
    (r"\bH100 PCIe\b", "H100-PCIe"),
    (r"\bH100 80GB HBM3\b", "H100-SXM"),
    (r"\bA100[- ].*80GB\b", "A100-80GB"),
    (r"\bA100[- ].*40GB\b", "A100-40GB"),
    (r"\bL40S\b", "L40S"),
    (r"\bA10G\b", "A10G"),
    (r"\bA10\b", "A10"),
    (r"\bL4\b", "L4"),
    (r"\bT4\b", "T4"),
    (r"\bV100\b", "V100"),
    (r"\bRTX 4090$", "RTX-4090"),
    (r"\bMI300X\b", "MI300X"),
    (r"\bMI325X\b", "MI325X"),
)
"""Maps a pattern of the driver's name of a GPU to its name in `lbctl gpus`."""
_LINES = {
    "dcgm": ('UUID="', 'modelName="'),
    "nvidia_gpu_exporter": ('uuid="', 'name="'),
    "amd": ('serial_number="', 'card_model="'),
}
"""Maps a kind of exporter to the labels with the GPU's identity and with its name."""


def gpus_of(source: str, page: bytes) -> tuple[str, ...]:
    """Return the name of each GPU on the page, sorted by identity; none if the page has no names."""
    identity_label, name_label = _LINES[source]
    names: dict[str, str] = {}
    for line in page.decode("utf-8", "replace").splitlines():
        identity, name = _label(line, identity_label), _label(line, name_label)
        if identity and name:
            names[identity] = name
    return tuple(names[identity] for identity in sorted(names))


def gpu_type(names: tuple[str, ...]) -> str:
    """Return the table's name if all GPUs are of one known type, else ""."""
    types = {_type(name) for name in names}
    return types.pop() if len(types) == 1 else ""


def _type(name: str) -> str:
    return next((ours for pattern, ours in _TABLE if re.search(pattern, name)), "")


def _label(line: str, start: str) -> str:
    match = re.search(rf'[{{,]{start}([^"]{{1,200}})"', line)
    return match[1] if match else ""
