"""Reads an Envoy configuration in YAML or JSON, and checks it against Envoy's own message definitions.

A running Envoy's `config_dump` is also accepted. Its listeners, clusters, routes and endpoints are moved to their
places in a static configuration, but keep their positions in the dump.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.importer.envoy.yaml import read as read_yaml
from lbctl.importer.limits import read_text
from lbctl.importer.values import is_whole
from lbctl.model.node import Node, plain_value

_ADMIN = "envoy.admin.v3."
_DUMPS: dict[str, tuple[tuple[str, ...], ...]] = {
    "ListenersConfigDump": (("static_listeners", "listener"), ("dynamic_listeners", "active_state", "listener")),
    "ClustersConfigDump": (("static_clusters", "cluster"), ("dynamic_active_clusters", "cluster")),
    "RoutesConfigDump": (("static_route_configs", "route_config"), ("dynamic_route_configs", "route_config")),
    "EndpointsConfigDump": (
        ("static_endpoint_configs", "endpoint_config"),
        ("dynamic_endpoint_configs", "endpoint_config"),
    ),
}
_SECTION = {"Listeners": "listeners", "Clusters": "clusters", "Routes": "route_configs", "Endpoints": "endpoints"}


def read(file: str, diagnostics: Diagnostics) -> Node | None:
    """Return the tree of the configuration, or None if diagnostics were added."""
    text = read_text(Path(file), file, diagnostics)
    root = read_yaml(text, file, diagnostics) if text is not None else None
    if root is None:
        return None
    if _field(root, "configs") is not None:
        return _of_dump(root)
    _check(root, diagnostics)
    return None if diagnostics.failed else root


# ── A dump ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_dump(root: Node) -> Node:
    resources: dict[str, list[Node]] = {name: [] for name in _SECTION.values()}
    for config in _items(_field(root, "configs")):
        kind = str(_value(_field(config, "@type"))).rpartition("/")[2].removeprefix(_ADMIN)
        section = _SECTION.get(kind.removesuffix("ConfigDump"))
        for path in _DUMPS.get(kind, ()):
            for item in _items(_field(config, path[0])):
                resource = item
                for step in path[1:]:
                    resource = _field(resource, step) or Node({}, root.file, 0, 0)
                if section is not None and resource.value:
                    resources[section].append(resource)
    static = {name: Node(items, root.file, root.line, root.column) for name, items in resources.items() if items}
    return Node(
        {"static_resources": Node(static, root.file, root.line, root.column)}, root.file, root.line, root.column
    )


def _field(node: Node | None, name: str) -> Node | None:
    return node.value.get(name) if node is not None and isinstance(node.value, dict) else None


def _items(node: Node | None) -> list[Node]:
    return node.value if node is not None and isinstance(node.value, list) else []


def _value(node: Node | None) -> object:
    return node.value if node is not None else None


# ── Envoy's messages ─────────────────────────────────────────────────────────────────────────────────────────────────


def _check(root: Node, diagnostics: Diagnostics) -> None:
    """Report values that Envoy would not accept, at the position in its error message."""
    from envoy.config.bootstrap.v3 import bootstrap_pb2
    from google.protobuf import json_format

    tree = _known_types(plain_value(root))
    try:
        json_format.ParseDict(tree, bootstrap_pb2.Bootstrap())
    except (json_format.ParseError, KeyError, TypeError, AttributeError, RecursionError) as error:
        # The library reports some wrong types with other exceptions, such as KeyError for a missing field.
        message = f"{error} is missing" if isinstance(error, KeyError) else " ".join(str(error).split())
        position = _position(root, message)
        diagnostics.add(Diagnostic("LB980", f"invalid Envoy configuration: {message[:300]}", position))


def _position(root: Node, message: str) -> Position:
    """Return the position of the path in a message, for example `at 'Bootstrap.staticResources.listeners[0]'`."""
    match = re.search(r"at ['\"]?Bootstrap\.([A-Za-z0-9_.\[\]]+)", message)
    node = root
    for step in re.findall(r"[A-Za-z0-9_]+", match[1]) if match else ():
        child = _step(node, step)
        if child is None:
            break
        node = child
    named = re.search(r"no field named \"([^\"]+)\"", message)
    inner = _field(node, named[1]) if named else None
    return inner.key_position if inner is not None else Position(root.file, max(1, node.line), max(1, node.column))


def _step(node: Node, step: str) -> Node | None:
    if isinstance(node.value, list):
        return node.value[int(step)] if is_whole(step) and int(step) < len(node.value) else None
    snake = re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", step)
    return _field(node, step) or _field(node, snake)


def _known_types(tree: Any) -> Any:
    """Return the tree without typed configurations of unknown messages, such as extensions in a custom build."""
    if isinstance(tree, list):
        return [_known_types(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    return {key: _known_types(value) for key, value in tree.items() if not _is_unknown(value)}


def _is_unknown(value: Any) -> bool:
    name = str(value.get("@type", "")).rpartition("/")[2] if isinstance(value, dict) else ""
    return bool(name) and not _import(name)


def _import(name: str) -> bool:
    """Import the modules in the package that defines a message. Returns whether the message is known afterwards."""
    from google.protobuf import descriptor_pool

    package = name.rpartition(".")[0]
    if not re.fullmatch(r"(envoy|xds|udpa|google\.protobuf)(\.[a-z0-9_]+)*", package):
        return False
    for module in _modules(package):
        importlib.import_module(module)
    try:
        descriptor_pool.Default().FindMessageTypeByName(name)
    except KeyError:
        return False
    return True


def _modules(package: str) -> Iterator[str]:
    try:
        imported = importlib.import_module(package)
    except ImportError:
        return
    for item in pkgutil.iter_modules(imported.__path__):
        if item.name.endswith("_pb2"):
            yield f"{package}.{item.name}"
