"""The kinds of proxies for which there is a driver. To add a kind, add a module in this package and one line here.

A driver is imported when the first proxy of its kind is driven; checking eligibility requires only this module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from lbctl.apply.permit import Permit
from lbctl.base.registry import Registry
from lbctl.ir.proxies import Proxy

if TYPE_CHECKING:
    from lbctl.serve.drivers.base import Driver, Ejected


@dataclass(frozen=True, slots=True)
class DriverKind:
    """The driver for one kind of proxy."""

    factory: str
    """`module:name` of a function that takes a proxy, its ejected replicas and a permit function, and returns a
    `Driver`."""
    needs: tuple[tuple[str, ...], ...]
    """Groups of settings under `proxies.<name>`; the driver needs all settings in at least one of the groups."""
    active_checks: bool = False
    """Whether `lbctl serve` performs the active health checks, because this kind of proxy does not support them."""

    def missing(self, proxy: Proxy) -> str:
        """Return the settings that must still be set before the proxy can be driven; empty if none are missing."""
        if any(all(getattr(proxy, name) for name in group) for group in self.needs):
            return ""
        *others, last = (f"no {' with '.join(group)}" for group in self.needs)
        return f"it has {', '.join(others)}, and {last}" if others else f"it has {last}"

    def driver(self, proxy: Proxy, ejected: Ejected, permit: Permit) -> Driver:
        """Return a new driver for the proxy. `ejected`: the replicas ejected by active checks.

        `permit` returns whether the proxy may be changed now; the driver calls it immediately before each change.
        """
        module, _, name = self.factory.partition(":")
        factory: Callable[[Proxy, Ejected, Permit], Driver] = getattr(import_module(module), name)
        return factory(proxy, ejected, permit)


_BY_FILE = ("config", "reload")
DRIVERS = Registry(
    {
        "nginx": DriverKind("lbctl.serve.drivers.nginx:NginxDriver", (_BY_FILE,), active_checks=True),
        "haproxy": DriverKind(
            "lbctl.serve.drivers.haproxy:HaproxyDriver",
            (("runtime_api",), ("agent_check",), _BY_FILE),
        ),
    }
)


def driver_kind(kind: str) -> DriverKind | None:
    """Return the driver for this kind of proxy; None if there is none."""
    return DRIVERS.get(kind) if kind in DRIVERS.names else None
