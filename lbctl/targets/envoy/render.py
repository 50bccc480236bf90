"""A view as Envoy's files: the messages, their text, and whose each line is.

A route for any host stands in the virtual host of every name. It is turned into a tree once, and that tree stands in
many places: what is written of it is written once, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from envoy.config.route.v3 import route_components_pb2, route_pb2
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from lbctl.ir.snapshot import View
from lbctl.targets.envoy.diagnostics import remarks
from lbctl.targets.envoy.sources import SECRETS, Tree, managers, sources
from lbctl.targets.envoy.static import static
from lbctl.targets.envoy.text import Writer
from lbctl.targets.target import Bundle, File

_STRUCTS = frozenset(("filter_context", "filter_metadata", "json_format", "static_layer"))
_MAPS = _STRUCTS | {"typed_per_filter_config", "typed_extension_protocol_options", "providers", "requirement_map"}


def render(view: View, form: str) -> Bundle:
    found = static(view, f"{SECRETS}.{form}")
    tables = _tables(found.tables)
    files = [_file("envoy", found.bootstrap, tables, form)]
    if found.apart.resources:
        files.append(_file(SECRETS, found.apart, tables, form))
    return Bundle(tuple(files), remarks(view))


def _file(name: str, message: Message, tables: Mapping[str, Tree], form: str) -> File:
    tree, secret = _tree(message), name == SECRETS
    for manager in managers(tree):
        manager["route_config"] = tables[manager["route_config"]["name"]]
    if form == "json":
        return File(f"{name}.json", json.dumps(tree, indent=2, ensure_ascii=False) + "\n", secret=secret)
    text, lines = Writer(dict(sources(tree))).write(tree)
    return File(f"{name}.yaml", text, lines, secret)


def _tables(messages: Sequence[route_pb2.RouteConfiguration]) -> dict[str, Tree]:
    """By name. Equal routes are one tree."""
    known: dict[bytes, Tree] = {}
    found = {}
    for message in messages:
        bare = route_pb2.RouteConfiguration()
        bare.CopyFrom(message)
        del bare.virtual_hosts[:]
        hosts = [_virtual_host(item, known) for item in message.virtual_hosts]
        found[message.name] = {"name": message.name, "virtual_hosts": hosts, **_tree(bare)}
    return found


def _virtual_host(message: route_components_pb2.VirtualHost, known: dict[bytes, Tree]) -> Tree:
    routes = []
    for item in message.routes:
        key = item.SerializeToString(deterministic=True)
        if key not in known:
            known[key] = _tree(item)
        routes.append(known[key])
    bare = route_components_pb2.VirtualHost()
    bare.CopyFrom(message)
    del bare.routes[:]
    return {"name": message.name, "domains": list(message.domains), "routes": routes, **_tree(bare)}


def _tree(message: Message) -> Tree:
    tree: Tree = MessageToDict(message, preserving_proto_field_name=True)
    _settle(tree)
    return tree


def _settle(node: object) -> None:
    """Protobuf's maps have no order, and a new one in every process: their keys are sorted, in place."""
    if isinstance(node, list):
        for item in node:
            _settle(item)
    elif isinstance(node, dict):
        for key in node.keys() & _MAPS:
            node[key] = _sorted(node[key], deep=key in _STRUCTS)
        for key, value in node.items():
            if key != "lb_endpoints":
                _settle(value)


def _sorted(tree: Tree, deep: bool) -> Tree:
    return {
        key: _sorted(tree[key], deep) if deep and isinstance(tree[key], dict) else tree[key] for key in sorted(tree)
    }
