"""Placeholder."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.snapshot import View
from lbctl.targets.envoy_gateway.context import Context
from lbctl.targets.manifests.closing import Gap
from lbctl.targets.manifests.objects import Objects
from lbctl.targets.target import Prerequisite


def gaps(view: View, objects: KubernetesObjects) -> Iterator[Gap]:
    return iter(())


def add(objects: Objects, context: Context) -> None:
    return None


def diagnostics(context: Context) -> Iterator[Diagnostic]:
    return iter(())


def prerequisites(context: Context) -> Iterator[Prerequisite]:
    return iter(())


def needed(context: Context) -> Iterator[tuple[str, str]]:
    return iter(())
