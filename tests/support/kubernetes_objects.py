"""Validates Kubernetes objects as an API server does, as far as the schemas go, and with a few of the other rules."""

from __future__ import annotations

import json
import lzma
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate

from tests.support import kubernetes_rules as rules
from tests.support.paths import FIXTURES

Tree = dict[str, Any]
VERSIONS = {
    "gateway-api": ("1.4.1", "1.6.1"),
    "istio": ("1.27.0", "1.30.3"),
    "envoy-gateway": ("1.7.0", "1.9.0"),
}
"""Kind of target → the oldest and the newest version whose schemas are in the fixtures."""
GROUPS = (
    "gateway.networking.k8s.io",
    "inference.networking.k8s.io",
    "networking.istio.io",
    "security.istio.io",
    "gateway.envoyproxy.io",
)
"""API groups of the custom resources that lbctl renders."""
_KUBERNETES = "1.34"


def problems(item: Tree, version: str, kind: str = "gateway-api") -> list[str]:
    """Return the reasons for which a server with this version of a kind's resources rejects an object."""
    if item["apiVersion"].partition("/")[0] not in GROUPS:
        try:
            kubernetes_validate.validate(item, _KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            return [str(error)]
        return []
    schema = _schemas(kind, version).get(f"{item['apiVersion']} {item['kind']}")
    if schema is None:
        return [f"no {item['apiVersion']} {item['kind']} in {kind} {version}"]
    found = [
        f"{error.json_path}: {error.message}" for error in jsonschema.Draft202012Validator(schema).iter_errors(item)
    ]
    return [*found, *_repeated(item, schema, "$"), *rules.broken(item)]


@cache
def _schemas(kind: str, version: str) -> dict[str, Tree]:
    every_object = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    return {
        name: _strict({**schema, "properties": {**every_object, **schema["properties"]}})
        for name, schema in _released(kind, version).items()
    }


def _released(kind: str, version: str) -> dict[str, Tree]:
    """Map each API version and kind to its schema as released. Envoy Gateway also reads the Gateway API."""
    data = (FIXTURES / "kubernetes" / f"{kind}-v{version}.json.xz").read_bytes()
    released: dict[str, Tree] = json.loads(lzma.decompress(data))
    if kind == "envoy-gateway":
        of_the_same_age = VERSIONS["gateway-api"][VERSIONS[kind].index(version)]
        released |= _released("gateway-api", of_the_same_age)
    return released


def plural(kind: str) -> str:
    """Return the name of a kind in URLs."""
    name = kind.lower()
    return f"{name[:-1]}ies" if re.search("[^aeiou]y$", name) else f"{name}s"


def definitions(kind: str, version: str) -> list[Tree]:
    """Return the custom resource definitions of a version of a kind."""
    versions: dict[tuple[str, str], dict[str, Tree]] = {}
    for name, schema in _released(kind, version).items():
        api_version, kind = name.split()
        group, _, number = api_version.partition("/")
        versions.setdefault((group, kind), {})[number] = schema
    return [_definition(group, kind, schemas) for (group, kind), schemas in versions.items()]


def _definition(group: str, kind: str, schemas: dict[str, Tree]) -> Tree:
    newest = sorted(schemas, key=lambda name: ("beta" in name, name))[0]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural(kind)}.{group}",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural(kind), "singular": kind.lower()},
            "versions": [
                {
                    "name": name,
                    "served": True,
                    "storage": name == newest,
                    "schema": {"openAPIV3Schema": schema},
                    **({"subresources": {"status": {}}} if "status" in schema["properties"] else {}),
                }
                for name, schema in schemas.items()
            ],
        },
    }


def _strict(schema: Tree) -> Tree:
    """Return the schema with unknown keys rejected, as with fieldValidation=Strict."""
    result = {key: value for key, value in schema.items() if key != "format"}
    if "properties" in schema:
        result["properties"] = {name: _strict(child) for name, child in schema["properties"].items()}
        result["additionalProperties"] = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
    elif isinstance(schema.get("additionalProperties"), dict):
        result["additionalProperties"] = _strict(schema["additionalProperties"])
    if "items" in schema:
        result["items"] = _strict(schema["items"])
    return result


def _repeated(value: Any, schema: Tree, path: str) -> Iterator[str]:
    """Yield lists in which two items have the same keys, although the schema makes them a map."""
    if isinstance(value, dict):
        for name, child in value.items():
            if name in schema.get("properties", {}):
                yield from _repeated(child, schema["properties"][name], f"{path}.{name}")
    elif isinstance(value, list):
        keys = schema.get("x-kubernetes-list-map-keys")
        if keys:
            found = [tuple(item.get(key) for key in keys) for item in value]
            if len(set(found)) < len(found):
                yield f"{path}: two items have the same {', '.join(keys)}"
        for index, item in enumerate(value):
            yield from _repeated(item, schema["items"], f"{path}[{index}]")
