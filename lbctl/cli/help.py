"""`lbctl help`, which shows help for a command, or the environment variables for all options."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from lbctl.base.diagnostics import did_you_mean
from lbctl.cli.command import Command

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_ENVIRONMENT = "environment"
RULE = (
    "The variable of an option is LBCTL_, followed by the command and the option's long name, for example\n"
    "LBCTL_RENDER_PROXY_VERSION. Options with the same meaning in several commands share a variable.\n"
    "An option on the command line takes precedence."
)
"""Naming rule for variables, wrapped at 100 characters."""
_OTHER = {
    "LBCTL_FILE_DIRS": "Colon-separated list of additional directories from which a fleet may read keys",
    "LBCTL_NGINX, LBCTL_HAPROXY, LBCTL_ENVOY": "Path of the proxy's binary",
    "NO_COLOR": "Disables colors in the output, if set",
}
"""Variables that have no corresponding option."""
_SHOWN = 3
"""Maximum number of commands shown per variable."""


def _names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    root = context.find_root()
    assert isinstance(root.command, click.Group)
    names = (*root.command.list_commands(root), _ENVIRONMENT)
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.command(
    "help",
    cls=Command,
    examples="""
    lbctl help rollout start
    lbctl help environment
    """,
)
@click.argument("names", metavar="[COMMAND…|environment]", nargs=-1, shell_complete=_names)
@click.pass_context
def command(context: click.Context, names: tuple[str, ...]) -> None:
    """Show help for a command, or list all environment variables."""
    root = context.find_root()
    if names == (_ENVIRONMENT,):
        click.echo(environment(root))
        return
    click.echo(_found(root, names).get_help())


def _found(root: click.Context, names: tuple[str, ...]) -> click.Context:
    """Return the context of the named command. Raises UsageError."""
    found = root
    for name in names:
        group = found.command
        known = group.list_commands(found) if isinstance(group, click.Group) else []
        if not isinstance(group, click.Group) or name not in known:
            hint = did_you_mean(name, known)
            raise click.UsageError(f"unknown command {' '.join(names)!r}" + (f" ({hint})" if hint else ""))
        command = group.get_command(found, name)
        assert command is not None
        found = click.Context(command, parent=found, info_name=name)
    return found


def environment(root: click.Context) -> str:
    """Return the naming rule and a table of all variables."""
    from lbctl.cli.output import table_text

    rows = [(variable, option, _some(names)) for (variable, option), names in variables(walk(root)).items()]
    others = table_text(("OTHER VARIABLE", "MEANING"), _OTHER.items())
    return f"{RULE}\n\n{table_text(('VARIABLE', 'OPTION', 'COMMANDS'), rows)}\n\n{others}"


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def walk(context: click.Context) -> Iterator[click.Context]:
    """Yield the contexts of a command and of all commands below it."""
    yield context
    group = context.command
    if not isinstance(group, click.Group):
        return
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        width = context.terminal_width
        yield from walk(click.Context(command, parent=context, info_name=name, terminal_width=width))


def variables(contexts: Iterable[click.Context]) -> dict[tuple[str, str], list[str]]:
    """Map each (variable, option) pair to the commands that have the option, in the order of the contexts."""
    commands: dict[tuple[str, str], list[str]] = {}
    for context in contexts:
        for option in context.command.params:
            if isinstance(option, click.Option) and option.envvar:
                variable = option.envvar if isinstance(option.envvar, str) else option.envvar[0]
                typed = max(option.opts, key=len)
                commands.setdefault((variable, typed), []).append(context.command_path.removeprefix("lbctl "))
    return commands
