"""The options of a command that talks to a running `lbctl serve`: its address and the token."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import click

from lbctl.api.client import DEFAULT_SERVER, NO_TOKEN, TOKEN
from lbctl.base.printable import plain
from lbctl.base.urls import without_user
from lbctl.cli.options import options_of

_WRITING = f"The token of its API, which this always needs; default: {TOKEN}, for the default server alone."
_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def server_options(*, writes: bool = False, tls: bool = True) -> _Decorator:
    """Add --server, --token-file, --fleet and, with `tls`, --tls-ca. `writes`: the command always needs the token.

    --fleet gives the values of the first two, so that a command never sees it.
    """
    option = options_of("")
    token = _WRITING if writes else "The token of its API, where it asks for one."
    added = (
        option(
            "--server", metavar="URL", default=DEFAULT_SERVER, show_default=True, callback=server_url,
            help="A running serve.",
        ),
        option("--token-file", metavar="FILE", help=token),
        option("--fleet", metavar="PATH", help="The fleet of serve or up: in place of --server and --token-file."),
        *((option("--tls-ca", metavar="FILE", help="Who signed its certificate; default: the system's CAs."),) * tls),
    )  # fmt: skip

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_server(*arguments: Any, fleet: str | None, **options: Any) -> Any:
            _apply_fleet(fleet, options)
            return function(*arguments, **options)

        decorated: Callable[..., Any] = with_server
        for add_option in reversed(added):
            decorated = add_option(decorated)
        return decorated

    return decorate


def _apply_fleet(fleet: str | None, options: dict[str, Any]) -> None:
    """Replace the options that the fleet gives, unless they are named as closely: the command line goes first."""
    context = click.get_current_context()
    if fleet is None or option_precedence(context, "server") >= option_precedence(context, "fleet"):
        return
    from lbctl.cli.fleet_server import server_of_fleet

    options["server"], token_file = server_of_fleet(fleet, options.get("tls_ca"))
    context.set_parameter_source("server", click.core.ParameterSource.COMMANDLINE)
    if options["token_file"] is None:
        options["token_file"] = token_file or NO_TOKEN


def option_precedence(context: click.Context, option: str) -> int:
    """Return 2 for an option of the command line, 1 for one of the environment, 0 for its default."""
    sources = click.core.ParameterSource
    levels = {sources.COMMANDLINE: 2, sources.ENVIRONMENT: 1}
    source = context.get_parameter_source(option)
    return levels.get(source, 0) if source else 0


def server_url(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    """Return the URL of `--server`, or None where it is not given. Raises UsageError for what is no URL."""
    if text is None:
        return None
    parts = urlsplit(text)
    if without_user(text) != text:
        raise click.UsageError("--server: a URL must not hold a user or password: use --token-file")
    if parts.scheme not in ("http", "https"):
        raise click.UsageError(f"--server: {plain(text)} is no URL: it begins with http:// or https://")
    if not parts.hostname:
        raise click.UsageError(f"--server: {plain(text)} names no host")
    return text
