"""Options with environment variables: `--proxy-version` of `render` is LBCTL_RENDER_PROXY_VERSION.

An option with the same meaning in all commands has one variable: `--server` is LBCTL_SERVER. This module also provides
the shell completion of files and directories.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_PLACES = {
    "FILE": "file",
    "F": "file",
    "DIR": "dir",
    "PATH": "file",
    "PATH…": "file",
    "[PATH…]": "file",
    "PATH|git:REV|live": "file",
}
"""Maps the name of a value in the help to the kind of path that a shell completes it by."""
_CHOICES = {"PATH|git:REV|live": ("git:HEAD", "live")}
"""Maps the name of a value in the help to the choices that it has beside a file."""


def options_of(command: str) -> Callable[..., _Decorator]:
    """Return `click.option` for the options of one command, or of all that share them if it is empty."""

    def option(*declarations: str, **settings: Any) -> _Decorator:
        name = max((item for item in declarations if item.startswith("-")), key=len).lstrip("-")
        variable = "_".join(filter(None, ("LBCTL", command, name))).upper().replace("-", "_")
        return click.option(*declarations, envvar=variable, show_envvar=True, shell_complete=completions, **settings)

    return option


def completions(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the shell's own completion of files or directories, else the choices of the parameter."""
    from click.shell_completion import CompletionItem

    kind = _PLACES.get(parameter.metavar or "")
    if kind is None:
        return parameter.type.shell_complete(context, parameter, incomplete)
    choices = [choice for choice in _CHOICES.get(parameter.metavar or "", ()) if choice.startswith(incomplete)]
    return [CompletionItem(incomplete, type=kind), *map(CompletionItem, choices)]
