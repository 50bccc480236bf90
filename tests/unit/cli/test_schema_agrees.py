"""The JSON Schema and lbctl accept and reject the same fleets: every example, with one place changed at a time.

The schema is laxer in three respects, which the changes here avoid. It does not check references across a fleet, such
as undefined names and duplicate rules. It requires no key of a pool or route, because `defaults` may set them. It does
not check texts that need more than a grammar (`LOOSE`). It is never stricter.
"""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from lbctl.cli.schema import schema
from tests.support.fleet import compiling, reading
from tests.support.paths import ROOT

pytestmark = pytest.mark.no_cover  # thousands of similar checks, which tracing would slow down

Place = tuple[str | int, ...]
Document = dict[str, Any]
LOOSE = {
    "equals": "what a cookie can carry, where the pin is one",
    "path_regex": "whether RE2 understands it",
    "trusted": "the bits of a network",
}
"""Key → the property of its text that only lbctl checks."""
TEXTS = (
    "x y;",
    "",
    "5",
    "5s",
    "101%",
    "100.5%",
    "*",
    "a:99999",
    "a:65535",
    "a:0",
    "../x",
    "a/../b",
    "/",
    "-x",
    " x",
    "0/s",
    "Ä",
)
FULL = "tests/fixtures/full.yaml"
"""A fleet with every key of the schema."""
VALUES = (None, True, 0, -1, 1.5, 10**11, [], {}, ["a"], {"a": 1}, *TEXTS)
CHANGES = ("drop", "rename", "shout", "unknown", *map(json.dumps, VALUES))


def changes_of_each_kind(name: str) -> int:
    """Return how many places of a file are changed in each way."""
    return 6 if name == FULL else 2


@cache
def validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(schema())


def fleets() -> Iterator[Path]:
    for folder in ("examples", "examples/migrating", "examples/kubernetes"):
        yield from sorted((ROOT / folder).glob("*.yaml"))
    yield ROOT / FULL


FLEETS = {str(path.relative_to(ROOT)): path for path in fleets()}
WITH_DEFAULTS = [name for name, path in FLEETS.items() if "\ndefaults:" in path.read_text(encoding="utf-8")]


def document(name: str) -> Document:
    fleet: Document = yaml.safe_load(FLEETS[name].read_text(encoding="utf-8"))
    return fleet


