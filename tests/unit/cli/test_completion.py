"""`lbctl completion`: a real shell completes; `lbctl version` says what is installed."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import yaml

from lbctl import __version__
from lbctl.cli import run
from lbctl.cli.version import PACKAGES
from tests.support.paths import ROOT

PROMPT = "ready> "


class Bash:
    """An interactive bash on a terminal of its own, with lbctl in its PATH and its completion loaded."""

    def __init__(self, directory: Path) -> None:
        command = directory / "bin" / "lbctl"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m lbctl "$@"\n')
        command.chmod(0o755)
        path = os.pathsep.join([str(command.parent), os.environ["PATH"]])
        env = os.environ | {
            "PATH": path,
            "PYTHONPATH": str(ROOT),
            "PS1": PROMPT,
            "TERM": "dumb",
            "INPUTRC": "/dev/null",
        }
        self._terminal, inner = pty.openpty()
        self._process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=inner, stdout=inner, stderr=inner, env=env, cwd=directory, start_new_session=True,
        )  # fmt: skip
        os.close(inner)
        self.read(PROMPT)
        self.type("bind 'set enable-bracketed-paste off'; bind 'set page-completions off'\n")
        self.read(PROMPT)
        self.type("source <(lbctl completion bash)\n")
        self.read(PROMPT)

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def read(self, until: str) -> str:
        """What it shows, up to and with `until`."""
        shown, deadline = "", time.monotonic() + 60
        while until not in shown:
            left = deadline - time.monotonic()
            assert left > 0, f"no {until!r} in {shown!r}"
            if select.select([self._terminal], [], [], left)[0]:
                shown += os.read(self._terminal, 65536).decode(errors="replace")
        return shown

    def completed(self, typed: str, until: str) -> str:
        """What stands on the terminal after `typed` and TAB; the line is thrown away."""
        self.type(typed)
        self.read(typed)
        self.type("\t")
        shown = typed + self.read(until)
        self.type("\x15\n")
        self.read(PROMPT)
        return shown

    def close(self) -> None:
        self._process.kill()
        self._process.wait(60)
        os.close(self._terminal)


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bash]:
    directory = tmp_path_factory.mktemp("home")
    (directory / "my-fleet.yaml").write_text("")
    (directory / "my-directory").mkdir()
    shell = Bash(directory)
    yield shell
    shell.close()


@pytest.mark.parametrize(
    ("typed", "becomes"),
    [
        ("lbctl ren", "lbctl render "),
        ("lbctl render --proxy-v", "lbctl render --proxy-version "),
        ("lbctl render -t hap", "lbctl render -t haproxy "),
        ("lbctl status pro", "lbctl status proxies "),
        ("lbctl weight uns", "lbctl weight unset "),
        ("lbctl validate my-f", "lbctl validate my-fleet.yaml "),
        ("lbctl render -d my-", "lbctl render -d my-directory/"),
        ("lbctl diff --token-file my-f", "lbctl diff --token-file my-fleet.yaml "),
        ("lbctl doctor --ser", "lbctl doctor --server "),
        ("lbctl rule LB961", "lbctl rule LB961 "),
        ("lbctl diff --against li", "lbctl diff --against live "),
        ("lbctl diff --against my-f", "lbctl diff --against my-fleet.yaml "),
    ],
)
def test_bash_completes(typed: str, becomes: str, bash: Bash) -> None:
    assert bash.completed(typed, becomes.removeprefix(typed)).endswith(becomes)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_one_of_that_shell(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_LBCTL_COMPLETE={shell}_complete" in script
    assert "lbctl" in script
    if shutil.which(shell):
        file = tmp_path / "script"
        file.write_text(script)
        subprocess.run([shell, "-n", str(file)], check=True, timeout=120)


def test_a_shell_that_is_none_of_them_is_a_wrong_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "tcsh"]) == 64
    assert run(["completion"]) == 64
    assert "bash" in capsys.readouterr().err


def answered(words: str) -> tuple[list[str], list[str]]:
    """What a shell is told after `words`, and the heavy modules that it took."""
    code = (
        "import sys\nfrom lbctl.cli import run\n"
        "try: run([])\nexcept SystemExit: pass\n"
        "print(*[name for name in sys.modules if name in ('pydantic', 'yaml', 'lbctl.model')], file=sys.stderr)"
    )
    count = str(len(words.split(" ")) - 1)
    env = os.environ | {"_LBCTL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": count}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout.splitlines(), done.stderr.split()


def test_completing_a_command_imports_no_model() -> None:
    told, heavy = answered("lbctl ")
    assert "plain,render" in told
    assert heavy == []


def test_codes_of_rules_are_completed() -> None:
    told, _ = answered("lbctl rule LB96")
    assert told == ["plain,LB960", "plain,LB961", "plain,LB962", "plain,LB963"]


def test_what_a_fleet_can_be_compared_with_is_completed_beside_files() -> None:
    told, _ = answered("lbctl diff --against ")
    assert told == ["file,", "plain,git:HEAD", "plain,live"]
    assert answered("lbctl diff --against fleet/")[0] == ["file,fleet/"]


# ── version ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_version_names_lbctl_python_and_every_dependency(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"lbctl {__version__}"
    assert lines[1].startswith(f"Python {sys.version_info.major}.{sys.version_info.minor}.")
    assert f"  click {metadata.version('click')}" in lines


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_version_is_for_machines_too(form: str, read: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version", "-o", form]) == 0
    told = read(capsys.readouterr().out)  # type: ignore[operator]
    assert told["lbctl"] == __version__
    assert told["packages"]["grpcio"] == metadata.version("grpcio")


def test_the_packages_are_those_that_lbctl_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [re.split(r"[><=]", item)[0] for item in project["dependencies"]]
    assert sorted(PACKAGES) == sorted(needed)
