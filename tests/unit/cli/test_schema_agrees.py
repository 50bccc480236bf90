"""The JSON Schema and lbctl judge alike: every example, with one place of it changed in every way.

The schema is laxer by these rules, and the changes here stay clear of them: what needs two places of a fleet to see (a
name that stands nowhere, a rule twice), what `defaults` may give (where they stand, nothing in a pool or route must be
there), and what a grammar cannot say of a text (`LOOSE`). It is never stricter, not even there.
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

pytestmark = pytest.mark.no_cover  # many of one kind, in which a trace would be most of the time

Place = tuple[str | int, ...]
Document = dict[str, Any]
LOOSE = {
    "equals": "what a cookie can carry, where the pin is one",
    "path_regex": "whether RE2 understands it",
    "trusted": "the bits of a network",
}
"""Key → what of its text only lbctl can say."""
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
MOST = "tests/fixtures/full.yaml"
"""Every key of the schema stands there."""
VALUES = (None, True, 0, -1, 1.5, 10**11, [], {}, ["a"], {"a": 1}, *TEXTS)
CHANGES = ("drop", "rename", "shout", "unknown", *map(json.dumps, VALUES))


def each(name: str) -> int:
    """How many places of a file are changed in each way."""
    return 6 if name == MOST else 2


@cache
def validator() -> jsonschema.Draft7Validator:
    return jsonschema.Draft7Validator(schema())


def fleets() -> Iterator[Path]:
    for folder in ("examples", "examples/migrating"):
        yield from sorted((ROOT / folder).glob("*.yaml"))
    yield ROOT / MOST


FLEETS = {str(path.relative_to(ROOT)): path for path in fleets()}


def document(name: str) -> Document:
    made: Document = yaml.safe_load(FLEETS[name].read_text(encoding="utf-8"))
    return made


def places(value: object, here: Place = ()) -> Iterator[Place]:
    """Of everything below the top."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*here, key)
        yield from places(child, (*here, key))


def changed(fleet: Document, place: Place, change: str) -> Document:
    made = copy.deepcopy(fleet)
    parent: Any = made
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
    return made


def refusals(fleet: Document) -> list[str]:
    """The model's, and those of the registries that the schema knows: kinds of proxies and names of GPUs."""
    text = json.dumps(fleet)
    source, found = reading(text)
    if source is None:
        return [str(item) for item in found if item.severity == "error"]
    if validator().is_valid(fleet):
        return []
    return [str(item) for item in compiling(text)[1] if item.code in {"LB103", "LB201", "LB202"}]


def judged(fleet: Document) -> tuple[bool, list[str]]:
    """Whether the schema accepts it, and what lbctl says against it."""
    return validator().is_valid(fleet), refusals(fleet)


@pytest.mark.parametrize("name", FLEETS)
def test_an_unchanged_file_is_right_for_both(name: str) -> None:
    assert [error.message for error in validator().iter_errors(document(name))] == []
    assert refusals(document(name)) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", FLEETS)
def test_a_changed_file_is_judged_alike(name: str) -> None:
    fleet = document(name)
    fleet.pop("defaults", None)
    every, counts = list(places(fleet)), Counter[bool]()
    chance, apart = random.Random(name), []
    for change in CHANGES:
        for place in chance.sample(every, min(each(name), len(every))):
            accepted, said = judged(changed(fleet, place, change))
            counts[accepted] += 1
            loose = change.startswith(('"', "[")) and LOOSE.keys() & set(place)
            if accepted == bool(said) and not (accepted and loose):
                apart.append(f"{change} at {place}: the schema says {accepted}, lbctl {said or 'nothing'}")
    assert apart == [], f"of {counts.total()} changes"
    assert counts[False] > counts[True] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FLEETS if "defaults" in document(name)])
def test_with_defaults_the_schema_is_never_the_stricter_one(name: str) -> None:
    fleet = document(name)
    every = list(places(fleet))
    chance = random.Random(name)
    for change in CHANGES:
        for place in chance.sample(every, min(2, len(every))):
            accepted, said = judged(changed(fleet, place, change))
            assert accepted or said, f"{name}: {change} at {place}"


CHECK = {"health": {"active": {"interval": "9s"}}}
REPLICAS = {"replicas": [{"address": "a:1"}]}
DEFAULTS = {
    "pool": {"health": {"active": {"http": {"path": "/ready"}}}, "model": {"name": "m"}, **REPLICAS},
    "route": {"pool": "p"},
}


@pytest.mark.parametrize(
    ("fleet", "right"),
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
def test_what_defaults_give_need_not_be_written_again(fleet: Document, right: bool) -> None:
    accepted, said = judged({"version": 1, **fleet})
    assert (accepted, not said) == (right, right), said
