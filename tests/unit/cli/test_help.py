"""Help texts fit into a terminal, end with examples that parse, and have one text for each command."""

from __future__ import annotations

import shlex
from typing import cast

import click
import pytest

from lbctl.cli import group, run
from lbctl.cli.command import ENVIRONMENT
from tests.docs.cli_page import contexts

COLUMNS = 80
CONTEXTS = {context.command_path: context for context in contexts()}
COMMANDS = [path for path, context in CONTEXTS.items() if not isinstance(context.command, click.Group)]


@pytest.mark.parametrize("path", CONTEXTS)
def test_help_fits_into_80_columns(path: str) -> None:
    assert [line for line in CONTEXTS[path].get_help().splitlines() if len(line) > COLUMNS] == []


@pytest.mark.parametrize("path", CONTEXTS)
def test_every_option_has_a_long_name(path: str) -> None:
    options = [item for item in CONTEXTS[path].command.params if isinstance(item, click.Option)]
    assert [item.opts for item in options if not any(name.startswith("--") for name in item.opts)] == []


def test_list_of_commands_shows_the_first_sentence_of_each() -> None:
    lines = [line.split(maxsplit=1) for line in CONTEXTS["lbctl"].get_help().splitlines() if line.startswith("  ")]
    summaries = {words[0]: words[1] for words in lines if len(words) == 2}
    of_commands = {
        context.info_name: context.command.get_short_help_str(200)
        for context in CONTEXTS.values()
        if context.parent is CONTEXTS["lbctl"]
    }
    assert {name: summaries.get(name or "") for name in of_commands} == of_commands


@pytest.mark.parametrize("path", COMMANDS)
def test_examples_are_valid_command_lines(path: str) -> None:
    examples: str = getattr(CONTEXTS[path].command, "examples", "")
    lines = [line for line in examples.replace("\\\n", "").splitlines() if not line.startswith("#")]
    assert lines
    assert all(path in line for line in lines)
    for line in lines:
        if line.startswith("lbctl"):
            parse(shlex.split(line.partition(" > ")[0]))


def parse(words: list[str]) -> None:
    """Parse a command line without running it. Raises UsageError."""
    context, command, rest = CONTEXTS["lbctl"], cast("click.Command", group), words[1:]
    while isinstance(command, click.Group):
        _, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
    command.make_context(words[1], list(rest), parent=context)


def test_help_of_a_command_equals_its_help_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rollout", "start", "--help"]) == 0
    by_option = capsys.readouterr().out
    assert run(["help", "rollout", "start"]) == 0
    assert capsys.readouterr().out == by_option
    assert ENVIRONMENT in by_option


def test_help_suggests_a_known_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", "rolout"]) == 64
    assert "unknown command 'rolout' (did you mean 'rollout'?)" in capsys.readouterr().err
    assert run(["vaildate"]) == 64
    assert "unknown command 'vaildate' (did you mean 'validate'?)" in capsys.readouterr().err


def test_help_lists_environment_variables(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", "environment"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ["LBCTL_RENDER_OUTPUT", "--output", "render"] in [line.split() for line in lines]
    assert [line.split()[:2] for line in lines].count(["LBCTL_SERVER", "--server"]) == 1


@pytest.mark.parametrize("variable", ["LBCTL_GPUS_OUTPUT", "LBCTL_GPUS_O"])
def test_variables_by_short_names_still_work(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, "json")
    assert run(["gpus"]) == 0
    assert capsys.readouterr().out.startswith("[")
