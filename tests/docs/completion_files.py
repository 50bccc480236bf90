"""Make docs/share: the output of `lbctl completion`, at the paths where the bash, zsh and fish packages look for it."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial

from lbctl.cli import run

_PLACES = {
    "bash": "docs/share/bash-completion/completions/lbctl",
    "zsh": "docs/share/zsh/site-functions/_lbctl",
    "fish": "docs/share/fish/vendor_completions.d/lbctl.fish",
}


def pages() -> dict[str, Callable[[], str]]:
    """Return, for each path in the repository, the function that makes its text."""
    return {place: partial(_script, shell) for shell, place in _PLACES.items()}


def _script(shell: str) -> str:
    printed = io.StringIO()
    with redirect_stdout(printed):
        assert run(["completion", shell]) == 0
    return printed.getvalue().strip() + "\n"
