"""`lbctl completion` works in a real shell; `lbctl version` prints the installed versions."""

from __future__ import annotations

import json
import os
import platform
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
    """An interactive bash on a pseudo-terminal, with lbctl in its PATH and its completion loaded."""

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
        """Return the output up to and including `until`."""
        shown, deadline = "", time.monotonic() + 60
        while until not in shown:
            left = deadline - time.monotonic()
            assert left > 0, f"no {until!r} in {shown!r}"
            if select.select([self._terminal], [], [], left)[0]:
                shown += os.read(self._terminal, 65536).decode(errors="replace")
        return shown

    def completed(self, typed: str, until: str) -> str:
        """Return the line after `typed` and TAB, and discard it."""
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
def test_bash_completes_the_word(typed: str, becomes: str, bash: Bash) -> None:
    assert bash.completed(typed, becomes.removeprefix(typed)).endswith(becomes)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_is_valid_for_its_shell(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert f"_LBCTL_COMPLETE={shell}_complete" in script
    assert "lbctl" in script
    if shutil.which(shell):
        file = tmp_path / "script"
        file.write_text(script)
        subprocess.run([shell, "-n", str(file)], check=True, timeout=120)


def test_unknown_shell_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", "tcsh"]) == 64
    assert run(["completion"]) == 64
    assert "bash" in capsys.readouterr().err


def completions_of(words: str) -> tuple[list[str], list[str]]:
    """Return the completions after `words`, and the heavy modules that were imported for them."""
    code = (
        "import sys\nfrom lbctl.cli import run\n"
        "try: run([])\nexcept SystemExit: pass\n"
        "print(*[name for name in sys.modules if name in ('pydantic', 'yaml', 'lbctl.model')], file=sys.stderr)"
    )
    count = str(len(words.split(" ")) - 1)
    env = os.environ | {"_LBCTL_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": count}
    process = subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    return process.stdout.splitlines(), process.stderr.split()


def test_completing_a_command_imports_no_model() -> None:
    completions, heavy = completions_of("lbctl ")
    assert "plain,render" in completions
    assert heavy == []


def test_rule_codes_are_completed() -> None:
    completions, _ = completions_of("lbctl rule LB96")
    assert completions == ["plain,LB960", "plain,LB961", "plain,LB962", "plain,LB963"]


@pytest.mark.slow
def test_against_completes_git_live_and_files() -> None:
    completions, _ = completions_of("lbctl diff --against ")
    assert completions == ["file,", "plain,git:HEAD", "plain,live"]
    assert completions_of("lbctl diff --against fleet/")[0] == ["file,fleet/"]


# ── version ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_version_lists_lbctl_python_and_dependencies(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"lbctl {__version__}"
    assert lines[1].startswith(f"Python {sys.version_info.major}.{sys.version_info.minor}.")
    assert f"  click {metadata.version('click')}" in lines


@pytest.mark.parametrize(("form", "parse"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_version_is_available_as_json_and_yaml(form: str, parse: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["version", "-o", form]) == 0
    versions = parse(capsys.readouterr().out)  # type: ignore[operator]
    assert versions.keys() == {"lbctl", "python", "packages"}
    assert versions["lbctl"] == __version__
    assert versions["python"] == {"version": platform.python_version(), "platform": platform.platform()}
    assert versions["packages"] == {name: metadata.version(name) for name in PACKAGES}


@pytest.mark.slow
def test_packages_equal_the_dependencies_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    dependencies = [re.split(r"[><=]", item)[0] for item in project["dependencies"]]
    assert sorted(PACKAGES) == sorted(dependencies)
