"""Options with environment variables. For example, `render --proxy-version` is LBCTL_RENDER_PROXY_VERSION.

An option that has the same meaning in all commands has a single variable. For example, `--server` is LBCTL_SERVER. An
option's main variable contains its long name. A variable with its short name, such as LBCTL_RENDER_O, is also accepted.
This module also provides shell completion for files and directories.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_PLACES = {
    "FILE": "file",
    "MAIN": "file",
    "OUT": "file",
    "DIR": "dir",
    "PATH": "file",
    "PATH…": "file",
    "[PATH…]": "file",
    "PATH|git:REV|live": "file",
}
"""Maps a metavar to the kind of path that the shell completes."""
_CHOICES = {"PATH|git:REV|live": ("git:HEAD", "live")}
"""Maps a metavar to values that are completed in addition to files."""


def options_of(command: str) -> Callable[..., _Decorator]:
    """Return `click.option` for the options of one command, or for the shared options if `command` is empty."""

    def option(*declarations: str, **settings: Any) -> _Decorator:
        names = sorted((item.lstrip("-") for item in declarations if item.startswith("-")), key=len, reverse=True)
        variables = ["_".join(filter(None, ("LBCTL", command, name))).upper().replace("-", "_") for name in names]
        return click.option(*declarations, envvar=variables, shell_complete=completions, **settings)

    return option


def output_option(command: str, formats: Sequence[str] = ("table", "json", "yaml")) -> _Decorator:
    """Return the `--output` option, which is passed as `form`. The first format is the default."""
    return options_of(command)(
        "-o", "--output", "form", metavar="FORMAT", type=click.Choice(formats), default=formats[0], show_default=True,
        help=f"Output format: {', '.join(formats[:-1])} or {formats[-1]}.",
    )  # fmt: skip


def completions(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete files and directories, or else return the parameter's choices."""
    from click.shell_completion import CompletionItem

    kind = _PLACES.get(parameter.metavar or "")
    if kind is None:
        return parameter.type.shell_complete(context, parameter, incomplete)
    choices = [choice for choice in _CHOICES.get(parameter.metavar or "", ()) if choice.startswith(incomplete)]
    return [CompletionItem(incomplete, type=kind), *map(CompletionItem, choices)]