def places(value: object, here: Place = ()) -> Iterator[Place]:
    """Yield the places of all values below the top."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*here, key)
        yield from places(child, (*here, key))


def changed(fleet: Document, place: Place, change: str) -> Document:
    result = copy.deepcopy(fleet)
    parent: Any = result
    for step in place[:-1]:
        parent = parent[step]
    key: Any = place[-1]
    if change == "drop":
        del parent[key]
    elif change in ("rename", "shout") and isinstance(parent, dict):
        parent[f"{key}-x" if change == "rename" else f"{key}".upper()] = parent.pop(key)
    elif change == "unknown" and isinstance(parent[key], dict):
        parent[key]["no_such_key"] = 1
    elif change not in ("rename", "shout", "unknown"):
        parent[key] = json.loads(change)
    return result


def schema_and_lbctl(fleet: Document) -> tuple[bool, list[str]]:
    """Return whether the schema accepts the fleet, and the errors that lbctl reports.

    These are the errors of the model, and of the registries that the schema knows: kinds of proxies, names of GPUs.
    """
    accepted, text = validator().is_valid(fleet), json.dumps(fleet)
    source, diagnostics = reading(text)
    if source is None:
        return accepted, [str(item) for item in diagnostics if item.severity == "error"]
    if accepted:
        return accepted, []
    return accepted, [str(item) for item in compiling(text)[1] if item.code in {"LB103", "LB201", "LB202"}]


def section_of(fleet: Document, place: Place) -> Document:
    """Return the fleet with only the section of this place, and with the defaults and GPUs that it depends on."""
    return {key: value for key, value in fleet.items() if key in ("version", "defaults", "gpus", place[0])}


@pytest.mark.parametrize("name", FLEETS)
def test_schema_and_lbctl_accept_the_original_file(name: str) -> None:
    assert [error.message for error in validator().iter_errors(document(name))] == []
    assert schema_and_lbctl(document(name)) == (True, [])


@pytest.mark.slow
@pytest.mark.parametrize("name", FLEETS)
def test_schema_and_lbctl_agree_on_a_changed_file(name: str) -> None:
    fleet = document(name)
    fleet.pop("defaults", None)
    all_places, counts = list(places(fleet)), Counter[bool]()
    randomness, differences = random.Random(name), []
    for change in CHANGES:
        for place in randomness.sample(all_places, min(changes_of_each_kind(name), len(all_places))):
            accepted, errors = schema_and_lbctl(changed(section_of(fleet, place), place, change))
            counts[accepted] += 1
            loose = change.startswith(('"', "[")) and LOOSE.keys() & set(place)
            if accepted == bool(errors) and not (accepted and loose):
                differences.append(f"{change} at {place}: the schema says {accepted}, lbctl {errors or 'nothing'}")
    assert differences == [], f"of {counts.total()} changes"
    assert counts[False] > counts[True] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_DEFAULTS)
def test_schema_with_defaults_is_never_stricter_than_lbctl(name: str) -> None:
    fleet = document(name)
    all_places = list(places(fleet))
    randomness = random.Random(name)
    for change in CHANGES:
        for place in randomness.sample(all_places, min(2, len(all_places))):
            accepted, errors = schema_and_lbctl(changed(section_of(fleet, place), place, change))
            assert accepted or errors, f"{name}: {change} at {place}"


CHECK = {"health": {"active": {"interval": "9s"}}}
REPLICAS = {"replicas": [{"address": "a:1"}]}
DEFAULTS = {
    "pool": {"health": {"active": {"http": {"path": "/ready"}}}, "model": {"name": "m"}, **REPLICAS},
    "route": {"pool": "p"},
}


@pytest.mark.parametrize(
    ("fleet", "valid"),
    [
        ({"defaults": DEFAULTS, "pools": {"p": CHECK}, "routes": {"r": {"match": {}}}}, True),
        ({"defaults": DEFAULTS, "pools": {"p": {"model": {"version": "2"}}}}, True),
        ({"pools": {"p": REPLICAS | {"model": {"version": "2"}}}}, False),
        ({"pools": {"p": CHECK}}, False),
        ({"pools": {"p": CHECK | REPLICAS}}, False),
        ({"defaults": DEFAULTS, "pools": {"p": {"replicas": [{"gpu": "L4"}]}}}, False),
        ({"defaults": DEFAULTS, "pools": {"p": {"discovery": {"file": {"path": "t"}}}}}, True),
        ({"defaults": DEFAULTS, "pools": {"p": {"discovery": {"file": {"path": "t"}}, **REPLICAS}}}, False),
        ({"defaults": DEFAULTS, "pools": {"p": {"helth": {}}}}, False),
        ({"defaults": {"route": {"pool": "p"}}, "pools": {"p": {}}}, False),
        ({"defaults": {"pool": {"health": {"active": {"http": {}, "tcp": {}}}}}}, False),
        ({"defaults": {"pool": {"replicas": []}, "pool2": {}}}, False),
        ({"pools": None, "routes": None, "listeners": None, "gpus": None, "proxies": None}, True),
        ({"control": None}, False),
        ({"defaults": None}, False),
        ({"defaults": {"pool": None}}, False),
    ],
)
def test_keys_from_defaults_need_not_be_repeated(fleet: Document, valid: bool) -> None:
    accepted, errors = schema_and_lbctl({"version": 1, **fleet})
    assert (accepted, not errors) == (valid, valid), errors
