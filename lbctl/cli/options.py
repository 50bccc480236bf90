"""Options whose variable is named after what one types: `--proxy-version` of `render` is LBCTL_RENDER_PROXY_VERSION."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def options_of(command: str) -> Callable[..., _Decorator]:
    """`click.option` for the options of one command."""

    def option(*declarations: str, **settings: Any) -> _Decorator:
        typed = max((item for item in declarations if item.startswith("-")), key=len).lstrip("-")
        variable = f"LBCTL_{command}_{typed}".upper().replace("-", "_")
        return click.option(*declarations, envvar=variable, show_envvar=True, **settings)

    return option
