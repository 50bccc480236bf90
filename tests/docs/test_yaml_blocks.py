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
                if isinstance(document, dict) and set(document) <= set(_PARTS.schema["properties"]):
                    errors = [error.message for error in _PARTS.iter_errors(document)]
                    expected = WRONG_KEYS.get(page)
                    assert [error for error in errors if not expected or expected not in error] == [], block.line


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


_PARTS = Draft7Validator(_without_required_keys(schema()))
