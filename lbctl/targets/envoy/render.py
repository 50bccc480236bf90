"""A view as Envoy's file: the bootstrap message, its text, and whose each line is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from google.protobuf.json_format import MessageToDict

from lbctl.base.diagnostics import Path
from lbctl.ir.snapshot import View
from lbctl.targets.envoy import static
from lbctl.targets.envoy.remarks import remarks
from lbctl.targets.envoy.text import Writer
from lbctl.targets.envoy.wire import NAMESPACE
from lbctl.targets.target import Bundle, File

Tree = dict[str, Any]


def render(view: View, form: str) -> Bundle:
    tree: Tree = MessageToDict(static.bootstrap(view), preserving_proto_field_name=True)
    return Bundle((_file(tree, form),), remarks(view))


def _file(tree: Tree, form: str) -> File:
    if form == "json":
        return File("envoy.json", json.dumps(tree, indent=2, ensure_ascii=False) + "\n")
    text, lines = Writer(dict(sources(tree))).write(tree)
    return File("envoy.yaml", text, lines)


def sources(tree: Tree) -> Iterator[tuple[int, Path]]:
    """(`id` of a map in the tree, path of the YAML value that it stands for)."""
    static_resources: Tree = tree.get("static_resources", {})
    for listener in static_resources.get("listeners", ()):
        yield id(listener), ("listeners", listener["name"])
        yield from _routes(listener)
    for cluster in static_resources.get("clusters", ()):
        yield from _cluster(cluster)


def pool_of(cluster: Tree) -> Path:
    """Of the pool that a cluster stands for; empty for a cluster that is lbctl's own."""
    marks = cluster.get("metadata", {}).get("filter_metadata", {}).get(NAMESPACE)
    return ("pools", marks["pool"]) if marks else ()


def _cluster(cluster: Tree) -> Iterator[tuple[int, Path]]:
    pool = pool_of(cluster)
    if not pool:
        return
    yield id(cluster), pool
    for group in cluster.get("load_assignment", {}).get("endpoints", ()):
        for item in group.get("lb_endpoints", ()):
            name = item["endpoint"].get("hostname")
            if name:
                yield id(item), (*pool, "replicas", name)


def _routes(listener: Tree) -> Iterator[tuple[int, Path]]:
    for chain in listener.get("filter_chains", ()):
        for item in chain.get("filters", ()):
            for host in item["typed_config"].get("route_config", {}).get("virtual_hosts", ()):
                for route in host.get("routes", ()):
                    if route.get("name"):
                        yield id(route), ("routes", route["name"])
