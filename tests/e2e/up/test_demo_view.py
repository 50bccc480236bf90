"""The live view of `lbctl demo` on a terminal: its tables, and every key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.processes.binaries import require
from tests.support.processes.up import Up
from tests.support.pseudo_terminal import PseudoTerminal, on_terminal

TIMEOUT = 60.0
FAULTS = {"t": "throttle h100-0", "k": "kill a100-0", "w": "wedge h100-1", "s": "stale a100-1"}
CANARIES = {"g": "good", "b": "bad"}


@pytest.fixture
def folder(tmp_path: Path) -> Up:
    """Return a directory that identifies the processes of the demo."""
    tmp_path.chmod(0o755)
    return Up(tmp_path)


def press(terminal: PseudoTerminal, key: str, *texts: str) -> None:
    """Press the key, and wait until the terminal shows these texts."""
    terminal.forget()
    terminal.press(key)
    for text in texts:
        terminal.await_text(text, TIMEOUT)


def test_keys_control_faults_canaries_and_exit(folder: Up) -> None:
    require("envoy")
    with on_terminal("demo", "--proxy", "envoy", columns=80, lines=24, environment=folder.own_env) as terminal:
        terminal.await_text("replicas behind lbctl serve", TIMEOUT)
        terminal.await_text("lbctl demo · envoy", TIMEOUT)
        for name in ("dashboard http://127.0.0.1:", "l40s-1", "static weights by GPU", "round robin", "[q] quit"):
            terminal.await_text(name, TIMEOUT)
        for key, fault in FAULTS.items():
            press(terminal, key, f"{fault}: ")
        press(terminal, "t", "throttle h100-0: over")
        press(terminal, "h", *(f"{fault}: over" for key, fault in FAULTS.items() if key != "t"))
        for key, name in CANARIES.items():
            press(terminal, key, f"{name} canary: 25 % to its new version")
        terminal.press("q")
        assert terminal.end(TIMEOUT) == 0
        assert "the same requests, " in terminal.text
        assert folder.processes() == {}
