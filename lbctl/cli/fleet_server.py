"""The address and the token of a running `serve`: those of `lbctl up`, or as the section `control` gives them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lbctl.serve.api import tokens

if TYPE_CHECKING:
    from lbctl.ir.address import Address
    from lbctl.serve.settings import Options


def server_of_fleet(path: str) -> tuple[str, str | None]:
    """Return the URL of the API of the `serve` that runs the fleet at the path, and the file of its token.

    Where `lbctl up` runs the fleet, it is that one's; else the section `control` of the fleet gives both. The
    file is None where it cannot be read or holds several tokens: reading needs none on loopback. Raises ClickException
    where the fleet cannot be read.
    """
    from lbctl.serve.settings import parse_lenient, settings

    source = parse_lenient((path,))
    if source is None:
        raise click.ClickException(f"--fleet: {_problem(path)}")
    chosen = settings(_options(path), source)
    bind = chosen.control.api_bind
    if bind.path:
        raise click.ClickException(f"--fleet: the API of {path} listens on {bind}, which no command can connect to")
    scheme = "https" if chosen.control.api_tls else "http"
    return f"{scheme}://{_reachable(bind)}", str(chosen.token) if _holds_one_token(chosen.token) else None


def _options(path: str) -> Options:
    """Return the options of the `serve` that `lbctl up` has started for this fleet; none where it does not run."""
    from lbctl.cli.listen_address import address
    from lbctl.serve.settings import Options
    from lbctl.up.places import NoHomeError, home_of

    try:
        home = home_of((path,))
    except NoHomeError:
        return Options((path,))
    api = home.api
    return Options((path,), str(home.state), api_bind=address("--fleet", api)) if api else Options((path,))


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
