"""What `defaults` does to the JSON Schema: what it gives need not be written again, and what holds it is laxer for it.

A schema cannot follow a value from `defaults` into an object. So where `defaults.pool` stands, nothing in a pool must
be there, but for what stands in lists, which are replaced as a whole; the same for routes. What excludes each other
still does.
"""

from __future__ import annotations

import copy
from typing import Any

_KINDS = {"pool": ("pools", "Pool"), "route": ("routes", "Route")}
_EMPTY = ("gpus", "listeners", "pools", "proxies", "routes")
"""Sections that may stand without a value, as one whose lines were all commented out."""


def partial(name: str, definitions: dict[str, Any]) -> dict[str, str]:
    """A copy of a section, and of all that lies below it, in which nothing must be there."""
    return _copied(name, definitions, "Partial")


def laid(made: dict[str, Any]) -> dict[str, Any]:
    """The schema of a fleet with one or the other form of a pool, and of a route, by whether there are defaults."""
    definitions, properties = dict(made["definitions"]), dict(made["properties"])
    for section in _EMPTY:
        properties[section] = properties[section] | {"type": ["object", "null"]}
    rules = []
    for kind, (section, name) in _KINDS.items():
        strict = properties[section].pop("additionalProperties")
        loose = _copied(name, definitions, "Laid")
        given = {"properties": {"defaults": {"required": [kind]}}, "required": ["defaults"]}
        rules.append({"if": given, "then": _every(section, loose), "else": _every(section, strict)})
    return made | {"properties": properties, "allOf": rules, "definitions": definitions}


def _every(section: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"properties": {section: {"additionalProperties": value}}}


def _copied(name: str, definitions: dict[str, Any], prefix: str) -> dict[str, str]:
    part = f"{prefix}{name}"
    if part not in definitions:
        definitions[part] = {}
        definitions[part].update(_loose(copy.deepcopy(definitions[name]), definitions, prefix))
    return {"$ref": f"#/definitions/{part}"}


def _loose(node: Any, definitions: dict[str, Any], prefix: str) -> Any:
    if isinstance(node, list):
        return [_loose(item, definitions, prefix) for item in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref")
    if isinstance(reference, str):
        copied = _copied(reference.rsplit("/", 1)[1], definitions, prefix)
        return {key: value for key, value in node.items() if key != "$ref"} | copied
    made = {}
    for key, value in node.items():
        whole = key == "items" and prefix != "Partial"
        made[key] = value if whole else _loose(value, definitions, prefix)
    if node.get("type") == "object":
        for key in ("required", "anyOf", "allOf"):
            made.pop(key, None)
        if "allOf" in node:
            made["allOf"] = [_at_most_one(choice) for choice in node["allOf"]]
    return made


def _at_most_one(choice: dict[str, Any]) -> dict[str, Any]:
    one = [item for item in choice["oneOf"] if "not" not in item]
    return {"oneOf": [*one, {"not": {"anyOf": one}}]}
