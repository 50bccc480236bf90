"""The kinds of proxies that lbctl renders for. A new one is a package beside these and one line here."""

from __future__ import annotations

from importlib import import_module

from lbctl.base.registry import Registry
from lbctl.targets.reading import Reader
from lbctl.targets.target import Target

PACKAGES = Registry(
    {
        "nginx": "lbctl.targets.nginx",
        "haproxy": "lbctl.targets.haproxy",
        "envoy": "lbctl.targets.envoy",
    }
)
KINDS = PACKAGES.names


def target(kind: str) -> Target:
    """The target of that name, imported when it is first asked for. UnknownName for any other."""
    found: Target = import_module(PACKAGES.get(kind)).TARGET
    return found


def reader(kind: str) -> Reader:
    """How that kind of proxy reads a request."""
    found: Reader = import_module(f"{PACKAGES.get(kind)}.reading").read
    return found


def oldest_versions() -> dict[str, tuple[int, ...]]:
    """Kind → the oldest version that lbctl renders for."""
    return {kind: target(kind).versions[0] for kind in KINDS}


def xds_kinds() -> dict[str, tuple[int, ...]]:
    """Of the kinds that the xDS server serves: kind → the oldest version that lbctl renders for."""
    return {kind: target(kind).versions[0] for kind in KINDS if target(kind).served_by_xds}
