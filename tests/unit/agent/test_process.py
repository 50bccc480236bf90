"""The start of the agent's process."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from lbctl.agent.process import AgentProcess, CannotStartError
from tests.support.agent import settings


def test_units_can_use_directories_below_the_default_one(tmp_path: Path) -> None:
    """An agent that root has started by hand must not lock out the units' user from /run/lbctl-agent/NAME."""
    before = os.umask(0o022)
    try:
        AgentProcess(settings(state=str(tmp_path / "lbctl-agent"), devices=()))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "lbctl-agent").stat().st_mode) == 0o711


def test_state_directory_that_cannot_be_created_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CannotStartError, match=r"cannot be created: Not a directory \(set --state\)"):
        AgentProcess(settings(state=str(tmp_path / "file" / "state")))
