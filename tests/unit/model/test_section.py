"""Sections are built when they are needed, and their defaults equal the result of validating an empty map."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from lbctl.model.fleet import Fleet
from lbctl.model.section import Section
from tests.support.paths import ROOT

_COUNT = """
from lbctl.base.diagnostics import Diagnostics
from lbctl.model.fleet import read
from lbctl.model.section import Section

def below(section):
    return [each for own in section.__subclasses__() for each in (own, *below(own))]

assert read(["examples/quickstart.yaml"], Diagnostics()) is not None
print(sum(each.__pydantic_complete__ for each in below(Section)), len(below(Section)))
"""


def _sections(section: type[Section] = Section) -> Iterator[type[Section]]:
    for each in section.__subclasses__():
        yield each
        yield from _sections(each)


def _defaults() -> list[Section]:
    assert Fleet in set(_sections())
    fields = (field for section in _sections() for field in section.model_fields.values())
    return [field.default for field in fields if isinstance(field.default, Section)]


@pytest.mark.parametrize("default", _defaults(), ids=lambda default: type(default).__name__)
def test_a_default_value_equals_an_empty_map(default: Section) -> None:
    assert default == type(default).model_validate({})
    assert default.model_fields_set == set()


def test_a_small_fleet_builds_few_sections() -> None:
    counts = subprocess.run([sys.executable, "-c", _COUNT], cwd=ROOT, capture_output=True, text=True, check=True)
    built, every = map(int, counts.stdout.split())
    assert 4 <= built < every / 4
