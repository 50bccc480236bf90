from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
import pytest
import yaml

from lbctl.base import resources
from lbctl.cli import run
from lbctl.cli.schema import page, schema
from lbctl.targets import TARGETS
from tests.support.fleet import compiling
from tests.support.paths import FIXTURES


@cache
def validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(schema())


def document(name: str) -> dict[str, Any]:
    fleet: dict[str, Any] = yaml.safe_load((FIXTURES / f"{name}.yaml").read_text())
    return fleet


def accepted_by_schema_and_lbctl(fleet: object) -> tuple[bool, bool]:
    """Return whether the schema accepts the fleet, and whether lbctl does, apart from checks across places."""
    _, diagnostics = compiling(json.dumps(fleet))
    errors = [item for item in diagnostics if item.code < "LB100" or item.code in {"LB103", "LB201", "LB202"}]
    return validator().is_valid(fleet), not errors


def test_schema_file_equals_the_output_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema"]) == 0
    assert capsys.readouterr().out == page() == (resources.schemas() / "lbctl.schema.json").read_text()


def test_schema_is_valid_for_draft_7() -> None:
    jsonschema.Draft7Validator.check_schema(schema())
    assert "$defs" not in page()


@pytest.mark.parametrize("name", ["fleet", "full", "quickstart"])
def test_schema_accepts_valid_fleets(name: str) -> None:
    assert [error.message for error in validator().iter_errors(document(name))] == []


def test_schema_lists_the_kinds_of_proxies() -> None:
    fleet = document("full")
    assert schema()["definitions"]["Proxy"]["properties"]["kind"]["enum"] == list(TARGETS)
    fleet["proxies"]["edge-nginx"]["kind"] = "apache"
    assert not validator().is_valid(fleet)


def test_defaults_need_not_have_required_keys() -> None:
    fleet = {"version": 1, "defaults": {"pool": {"health": {"active": {"interval": "5s"}}}, "route": {"auth": {}}}}
    assert accepted_by_schema_and_lbctl(fleet) == (True, True)
    assert accepted_by_schema_and_lbctl({"version": 1, "defaults": {"pool": {"helth": {}}}}) == (False, False)
