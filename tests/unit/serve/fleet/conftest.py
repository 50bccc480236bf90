"""Fixtures of the tests of reloads."""

from __future__ import annotations

import pytest

from lbctl.serve.fleet import reload
from tests.support.reload import FileClock


@pytest.fixture
def file_clock(monkeypatch: pytest.MonkeyPatch) -> FileClock:
    """Let the reloader wait for files in virtual time."""
    clock = FileClock()
    monkeypatch.setattr(reload, "time", clock)
    return clock
