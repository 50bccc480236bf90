"""Every command that prints a table can also print JSON and YAML."""

from __future__ import annotations

from collections.abc import Iterator

import click

from lbctl.cli import group


def commands_of(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(command)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from commands_of(child, (*path, name))
    else:
        yield path, command


def test_every_table_is_available_as_json_and_yaml() -> None:
    forms = {
        path: set(option.type.choices)
        for path, command in commands_of(group)
        for option in command.params
        if "-o" in option.opts and isinstance(option.type, click.Choice)
    }
    tables = {path: choices for path, choices in forms.items() if "table" in choices}
    assert ("status",) in tables
    assert {path for path, choices in tables.items() if not choices >= {"json", "yaml"}} == set()
