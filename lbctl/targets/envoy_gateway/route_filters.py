"""Placeholder."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.listeners import Listener
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.snapshot import View
from lbctl.targets.envoy_gateway.context import Context
from lbctl.targets.manifests.closing import Gap
from lbctl.targets.manifests.http_route import Way
from lbctl.targets.manifests.objects import Objects, Tree
from lbctl.targets.target import Prerequisite


def gaps(view: View) -> Iterator[Gap]:
    return iter(())


def add(objects: Objects, context: Context) -> None:
    return None


def diagnostics(context: Context) -> Iterator[Diagnostic]:
    return iter(())


def prerequisites(context: Context) -> Iterator[Prerequisite]:
    return iter(())


def needed(context: Context) -> Iterator[tuple[str, str]]:
    return iter(())


def response(view: View, listener: Listener, way: Way) -> Tree:
    ref = {"group": "gateway.envoyproxy.io", "kind": "HTTPRouteFilter", "name": f"{view.proxy.name}-closed"}
    return {"filters": [{"type": "ExtensionRef", "extensionRef": ref}]}


def filters(view: View, way: Way) -> list[Tree]:
    return []


def adapted(view: View) -> View:
    return view
