"""Make docs/reference/cli.md: the help of every command, as the command itself prints it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from lbctl.cli import group
from lbctl.cli.help import variables, walk

_WIDTH = 80
_INTRODUCTION = """\
<!-- Generated from the commands' own help by `python -m tests.docs.regenerate`; edit it there. -->

# The command line

PATH is a YAML file, a directory of YAML files, or `-` for standard input. Most commands accept several paths. Results
go to standard output, and messages go to standard error.

| exit code | meaning |
|---|---|
| 0 | success, or no differences |
| 1 | the fleet has errors, or `lint` has findings at or above `--fail-on`; nothing was written or published. \
Also: `serve` cannot bind a port, or a control plane rejects the node |
| 2 | `diff --exit-code`: there are differences |
| 3 | timed out, degraded or aborted. `status --check`: requests fail, the files are not published, or a proxy has not \
applied them. `xds get`: a resource did not arrive in time. `doctor`: a check failed |
| 4 | a dependency is missing or not responding: a proxy's binary for `--check`, a running `serve`, or a \
metrics source for `doctor` |
| 5 | the proxy's own checker rejected the rendered configuration |
| 64 | usage error |
| 70 | internal error in lbctl |

## Variables

Every option has an environment variable: `LBCTL_`, followed by the command and the option's long name, for example
`LBCTL_RENDER_PROXY_VERSION`. Options with the same meaning in several commands share a variable. An option on the
command line takes precedence. `lbctl help environment` lists all variables; this table lists the shared variables.

`LBCTL_FILE_DIRS` has no corresponding command-line option. It is a colon-separated list of additional directories
from which a fleet may read keys ([allowed directories](configuration.md#allowed-directories)).

| variable | option | commands |
|---|---|---|
"""


def page() -> str:
    """Return the text of docs/reference/cli.md."""
    found = contexts()
    blocks = [_block(context.command_path, context.command.get_help(context)) for context in found]
    return "\n".join([_INTRODUCTION + "".join(_shared(found)), *blocks])


def contexts() -> list[click.Context]:
    """Return the contexts of lbctl, of each of its commands, and of their subcommands."""
    return list(walk(click.Context(group, info_name="lbctl", terminal_width=_WIDTH, **group.context_settings)))


def _shared(found: Iterable[click.Context]) -> Iterator[str]:
    for (variable, option), commands in variables(found).items():
        if len(commands) > 1:
            yield f"| `{variable}` | `{option}` | {', '.join(f'`{name}`' for name in commands)} |\n"


def _block(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text}\n```\n"
