"""Applies `defaults` to the JSON Schema, so that keys set in `defaults` are not required elsewhere.

A schema cannot follow a value from `defaults` into an object. If `defaults.pool` is present, no key of a pool is
required, except in lists, which are replaced as a whole. The same applies to the keys of a route. Mutually exclusive
keys remain mutually exclusive.
"""

from __future__ import annotations

import copy
from typing import Any

_KINDS = {"pool": ("pools", "Pool"), "route": ("routes", "Route")}
_EMPTY = ("gpus", "listeners", "pools", "proxies", "routes")
"""Sections that can be empty, for example if all their lines are commented out."""


def partial(name: str, definitions: dict[str, Any]) -> dict[str, str]:
    """Return a reference to a copy of a section that has no required keys at any depth."""
    return _relaxed_copy(name, definitions, "Partial")


def with_defaults(document: dict[str, Any]) -> dict[str, Any]:
    """Return the fleet's schema with strict and lax forms of pools and routes, selected based on their defaults."""
    definitions, properties = dict(document["definitions"]), dict(document["properties"])
    for section in _EMPTY:
        properties[section] = properties[section] | {"type": ["object", "null"]}
    rules = []
    for kind, (section, name) in _KINDS.items():
        strict = properties[section].pop("additionalProperties")
        loose = _relaxed_copy(name, definitions, "Laid")
        has_defaults = {"properties": {"defaults": {"required": [kind]}}, "required": ["defaults"]}
        rules.append({"if": has_defaults, "then": _each_value(section, loose), "else": _each_value(section, strict)})
    return document | {"properties": properties, "allOf": rules, "definitions": definitions}


def _each_value(section: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"properties": {section: {"additionalProperties": value}}}


def _relaxed_copy(name: str, definitions: dict[str, Any], prefix: str) -> dict[str, str]:
    part = f"{prefix}{name}"
    if part not in definitions:
        definitions[part] = {}
        definitions[part].update(_relaxed(copy.deepcopy(definitions[name]), definitions, prefix))
    return {"$ref": f"#/definitions/{part}"}


def _relaxed(node: Any, definitions: dict[str, Any], prefix: str) -> Any:
    if isinstance(node, list):
        return [_relaxed(item, definitions, prefix) for item in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref")
    if isinstance(reference, str):
        copied = _relaxed_copy(reference.rsplit("/", 1)[1], definitions, prefix)
        return {key: value for key, value in node.items() if key != "$ref"} | copied
    relaxed = {}
    for key, value in node.items():
        is_list_item = key == "items" and prefix != "Partial"
        relaxed[key] = value if is_list_item else _relaxed(value, definitions, prefix)
    if node.get("type") == "object":
        for key in ("required", "anyOf", "allOf"):
            relaxed.pop(key, None)
        if "allOf" in node:
            relaxed["allOf"] = [_at_most_one(choice) for choice in node["allOf"]]
    return relaxed


def _at_most_one(choice: dict[str, Any]) -> dict[str, Any]:
    one = [item for item in choice["oneOf"] if "not" not in item]
    return {"oneOf": [*one, {"not": {"anyOf": one}}]}
