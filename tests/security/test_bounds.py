"""Whoever answers a reader of `lbctl serve` cannot fill its memory, hold it up or stop its other work."""

from __future__ import annotations

import re

import pytest

from tests.security.listeners import LISTENERS
from tests.security.readers import READERS
from tests.support.bounds import MAX_BLOCKED, MAX_MEMORY, Reader, cost_of
from tests.support.paths import ROOT

_CASES = [
    pytest.param(reader, name, id=f"{reader.name}: {name}") for reader in READERS for name in sorted(reader.hostile)
]
_ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


@pytest.mark.parametrize(("reader", "name"), _CASES)
def test_hostile_input_costs_little_and_stops_nobody(reader: Reader, name: str) -> None:
    cost = cost_of(reader, name)
    assert cost.accepted == (name in reader.ignores)
    assert cost.others_went_on
    assert cost.memory < MAX_MEMORY
    assert cost.blocked < MAX_BLOCKED


@pytest.mark.parametrize("reader", READERS, ids=[reader.name for reader in READERS])
def test_every_reader_meets_each_kind_of_hostile_input(reader: Reader) -> None:
    kinds = {name.split(" ")[0] for name in reader.hostile}
    assert kinds >= {"endless", "malformed"}
    assert kinds <= {"endless", "slow", "deep", "malformed"}


def test_security_md_lists_the_bounds_of_all_readers() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    section = text.split("| reader | bound |", 1)[1].split("\n\n", 1)[0]
    listed = [(name, bound) for name, bound, _ in _ROW.findall(section) if not name.startswith("-")]
    assert sorted(listed) == sorted((row.name, row.bound) for row in (*READERS, *LISTENERS))
