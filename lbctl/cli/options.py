"""Options whose variable is named after what one types: `--proxy-version` of `render` is LBCTL_RENDER_PROXY_VERSION.

And what a shell completes where a file or a directory is wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_PLACES = {"FILE": "file", "F": "file", "DIR": "dir", "PATH…": "file", "[PATH…]": "file", "PATH|git:REV|live": "file"}
"""What a value is called in the help → what a shell completes it by."""


def options_of(command: str) -> Callable[..., _Decorator]:
    """`click.option` for the options of one command."""

    def option(*declarations: str, **settings: Any) -> _Decorator:
        typed = max((item for item in declarations if item.startswith("-")), key=len).lstrip("-")
        variable = f"LBCTL_{command}_{typed}".upper().replace("-", "_")
        return click.option(*declarations, envvar=variable, show_envvar=True, shell_complete=completions, **settings)

    return option


def completions(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The shell's own files or directories for what is one of them, else the choices of the parameter."""
    from click.shell_completion import CompletionItem

    kind = _PLACES.get(parameter.metavar or "")
    if kind is None:
        return parameter.type.shell_complete(context, parameter, incomplete)
    return [CompletionItem(incomplete, type=kind)]
