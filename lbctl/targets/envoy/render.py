"""A view as Envoy's file: the bootstrap message, its text, and whose each line is."""

from __future__ import annotations

import json

from google.protobuf.json_format import MessageToDict

from lbctl.ir.snapshot import View
from lbctl.targets.envoy import static
from lbctl.targets.envoy.remarks import remarks
from lbctl.targets.envoy.sources import Tree, sources
from lbctl.targets.envoy.text import Writer
from lbctl.targets.target import Bundle, File

_STRUCTS = frozenset(("filter_metadata", "json_format", "static_layer"))
_MAPS = _STRUCTS | {"typed_per_filter_config", "typed_extension_protocol_options", "providers", "requirement_map"}


def render(view: View, form: str) -> Bundle:
    tree: Tree = MessageToDict(static.bootstrap(view), preserving_proto_field_name=True)
    _settle(tree)
    return Bundle((_file(tree, form),), remarks(view))


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


def _file(tree: Tree, form: str) -> File:
    if form == "json":
        return File("envoy.json", json.dumps(tree, indent=2, ensure_ascii=False) + "\n")
    text, lines = Writer(dict(sources(tree))).write(tree)
    return File("envoy.yaml", text, lines)
