"""A parser of foreign input raises nothing but its declared errors, whatever the input."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.security.fuzz.parsers import PARSERS, Parser
from tests.support.paths import ROOT

_PIECES = (
    b'"',
    b"'",
    b"{",
    b"}",
    b"[" * 300,
    b"\x00",
    b"\xff",
    b"\n",
    b"\\",
    b"1e999",
    b"-1",
    b"null",
    b": ",
    b"9" * 40,
)
SECONDS = 10
"""Seconds for which the coverage-guided search runs for one parser."""


@pytest.mark.parametrize("name", PARSERS)
@given(data=st.data())
def test_input_is_taken_or_refused(name: str, data: st.DataObject) -> None:
    parser = PARSERS[name]
    text = data.draw(st.sampled_from(parser.seeds) | st.binary(max_size=200))
    for _ in range(data.draw(st.integers(0, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 20)))
        piece = data.draw(st.sampled_from(_PIECES) | st.binary(max_size=8))
        text = text[:start] + piece + text[end:]
    taken(parser, text)


@pytest.mark.nightly
@pytest.mark.parametrize("name", PARSERS)
def test_search_by_coverage_finds_no_other_error(name: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris has wheels for Linux alone")
    command = [sys.executable, "-m", "tests.security.fuzz", name, str(SECONDS), str(tmp_path)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert process.returncode == 0, (process.stdout + process.stderr)[-8000:]


def taken(parser: Parser, data: bytes) -> None:
    """Parse an input, which the parser may reject."""
    with suppress(*parser.errors):
        parser.parse(data)
