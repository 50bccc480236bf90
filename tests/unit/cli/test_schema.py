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
from lbctl.targets import KINDS
from tests.support.fleet import compiling
from tests.support.paths import FIXTURES


@cache
def validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(schema())


def document(name: str) -> dict[str, Any]:
    made: dict[str, Any] = yaml.safe_load((FIXTURES / f"{name}.yaml").read_text())
    return made


def verdicts(fleet: object) -> tuple[bool, bool]:
    """The schema's, and lbctl's on the same, less what needs two places of the fleet to see."""
    _, found = compiling(json.dumps(fleet))
    wrong = [item for item in found if item.code < "LB100" or item.code in {"LB103", "LB201", "LB202"}]
    return validator().is_valid(fleet), not wrong


def test_the_file_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema"]) == 0
    assert capsys.readouterr().out == page() == (resources.schemas() / "lbctl.schema.json").read_text()


def test_it_is_a_schema_of_draft_7() -> None:
    jsonschema.Draft7Validator.check_schema(schema())
    assert "$defs" not in page()


@pytest.mark.parametrize("name", ["fleet", "full", "quickstart"])
def test_it_accepts_what_is_right(name: str) -> None:
    assert [error.message for error in validator().iter_errors(document(name))] == []


def test_it_knows_the_kinds_of_proxies() -> None:
    fleet = document("full")
    assert schema()["definitions"]["Proxy"]["properties"]["kind"]["enum"] == list(KINDS)
    fleet["proxies"]["edge-nginx"]["kind"] = "apache"
    assert not validator().is_valid(fleet)


def test_defaults_may_leave_out_what_an_object_must_have() -> None:
    fleet = {"version": 1, "defaults": {"pool": {"health": {"active": {"interval": "5s"}}}, "route": {"auth": {}}}}
    assert verdicts(fleet) == (True, True)
    assert verdicts({"version": 1, "defaults": {"pool": {"helth": {}}}}) == (False, False)
