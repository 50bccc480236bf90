"""docs/reference/cli.md: the help of every command, as the command itself prints it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from lbctl.cli import group

_WIDTH = 100
_INTRODUCTION = """\
<!-- Generated from the commands' own help by `python -m tests.docs.regenerate`; edit it there. -->

# The command line

A PATH is a YAML file or a directory of them, several may be given, `-` is standard input. Standard output holds the
result alone; messages go to standard error.

| exit code | meaning |
|---|---|
| 0 | fine |
| 1 | the fleet has errors, or `lint` findings from `--fail-on` on; nothing was written, and what was served still is. \
Or `serve` cannot have a port, or a control plane refuses the node |
| 2 | `diff --exit-code`: something differs |
| 3 | `status --check`: requests fail, the files are not served, or a proxy does not have them. \
`xds get`: not all has come in time. `doctor`: something is not as the fleet needs it |
| 4 | a needed thing cannot be reached, as a proxy's program for `--check`, a running `serve`, or for `doctor` a \
source of metrics |
| 5 | the proxy's own checker refused what lbctl rendered |
| 64 | the command line is wrong |
| 70 | an error in lbctl itself |

## Variables

Every option has a variable: `LBCTL_`, the command, the option, as in `LBCTL_RENDER_PROXY_VERSION`. What means the same
for several commands has one for all of them; on the command line an option still comes first.

`LBCTL_FILE_DIRS` has no option: it names directories in addition to those from which a fleet may read keys, separated
by colons ([which files a fleet may name](configuration.md#which-files-a-fleet-may-name)).

| variable | option | of |
|---|---|---|
"""


def page() -> str:
    """The text of docs/reference/cli.md."""
    found = contexts()
    blocks = [_block(context.command_path, context.command.get_help(context)) for context in found]
    return "\n".join([_INTRODUCTION + "".join(_shared(found)), *blocks])


def contexts() -> list[click.Context]:
    """Of lbctl itself, of each command, and of those that it holds."""
    top = click.Context(group, info_name="lbctl", terminal_width=_WIDTH, **group.context_settings)
    return [top, *_below(top)]


def variables(found: Iterable[click.Context]) -> dict[tuple[str, str], list[str]]:
    """(variable, option) → the commands that take it, in their order."""
    commands: dict[tuple[str, str], list[str]] = {}
    for context in found:
        for option in context.command.params:
            if isinstance(option, click.Option) and isinstance(option.envvar, str):
                typed = max(option.opts, key=len)
                commands.setdefault((option.envvar, typed), []).append(context.command_path.removeprefix("lbctl "))
    return commands


def _below(parent: click.Context) -> Iterator[click.Context]:
    """Of each command, and of those that it holds."""
    group = parent.command
    for name in group.list_commands(parent) if isinstance(group, click.Group) else ():
        command = group.get_command(parent, name)
        assert command is not None
        context = click.Context(command, parent=parent, info_name=name, terminal_width=_WIDTH)
        yield context
        yield from _below(context)


def _shared(found: Iterable[click.Context]) -> Iterator[str]:
    for (variable, option), commands in variables(found).items():
        if len(commands) > 1:
            yield f"| `{variable}` | `{option}` | {', '.join(f'`{name}`' for name in commands)} |\n"


def _block(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text}\n```\n"
