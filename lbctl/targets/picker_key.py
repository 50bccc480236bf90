"""Whether the proxies of a fleet can send a key with their questions to the picker, where the fleet names no key file.

`lbctl serve` then makes a key. A proxy whose files others render, and the pickers of other members, do not know it.
"""

from __future__ import annotations

from lbctl.ir.topology import Topology
from lbctl.targets import target


def missing(topology: Topology) -> str:
    """Return why questions to the picker have no key; empty if they have one."""
    if topology.control.picker_key_file is not None:
        return ""
    if topology.control.store is not None:
        return "several members, each with a picker, need one key"
    others = (item for item in topology.proxies if not item.is_written and not target(item.kind).served_by_xds)
    return next((f"serve does not write the configuration of the proxy {item.name}" for item in others), "")
