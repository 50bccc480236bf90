"""Every YAML block in README.md and docs/ is valid YAML, and parts of a fleet contain only keys that exist."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from lbctl.cli.schema import schema
from tests.docs.pages import PAGES, Block, blocks

WITH_YAML = [page for page in PAGES if any(block.language == "yaml" for block in blocks(page))]
WRONG_KEYS = {"docs/start/tutorial-2.md": "prority"}
"""Pages whose fleet contains this key on purpose."""
OTHER_FORMATS = frozenset({"apiVersion", "model_list", "patches", "spec", "static_resources"})
"""Top-level keys of Kubernetes objects, LiteLLM, kustomize, pods and Envoy."""
OTHER_DOCUMENTS = {
    "docs/how-to/kubernetes-gateways.md": "picker",
    "docs/reference/configuration.md": "sk-6f1c0a9be27d4358",
}
"""Pages with values for the Helm chart or with a key file: a key of that document."""
ENTRIES = {"docs/reference/import.md": ("v1", "Route")}
"""Pages with an entry of a map: its name, and its type in the schema."""


class _Loader(yaml.SafeLoader):
    """Reads `on`, `off`, `yes` and `no` as text, as lbctl does."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the name and type are PyYAML's
        first: [(tag, pattern) for tag, pattern in resolvers if first in "tTfF" or tag != "tag:yaml.org,2002:bool"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


@pytest.mark.parametrize("page", WITH_YAML)
def test_yaml_blocks_of_a_page_are_valid(page: str) -> None:
    for block in blocks(page):
        if block.language == "yaml" and "excerpt" not in block.words:
            for document in _documents(page, block):
                expected = WRONG_KEYS.get(page)
                errors = _errors(page, document) if isinstance(document, dict) else []
                assert [error for error in errors if not expected or expected not in error] == [], block.line


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("pools: {llama: {replica: []}}", "'replica' was unexpected"),
        ("pools: {}\nrouets: {}", "not a part of a fleet"),
        ("replicas: [{name: a, addres: x}]", "'addres' was unexpected"),
        ("rollout: {mode: analyses}", "'analyses' is not"),
    ],
)
def test_wrong_keys_are_found(text: str, error: str) -> None:
    assert error in " ".join(_errors("page", yaml.load(text, _Loader)))


def _errors(page: str, document: dict[str, Any]) -> list[str]:
    """Return what is wrong with a fleet or a part of one: it must be valid for one type that has all of its keys."""
    keys = set(document)
    if keys & OTHER_FORMATS or OTHER_DOCUMENTS.get(page) in keys:
        return []
    if keys <= set(_PARTS["properties"]):
        return _errors_of_type(_PARTS, document)
    name, kind = ENTRIES.get(page, ("", ""))
    if keys == {name}:
        return _errors_of_type(_PARTS["definitions"][kind], document[name])
    types = [part for part in _PARTS["definitions"].values() if keys <= set(part.get("properties", ()))]
    each = [_errors_of_type(part, document) for part in types]
    return min(each, key=len) if each else [f"{sorted(keys)} is not a part of a fleet"]


def _errors_of_type(part: dict[str, Any], document: Any) -> list[str]:
    validator = Draft7Validator({**part, "definitions": _PARTS["definitions"]})
    return [error.message for error in validator.iter_errors(document)]


def _documents(page: str, block: Block) -> list[Any]:
    try:
        return list(yaml.load_all(block.text, _Loader))
    except yaml.YAMLError as error:
        pytest.fail(f"{page}:{block.line}: {error}", pytrace=False)


def _without_required_keys(part: Any) -> Any:
    """Return a schema that also accepts parts of a valid document."""
    if isinstance(part, list):
        return [_without_required_keys(item) for item in part]
    if not isinstance(part, dict):
        return part
    limits = ("required", "minItems", "minProperties")
    kept = {key: value for key, value in part.items() if key not in limits or isinstance(value, dict)}
    return {"anyOf" if key == "oneOf" else key: _without_required_keys(value) for key, value in kept.items()}


_PARTS = _without_required_keys(schema())
