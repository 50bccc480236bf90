"""The GPUs that an exporter's page names, by the names of lbctl's own table. A name that is not in it stays unknown."""

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
"""What the driver calls a GPU → its name in `lbctl gpus`."""
_LINES = {
    "dcgm": ('UUID="', 'modelName="'),
    "nvidia_gpu_exporter": ('uuid="', 'name="'),
    "amd": ('serial_number="', 'card_model="'),
}
"""Kind → the labels that hold which GPU it is, and what it is called."""


def gpus_of(source: str, page: bytes) -> tuple[str, ...]:
    """What each GPU of the page is called, sorted by its identity. A page without names gives none."""
    which, what = _LINES[source]
    found: dict[str, str] = {}
    for line in page.decode("utf-8", "replace").splitlines():
        identity, name = _label(line, which), _label(line, what)
        if identity and name:
            found[identity] = name
    return tuple(found[item] for item in sorted(found))


def known(names: tuple[str, ...]) -> str:
    """The table's name where all of them are one GPU that it has, else ""."""
    types = {_type(item) for item in names}
    return types.pop() if len(types) == 1 else ""


def _type(name: str) -> str:
    return next((ours for pattern, ours in _TABLE if re.search(pattern, name)), "")


def _label(line: str, start: str) -> str:
    match = re.search(rf'[{{,]{start}([^"]{{1,200}})"', line)
    return match[1] if match else ""
