"""The fleet with every default filled in and every reference resolved.

Units: durations are whole milliseconds (`None` = unlimited), sizes bytes, percents 0–100 as floats. Paths of files
are kept as the user wrote them, until somebody roots them (`ir.rewrite`). Nothing here knows where a value stood
in the YAML: positions travel beside it (`base.diagnostics.Position`, by path), so that a comment changes no version.

Everything is sorted when it is built: pools, listeners, proxies by name; replicas by name within their pool; the rules
of a listener by precedence, first match wins.
"""

from __future__ import annotations

from dataclasses import dataclass

from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Control, Proxy
from lbctl.ir.routes import Route


@dataclass(frozen=True, slots=True)
class Topology:
    """The whole fleet. Names are unique in each tuple; every reference between them holds."""

    listeners: tuple[Listener, ...]
    routes: tuple[Route, ...]
    pools: tuple[Pool, ...]
    proxies: tuple[Proxy, ...] = ()
    control: Control = Control()
