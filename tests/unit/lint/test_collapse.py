"""Warnings that repeat each other are merged into one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostic, Position
from lbctl.cli import run
from lbctl.lint.collapse import collapse_equal
from lbctl.lint.proxies import UnsupportedFinding, one_per_code
from tests.support.fleets import fleet_of, pool, replica, write_fleet

FIRST = Diagnostic("LB485", "not read", Position("f.yaml", 3, 1), ("pools", "a", "telemetry"), "", "warning")


def test_equal_warnings_become_the_first_one() -> None:
    others = [replace(FIRST, position=Position("f.yaml", line, 1)) for line in (5, 9)]
    other = replace(FIRST, message="something else")
    assert [item.message for item in collapse_equal([FIRST, *others, other])] == [
        "not read (also at 5:1, 9:1)", "something else",
    ]  # fmt: skip


def test_positions_are_named_up_to_three() -> None:
    other_file = replace(FIRST, position=Position("g.yaml", 1, 1))
    others = [replace(FIRST, position=Position("f.yaml", line, 1)) for line in (5, 6, 7, 8)]
    (item,) = collapse_equal([FIRST, other_file, *others])
    assert item.message == "not read (also at g.yaml:1:1, 5:1, 6:1 and 2 more)"


def test_errors_are_all_kept() -> None:
    errors = [replace(FIRST, severity="error", position=Position("f.yaml", line, 1)) for line in (3, 5)]
    assert collapse_equal(errors) == errors


def one_line_each(*texts: tuple[str, str]) -> list[str]:
    """Return the lines of `lint` for (pool, message) of findings with one code."""
    findings = (replace(FIRST, path=("pools", pool_name, "x"), message=text) for pool_name, text in texts)
    return [item.message for item in one_per_code([UnsupportedFinding(("istio",), item) for item in findings])]


def test_lint_merges_messages_with_other_names() -> None:
    other = ("b", "pool b: 10.0.0.2:80 is left out")
    assert one_line_each(("a", "pool a: 10.0.0.1:80 is left out"), other) == [
        "pool a: 10.0.0.1:80 is left out (and in 1 more place)"
    ]


def test_lint_keeps_different_consequences_apart() -> None:
    texts = ["the affected routes return 503", "10.1.1.1 is ignored, and only the port is used"]
    assert one_line_each(*(("a", text) for text in texts)) == texts


def test_render_shows_a_warning_of_many_pools_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pools = {name: pool(replica(), balance={"algorithm": "least_time"}) for name in "abc"}
    routes = {name: {"match": {"path_prefix": f"/{name}"}, "pool": name} for name in pools}
    file = write_fleet(tmp_path, fleet_of(routes=routes, pools=pools))
    assert run(["render", "-t", "nginx", str(file)]) == 0
    lines = [line for line in capfd.readouterr().err.splitlines() if "LB457" in line]
    assert len(lines) == 1
    assert "(also at " in lines[0]
