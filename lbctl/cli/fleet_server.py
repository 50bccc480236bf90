"""The address and the token of a running `serve`, as the section `control` of its fleet gives them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lbctl.serve.api import tokens

if TYPE_CHECKING:
    from lbctl.ir.address import Address


def server_of_fleet(path: str) -> tuple[str, str | None]:
    """Return the URL of the API of the `serve` that runs the fleet at the path, and the file of its token.

    The file is None where it cannot be read or holds several tokens: reading needs none on loopback. Raises
    ClickException where the fleet cannot be read.
    """
    from lbctl.serve.settings import Options, parse_lenient, settings

    source = parse_lenient((path,))
    if source is None:
        raise click.ClickException(f"--fleet: {_problem(path)}")
    chosen = settings(Options((path,)), source)
    bind = chosen.control.api_bind
    if bind.path:
        raise click.ClickException(f"--fleet: the API of {path} listens on {bind}, which no command can connect to")
    scheme = "https" if chosen.control.api_tls else "http"
    return f"{scheme}://{_reachable(bind)}", str(chosen.token) if _holds_one_token(chosen.token) else None


def _problem(path: str) -> str:
    """Return why no fleet can be read at the path."""
    from lbctl.base.diagnostics import Diagnostics
    from lbctl.model.fleet import parse
    from lbctl.model.load import texts

    diagnostics = Diagnostics()
    parse(texts((path,), diagnostics), diagnostics)
    return next((str(item) for item in diagnostics if item.severity == "error"), f"{path} holds no fleet")


def _reachable(bind: Address) -> Address:
    from lbctl.base.hosts import from_here
    from lbctl.ir.address import Address

    return Address(from_here(bind.host), bind.port)


def _holds_one_token(file: Path) -> bool:
    try:
        return len(tokens.parse(file.read_bytes())) == 1
    except OSError:
        return False
