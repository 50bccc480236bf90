from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from lbctl.base import resources
from lbctl.cli import run
from lbctl.cli.schema import page, schema
from lbctl.targets import KINDS
from tests.support_fleet import compiling

FIXTURES = Path(__file__).parents[1] / "fixtures"


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
    assert schema()["definitions"]["Proxy"]["properties"]["kind"] == {"enum": list(KINDS)}
    fleet["proxies"]["edge-nginx"]["kind"] = "apache"
    assert not validator().is_valid(fleet)


def test_defaults_may_leave_out_what_an_object_must_have() -> None:
    fleet = {"version": 1, "defaults": {"pool": {"health": {"active": {"interval": "5s"}}}, "route": {"auth": {}}}}
    assert verdicts(fleet) == (True, True)
    assert verdicts({"version": 1, "defaults": {"pool": {"helth": {}}}}) == (False, False)


def paths(value: object, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of everything below the top of a document."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*here, key)
        yield from paths(child, (*here, key))


def changed(fleet: dict[str, Any], path: tuple[Any, ...], change: str) -> dict[str, Any]:
    """The fleet with one place changed."""
    made = copy.deepcopy(fleet)
    parent: Any = made
    for step in path[:-1]:
        parent = parent[step]
    match change:
        case "drop":
            del parent[path[-1]]
        case "rename":
            if isinstance(parent, dict):
                parent[f"{path[-1]}X"] = parent.pop(path[-1])
        case other:
            parent[path[-1]] = json.loads(other)
    return made


CHANGES = ("drop", "rename", "null", "true", "0", "-1", "1.5", '"x y;"', '""', "[]", "{}", '"5"', '["a"]')


@pytest.mark.parametrize("change", CHANGES)
def test_its_verdict_is_the_models(change: str) -> None:
    fleet = document("full")
    subtle = {"equals", "trusted"}  # a cookie's value, the bits of a network
    every = [path for path in paths(fleet) if len(path) > 1 and not subtle & set(path)]
    for path in random.Random(change).sample(every, 40):
        made = changed(fleet, path, change)
        by_schema, by_model = verdicts(made)
        assert by_schema == by_model, f"{change} at {path}: {compiling(json.dumps(made))[1]}"
