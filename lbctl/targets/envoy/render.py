"""Renders a view as Envoy's files: the messages, their text, and the owner of each line.

A route without a host condition is part of every virtual host. It is converted to one shared tree whose text is
generated only once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from envoy.config.route.v3 import route_components_pb2, route_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from lbctl.ir.snapshot import View
from lbctl.targets.envoy.diagnostics import diagnostics
from lbctl.targets.envoy.sources import SECRET_CLUSTERS, SECRET_LISTENERS, Tree, managers, sources
from lbctl.targets.envoy.static import static
from lbctl.targets.target import Bundle, File
from lbctl.targets.yaml_text import Writer

_STRUCTS = frozenset(("filter_context", "filter_metadata", "json_format", "static_layer"))
_MAPS = _STRUCTS | {"typed_per_filter_config", "typed_extension_protocol_options", "providers", "requirement_map"}


def render(view: View, form: str) -> Bundle:
    """Return Envoy's files for a view, in YAML or JSON, and the settings that Envoy does not support."""
    listeners_file, clusters_file = f"{SECRET_LISTENERS}.{form}", f"{SECRET_CLUSTERS}.{form}"
    configuration = static(view, listeners_file, clusters_file, form)
    tables = _tables(configuration.tables)
    files = [_file(f"envoy.{form}", configuration.bootstrap, tables, form)]
    if configuration.secret_listeners.resources:
        files.append(_file(listeners_file, configuration.secret_listeners, tables, form))
    if configuration.secret_clusters.resources:
        files.append(_file(clusters_file, configuration.secret_clusters, tables, form))
    files += (_file(name, message, {}, form) for name, message in configuration.header_secrets.items())
    return Bundle(tuple(files), diagnostics(view, of_files=True))


def _file(name: str, message: Message, tables: Mapping[str, Tree], form: str) -> File:
    tree, secret = _tree(message), isinstance(message, discovery_pb2.DiscoveryResponse)
    for manager in managers(tree):
        table = manager["route_config"]
        manager["route_config"] = tables.get(table["name"], table)
    if form == "json":
        return File(name, json.dumps(tree, indent=2, ensure_ascii=False) + "\n", secret=secret)
    text, lines = Writer(dict(sources(tree))).write(tree)
    return File(name, text, lines, secret)


def _tables(messages: Sequence[route_pb2.RouteConfiguration]) -> dict[str, Tree]:
    """Return the route tables by name. Equal routes share one tree."""
    trees: dict[bytes, Tree] = {}
    tables = {}
    for message in messages:
        bare = route_pb2.RouteConfiguration()
        bare.CopyFrom(message)
        del bare.virtual_hosts[:]
        hosts = [_virtual_host(item, trees) for item in message.virtual_hosts]
        tables[message.name] = {"name": message.name, "virtual_hosts": hosts, **_tree(bare)}
    return tables


def _virtual_host(message: route_components_pb2.VirtualHost, trees: dict[bytes, Tree]) -> Tree:
    routes = []
    for item in message.routes:
        key = item.SerializeToString(deterministic=True)
        if key not in trees:
            trees[key] = _tree(item)
        routes.append(trees[key])
    bare = route_components_pb2.VirtualHost()
    bare.CopyFrom(message)
    del bare.routes[:]
    return {"name": message.name, "domains": list(message.domains), "routes": routes, **_tree(bare)}


def _tree(message: Message) -> Tree:
    tree: Tree = MessageToDict(message, preserving_proto_field_name=True)
    _sort_maps(tree)
    return tree


def _sort_maps(node: object) -> None:
    """Sort the keys of protobuf maps in place, because their order differs between processes."""
    if isinstance(node, list):
        for item in node:
            _sort_maps(item)
    elif isinstance(node, dict):
        for key in node.keys() & _MAPS:
            node[key] = _sorted(node[key], deep=key in _STRUCTS)
        for key, value in node.items():
            if key != "lb_endpoints":
                _sort_maps(value)


def _sorted(tree: Tree, deep: bool) -> Tree:
    return {
        key: _sorted(tree[key], deep) if deep and isinstance(tree[key], dict) else tree[key] for key in sorted(tree)
    }
