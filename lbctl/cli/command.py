"""Commands whose help text ends with examples."""

from __future__ import annotations

import inspect
from typing import Any

import click

ENVIRONMENT = "Options can also be set in the environment: see `lbctl help environment`."


class Command(click.Command):
    """A command with examples, one per line. A line that begins with `#` explains the next line."""

    def __init__(self, *arguments: Any, examples: str = "", **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.examples = inspect.cleandoc(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write a note about environment variables, followed by the examples."""
        _write_epilog(self, self.examples, formatter)
        super().format_epilog(ctx, formatter)


class Group(click.Group):
    """A group of commands with examples."""

    command_class = Command

    def __init__(self, *arguments: Any, examples: str = "", **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.examples = inspect.cleandoc(examples)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        _write_epilog(self, self.examples, formatter)
        super().format_epilog(ctx, formatter)


def _write_epilog(command: click.Command, examples: str, formatter: click.HelpFormatter) -> None:
    if any(isinstance(item, click.Option) and item.envvar for item in command.params):
        formatter.write_paragraph()
        formatter.write_text(ENVIRONMENT)
    if examples:
        with formatter.section("Examples"):
            for line in examples.splitlines():
                formatter.write(" " * formatter.current_indent + line + "\n" if line else "\n")
