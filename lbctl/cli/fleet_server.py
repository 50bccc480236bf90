"""Finds the address and token of a running `serve` or `lbctl up` from its fleet files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from lbctl.api import tokens
from lbctl.api.any_version import AnyVersionStatus
from lbctl.api.client import NO_TOKEN, ApiError, ServeClient, UnavailableError
from lbctl.cli import running_fleet

if TYPE_CHECKING:
    from lbctl.ir.address import Address
    from lbctl.model.control_section import ControlSection
    from lbctl.serve.settings import Options, ServeSettings


def server_of_fleet(path: str, ca: str | None = None) -> ServeClient:
    """Return a client for the `serve` that runs the fleet at the path. `ca` is the CA bundle for its API.

    The URL is the API address that the last `serve` recorded in the fleet's state. If none is recorded, the URL is
    taken from the `control` section, even if the files contain errors elsewhere. The client has no token if the token
    file is unreadable or contains several tokens, or if the URL belongs to another fleet. Reads over loopback do not
    need a token. Raises ClickException if the section cannot be read. Raises UnavailableError if the files set neither
    a state directory nor an API address and the URL belongs to another fleet.
    """
    from lbctl.serve.fleet.reader import read_control
    from lbctl.serve.settings import settings

    section, options = read_control((path,)), _options(path)
    chosen = settings(options, section.source)
    url, token = _place(path, section, options, chosen, ca)
    return ServeClient(url, token or NO_TOKEN, ca, (chosen.state,))


def _place(
    path: str, section: ControlSection, options: Options, chosen: ServeSettings, ca: str | None
) -> tuple[str, str | None]:
    """Return the API's URL and token file (or None) for `server_of_fleet`."""
    from lbctl.model.node import descend
    from lbctl.serve.settings import last_api

    token = str(chosen.token) if _holds_one_token(chosen.token) else None
    if options.api_bind is not None:
        return f"{_scheme(chosen)}://{_reachable(options.api_bind)}", token
    named = [key for key in ("state", "api") if section.source and descend(section.source.root, ("control", key))]
    bind = chosen.control.api_bind
    url = "" if bind.path else f"{_scheme(chosen)}://{_reachable(bind)}"
    last = _from_here(last_api(chosen.state)) if not section.lacks("state") else ""
    if last:
        return _identified(path, last, token, ca, is_named="state" in named or ("api" in named and last == url))
    if section.lost is not None and section.lacks("api"):
        raise click.ClickException(f"--fleet: {section.lost}")
    if section.source is None:
        click.echo(f"lbctl: warning: --fleet: {_problem(path)}; using the defaults of `control`", err=True)
    if not url:
        raise click.ClickException(f"--fleet: the API of {path} listens on {bind}, which commands cannot connect to")
    return _identified(path, url, token, ca, is_named="api" in named)


def _identified(path: str, url: str, token: str | None, ca: str | None, *, is_named: bool) -> tuple[str, str | None]:
    """Return the URL and the token file, which may be in the state directory that the API at the URL reports.

    The request contains no token, because another process may use the address. If the API reports another fleet, print
    a warning and return no token if the files name the address (`is_named`); otherwise, raise UnavailableError. If none
    of the reported paths exist on this machine, for example in a container, it may be the same fleet.
    """
    from lbctl.serve.settings import last_api

    try:
        status = ServeClient(url, NO_TOKEN, ca).get("/api/v1/status", AnyVersionStatus)
    except ApiError:
        return url, token if is_named else None  # the command reports the error if it needs a response
    names = running_fleet.names_of(status)
    if names and not running_fleet.runs(status, path):
        if not is_named and not running_fleet.is_elsewhere(status):
            raise UnavailableError(
                f"--fleet: no running serve was found for {path}, and serve at {url} runs {names} (start {path} with "
                "`lbctl up` or `lbctl serve`, or use --server)"
            )
        click.echo(f"lbctl: warning: --fleet: serve at {url} runs {names}, not {path}", err=True)
        return url, token if is_named and running_fleet.is_elsewhere(status) else None
    if (state := running_fleet.state_of(status)) is not None:
        file = running_fleet.token_in(state)
        if file is not None and _from_here(last_api(Path(state))) == url and _holds_one_token(file):
            return url, str(file)
    return url, token if names or is_named else None


def _scheme(chosen: ServeSettings) -> str:
    return "https" if chosen.control.api_tls else "http"


def _options(path: str) -> Options:
    """Return the options of the `serve` that `lbctl up` started for this fleet, or none if it is not running."""
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
    """Return the URL with an address to which this machine can connect, or an empty string for an empty URL."""
    from lbctl.cli.listen_address import address

    scheme, _, text = url.partition("://")
    bind = address("--fleet", text) if text else None
    return f"{scheme}://{_reachable(bind)}" if bind is not None else ""


def _problem(path: str) -> str:
    """Return the reason why the fleet at the path cannot be read."""
    from lbctl.base.diagnostics import Diagnostics
    from lbctl.model.fleet import parse
    from lbctl.model.load import texts

    diagnostics = Diagnostics()
    parse(texts((path,), diagnostics), diagnostics)
    return next((str(item) for item in diagnostics if item.severity == "error"), f"{path} does not contain a fleet")


def _reachable(bind: Address) -> Address:
    from lbctl.base.hosts import from_here
    from lbctl.ir.address import Address

    return Address(from_here(bind.host), bind.port)


def _holds_one_token(file: Path) -> bool:
    try:
        return len(tokens.parse(file.read_bytes())) == 1
    except OSError:
        return False
