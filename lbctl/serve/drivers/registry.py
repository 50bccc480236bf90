"""The kinds of proxies that have a driver. To add a kind, add a module in this package and one line here.

A driver is imported when the first proxy of its kind is driven; the eligibility check needs only this module.
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
    """`module:name` of a function that takes a proxy, its ejected replicas and a permit, and returns a `Driver`."""
    needs: tuple[tuple[str, ...], ...]
    """Groups of settings of `proxies.<name>`; the driver needs all settings of at least one group."""
    active_checks: bool = False
    """Whether `lbctl serve` runs the active health checks, because the proxy has none."""

    def missing(self, proxy: Proxy) -> str:
        """Return the settings that the proxy still needs to be driven; empty if it has them all."""
        if any(all(getattr(proxy, name) for name in group) for group in self.needs):
            return ""
        *others, last = (f"no {' with '.join(group)}" for group in self.needs)
        return f"it has {', '.join(others)}, and {last}" if others else f"it has {last}"

    def driver(self, proxy: Proxy, ejected: Ejected, permit: Permit) -> Driver:
        """Return a new driver for the proxy. `ejected`: the replicas that active checks have ejected.

        `permit` returns whether the proxy may be changed now; the driver calls it right before each change.
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
