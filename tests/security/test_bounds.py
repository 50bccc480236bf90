"""A hostile server or client cannot exhaust the memory of `lbctl serve`, block it, or stop its other work."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest
from _pytest.mark import ParameterSet

from tests.security.listeners import LISTENERS
from tests.security.readers import READERS
from tests.support.bounds import MAX_BLOCKED, MAX_MEMORY, Reader, cost_of, kind_of
from tests.support.paths import ROOT

_FREQUENT = 2
"""Inputs of each kind that `make test` sends to a reader, from the beginning of the list."""


def _cases() -> Iterator[ParameterSet]:
    for reader in READERS:
        kinds: Counter[str] = Counter()
        for name in reader.hostile:
            kinds[kind_of(name)] += 1
            marks = () if kinds[kind_of(name)] <= _FREQUENT else pytest.mark.nightly
            yield pytest.param(reader, name, id=f"{reader.name}: {name}", marks=marks)


_ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


@pytest.mark.parametrize(("reader", "name"), list(_cases()))
def test_hostile_input_costs_little_and_stops_no_other_work(reader: Reader, name: str) -> None:
    cost = cost_of(reader, name)
    assert cost.accepted == (name in reader.ignores)
    assert cost.others_went_on
    assert cost.memory < MAX_MEMORY
    assert cost.blocked < MAX_BLOCKED


@pytest.mark.parametrize("reader", READERS, ids=[reader.name for reader in READERS])
def test_every_reader_meets_each_kind_of_hostile_input(reader: Reader) -> None:
    kinds = set(map(kind_of, reader.hostile))
    assert kinds >= {"endless", "malformed"}
    assert kinds <= {"endless", "slow", "deep", "malformed"}


def test_security_md_lists_the_bounds_of_all_readers() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    section = text.split("| reader | bound |", 1)[1].split("\n\n", 1)[0]
    listed = [(name, bound) for name, bound, _ in _ROW.findall(section) if not name.startswith("-")]
    assert sorted(listed) == sorted((row.name, row.bound) for row in (*READERS, *LISTENERS))
