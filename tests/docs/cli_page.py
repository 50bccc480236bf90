"""docs/cli.md: the help of every command, as the command itself prints it."""

from __future__ import annotations

import click

from lbctl.cli import group

_WIDTH = 100
_INTRODUCTION = """\
<!-- Generated from the commands' own help by `python -m tests.docs.regenerate`; edit it there. -->

# The command line

A PATH is a YAML file or a directory of them, several may be given, `-` is standard input. Standard output holds the
result alone; messages go to standard error. Every option has a variable: `LBCTL_`, the command, the option, as in
`LBCTL_RENDER_PROXY_VERSION`.

| exit code | meaning |
|---|---|
| 0 | fine |
| 1 | the fleet has errors, or `lint` findings from `--fail-on` on; nothing was written, and what was served still is. \
Or `serve` cannot have a port, or a control plane refuses the node |
| 2 | `diff --exit-code`: something differs |
| 3 | `status --check`: the files are not served, or a proxy does not have them. `xds get`: not all has come in time. \
`doctor`: something is not as the fleet needs it |
| 4 | a needed thing cannot be reached, as a proxy's program for `--check`, a running `serve`, or for `doctor` a \
source of metrics |
| 5 | the proxy's own checker refused what lbctl rendered |
| 64 | the command line is wrong |
| 70 | an error in lbctl itself |
"""


def page() -> str:
    """The text of docs/cli.md."""
    top = click.Context(group, info_name="lbctl", terminal_width=_WIDTH, **group.context_settings)
    blocks = [_INTRODUCTION, _block("lbctl", group.get_help(top))]
    for name in group.list_commands(top):
        command = group.get_command(top, name)
        assert command is not None
        blocks += _blocks(command, top, name)
    return "\n".join(blocks)


def _blocks(command: click.Command, parent: click.Context, name: str) -> list[str]:
    """Its own, and one for each of the commands that it holds."""
    context = click.Context(command, parent=parent, info_name=name, terminal_width=_WIDTH)
    blocks = [_block(context.command_path, command.get_help(context))]
    for each in command.list_commands(context) if isinstance(command, click.Group) else ():
        inner = command.get_command(context, each)
        assert inner is not None
        blocks += _blocks(inner, context, each)
    return blocks


def _block(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text}\n```\n"
