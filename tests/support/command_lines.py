"""Command lines of units and manifests."""

from __future__ import annotations

from collections.abc import Sequence

import click

from lbctl.cli import group


def accept(words: Sequence[str]) -> None:
    """Parse the arguments of `lbctl`, without running the command. Raises click.UsageError if they are wrong."""
    name, *arguments = words
    context = group.make_context("lbctl", [name])
    command = group.get_command(context, name)
    if isinstance(command, click.Group) and arguments and arguments[0] in command.commands:
        context = command.make_context(name, arguments[:1], parent=context)
        name, *arguments = arguments
        command = command.commands[name]
    assert command is not None, name
    command.make_context(name, list(arguments), parent=context)
