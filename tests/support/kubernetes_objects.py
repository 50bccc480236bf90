"""Validates Kubernetes objects as an API server does, as far as the schemas go, and with a few of the CEL rules."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import kubernetes_validate

from tests.support.paths import FIXTURES

Tree = dict[str, Any]
GATEWAY_API = ("1.4.1", "1.6.1")
"""Oldest and newest version whose schemas are in the fixtures."""
GROUPS = ("gateway.networking.k8s.io", "inference.networking.k8s.io")
_KUBERNETES = "1.34"


def problems(item: Tree, version: str) -> list[str]:
    """Return the reasons for which a server with this version of the Gateway API rejects an object."""
    if item["apiVersion"].partition("/")[0] not in GROUPS:
        try:
            kubernetes_validate.validate(item, _KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            return [str(error)]
        return []
    schema = _schemas(version).get(f"{item['apiVersion']} {item['kind']}")
    if schema is None:
        return [f"no {item['apiVersion']} {item['kind']} in {version}"]
    found = [
        f"{error.json_path}: {error.message}" for error in jsonschema.Draft202012Validator(schema).iter_errors(item)
    ]
    return [*found, *_repeated(item, schema, "$"), *_rules(item)]


@cache
def _schemas(version: str) -> dict[str, Tree]:
    return {name: _strict(schema) for name, schema in _released(version).items()}


def _released(version: str) -> dict[str, Tree]:
    """Map each API version and kind to its schema as released."""
    data = (FIXTURES / "kubernetes" / f"gateway-api-v{version}.json.xz").read_bytes()
    released: dict[str, Tree] = json.loads(lzma.decompress(data))
    return released


def plural(kind: str) -> str:
    """Return the name of a kind in URLs."""
    return f"{kind.lower().removesuffix('y')}ies" if kind.endswith("y") else f"{kind.lower()}s"


def definitions(version: str) -> list[Tree]:
    """Return the custom resource definitions of a version of the Gateway API."""
    versions: dict[tuple[str, str], dict[str, Tree]] = {}
    for name, schema in _released(version).items():
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
        result["additionalProperties"] = False
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


def _rules(item: Tree) -> Iterator[str]:
    """Yield the broken CEL rules that lbctl's own code has to keep."""
    if item["kind"] == "Gateway":
        sections = [(each["port"], each["protocol"], each.get("hostname")) for each in item["spec"]["listeners"]]
        if len(set(sections)) < len(sections):
            yield "port, protocol and hostname must be unique for each listener"
    if item["kind"] != "HTTPRoute":
        return
    rules = item["spec"]["rules"]
    if sum(len(rule["matches"]) for rule in rules) > 128:
        yield "more than 128 matches"
    for rule in rules:
        yield from (f"{rule['name']}: {problem}" for problem in _rule(rule))


def _rule(rule: Tree) -> Iterator[str]:
    filters = {each["type"]: each for each in rule.get("filters", ())}
    rewrite = filters.get("URLRewrite", {}).get("urlRewrite", {}).get("path", {})
    types = [match["path"]["type"] for match in rule["matches"]]
    if rewrite.get("type") == "ReplacePrefixMatch" and types != ["PathPrefix"]:
        yield "ReplacePrefixMatch needs exactly one prefix"
    if "RequestRedirect" in filters and rule.get("backendRefs"):
        yield "a redirect has backends"
    if len(filters) < len(rule.get("filters", ())):
        yield "a filter is repeated"
    if any("port" not in backend for backend in rule.get("backendRefs", ()) if "kind" not in backend):
        yield "a Service without port"
