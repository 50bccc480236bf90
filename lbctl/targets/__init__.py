"""The kinds of proxies that lbctl renders for.

A new kind is a package in this directory and one line in `PACKAGES`, or in `MANIFESTS` if it is rendered as Kubernetes
objects. lbctl can run and drive only the kinds in `PACKAGES`.
"""

from __future__ import annotations

from importlib import import_module

from lbctl.base.registry import Registry
from lbctl.ir.proxies import Proxy
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
MANIFESTS = Registry(
    {
        "gateway-api": "lbctl.targets.gateway_api",
        "envoy-gateway": "lbctl.targets.envoy_gateway",
        "istio": "lbctl.targets.istio",
    }
)
TARGETS = (*KINDS, *MANIFESTS.names)
"""All kinds that lbctl renders for."""


def is_kubernetes(kind: str) -> bool:
    """Return whether the kind is rendered as Kubernetes objects, which lbctl cannot start."""
    return kind in MANIFESTS.names


def target(kind: str) -> Target:
    """Return the target for a kind of proxy. The target's package is imported on first use.

    Raises UnknownName if the kind does not exist.
    """
    implementation: Target = import_module(_package(kind)).TARGET
    return implementation


def _package(kind: str) -> str:
    return (MANIFESTS if is_kubernetes(kind) else PACKAGES).get(kind)


def reader(kind: str) -> Reader:
    """Return the function that predicts how this kind of proxy reads a request."""
    read: Reader = import_module(f"{_package(kind)}.reading").read
    return read


def uncounted(proxy: Proxy) -> str:
    """Return the settings missing from a proxy that `lbctl serve` needs to read its request counts; empty if complete.

    For a kind that does not count requests, the result is the kind itself.
    """
    settings = target(proxy.kind).counted_with
    if settings is None:
        return "kind"
    return " and ".join(name for name in settings if not getattr(proxy, name))


def untimed(proxy: Proxy, logs_written: bool) -> str:
    """Return the settings missing from a proxy that `lbctl serve` needs to measure its requests; empty if complete.

    `logs_written`: whether the rendered files include `control.logs`, so that every proxy sends its traffic log there.
    """
    if missing := uncounted(proxy):
        return missing
    if target(proxy.kind).served_by_xds or logs_written:
        return ""
    return " and ".join(name for name in ("config", "reload") if not getattr(proxy, name))


def xds_kinds() -> dict[str, tuple[int, ...]]:
    """Map each kind that the xDS server serves to its oldest supported version."""
    return {kind: target(kind).versions[0] for kind in KINDS if target(kind).served_by_xds}
