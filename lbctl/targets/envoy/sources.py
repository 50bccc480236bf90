"""The owner of each part of a rendered file: listeners, routes, pools and replicas, located in the finished tree.

The tree is Envoy's configuration as plain dictionaries and lists. Parts that lbctl adds itself (a trace collector's
cluster, a host's last route) have no owner.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lbctl.base.diagnostics import Path

Tree = dict[str, Any]
NAMESPACE = "lbctl"
"""Namespace of lbctl's metadata on clusters, routes and requests."""

SECRET_LISTENERS = "envoy-listeners"
"""Name (without suffix) of the file that contains the listeners with API keys."""
SECRET_CLUSTERS = "envoy-clusters"
"""Name (without suffix) of the file that contains the clusters whose health checks have a key."""


def sources(tree: Tree) -> Iterator[tuple[int, Path]]:
    """Yield the `id` of each dictionary in the tree that has an owner, with the YAML path of its value."""
    for listener in listeners(tree):
        yield id(listener), ("listeners", listener["name"])
        for host in virtual_hosts(listener):
            for route in host.get("routes", ()):
                if route.get("name"):
                    yield id(route), ("routes", route["name"])
    for cluster in clusters(tree):
        yield from _cluster(cluster)


def listeners(tree: Tree) -> list[Tree]:
    """Return the listeners of a bootstrap, or of the listener file next to it."""
    items: list[Tree] = tree.get("static_resources", {}).get("listeners", [])
    return items + _resources(tree, ".Listener")


def clusters(tree: Tree) -> list[Tree]:
    """Return the clusters of a bootstrap, or of the cluster file next to it."""
    items: list[Tree] = tree.get("static_resources", {}).get("clusters", [])
    return items + _resources(tree, ".Cluster")


def _resources(tree: Tree, kind: str) -> list[Tree]:
    return [item for item in tree.get("resources", []) if item.get("@type", "").endswith(kind)]


def managers(tree: Tree) -> Iterator[Tree]:
    """Yield every connection manager of a file."""
    for listener in listeners(tree):
        yield from _managers(listener)


def virtual_hosts(listener: Tree) -> Iterator[Tree]:
    """Yield the virtual hosts of all filter chains, chain by chain."""
    for manager in _managers(listener):
        yield from manager.get("route_config", {}).get("virtual_hosts", ())


def _managers(listener: Tree) -> Iterator[Tree]:
    return (item["typed_config"] for chain in listener.get("filter_chains", ()) for item in chain.get("filters", ()))


def pool_of(cluster: Tree) -> Path:
    """Return the path of a cluster's pool; empty for a cluster that lbctl adds itself."""
    values = cluster.get("metadata", {}).get("filter_metadata", {}).get(NAMESPACE)
    return ("pools", values["pool"]) if values else ()


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
