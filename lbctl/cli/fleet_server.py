"""The address and the token of a running `serve` or `lbctl up`, found by the files of its fleet."""

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

    The URL is the one at which the last `serve` with the fleet's state has opened its API. Without it, the section
    `control` gives the URL, also if the files have errors elsewhere. The file is None if it cannot be read or has
    several tokens: reading needs none on loopback. Raises ClickException if the section cannot be read.
    """
    from lbctl.serve.fleet.reader import read_control
    from lbctl.serve.settings import last_api, settings

    section, options = read_control((path,)), _options(path)
    chosen = settings(options, section.source)
    token = str(chosen.token) if _holds_one_token(chosen.token) else None
    last = last_api(chosen.state) if options.api_bind is None and not section.lacks("state") else ""
    if last:
        return _from_here(last), token
    if section.lost is not None and section.lacks("api"):
        raise click.ClickException(f"--fleet: {section.lost}")
    if section.source is None:
        click.echo(f"lbctl: warning: --fleet: {_problem(path)}; without `control`, its defaults are used", err=True)
    bind = chosen.control.api_bind
    if bind.path:
        raise click.ClickException(f"--fleet: the API of {path} listens on {bind}, which no command can connect to")
    scheme = "https" if chosen.control.api_tls else "http"
    return f"{scheme}://{_reachable(bind)}", token


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


def _from_here(url: str) -> str:
    """Return the URL with an address that this machine can connect to."""
    from lbctl.cli.listen_address import address

    scheme, _, text = url.partition("://")
    bind = address("--fleet", text)
    assert bind is not None, "the text was given"
    return f"{scheme}://{_reachable(bind)}"


def _problem(path: str) -> str:
    """Return why no fleet can be read at the path."""
    from lbctl.base.diagnostics import Diagnostics
    from lbctl.model.fleet import parse
    from lbctl.model.load import texts

    diagnostics = Diagnostics()
    parse(texts((path,), diagnostics), diagnostics)
    return next((str(item) for item in diagnostics if item.severity == "error"), f"{path} has no fleet")


def _reachable(bind: Address) -> Address:
    from lbctl.base.hosts import from_here
    from lbctl.ir.address import Address

    return Address(from_here(bind.host), bind.port)


def _holds_one_token(file: Path) -> bool:
    try:
        return len(tokens.parse(file.read_bytes())) == 1
    except OSError:
        return False
