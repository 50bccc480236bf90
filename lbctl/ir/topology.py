"""The fleet with every default filled in and every reference resolved.

Durations are in whole milliseconds (`None` means unlimited), sizes are in bytes, and percentages are floats from 0 to
100. File paths are kept as the user wrote them until `ir.file_paths` changes them. Positions in the YAML are kept
separate from the Topology (`base.diagnostics.Position`, by path), so that a comment does not change a version.

Everything is sorted at construction. Pools, listeners and proxies are sorted by name, replicas by name within their
pool, and a listener's rules by precedence, where the first match wins.
"""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Control, Proxy
from lbctl.ir.routes import Route


@dataclass(frozen=True, slots=True)
class Topology:
    """The whole fleet. Names are unique within each tuple, and every reference between them can be resolved."""

    listeners: tuple[Listener, ...]
    routes: tuple[Route, ...]
    pools: tuple[Pool, ...]
    proxies: tuple[Proxy, ...] = ()
    control: Control = Control()
