"""Options for commands that use a running `lbctl serve`, and conversion of its API errors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import click

from lbctl.api.client import (
    DEFAULT_SERVER,
    TOKEN,
    ApiError,
    InvalidRequestError,
    InvalidUrlError,
    ServeClient,
    UnavailableError,
)
from lbctl.base.printable import plain
from lbctl.base.urls import without_user
from lbctl.cli.options import options_of

_WRITING = f"File with the API token, required for changes (default: {TOKEN}, for the default server only)."
_CA = "CA bundle to verify the API's certificate (default: system CAs)."
_CA = "CA bundle to verify the API's certificate (default: system CAs)."
_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class _NoAnswerError(click.ClickException):
    """The API does not respond."""

    exit_code = 4


def server_options(*, writes: bool = False, tls: bool = True) -> _Decorator:
    """Add --server, --token-file, --fleet and, with `tls`, --tls-ca.

    If `writes` is set, the command always needs the token. The command receives the API client as its argument
    `remote`. If the client raises an error, the command exits with the corresponding exit code.
    """
    option = options_of("")
    token = _WRITING if writes else "File with the API token, if the API needs one."
    added = (
        option(
            "--server", metavar="URL", default=DEFAULT_SERVER, show_default=True, callback=server_url,
            help="URL of a running lbctl serve instance.",
        ),
        option("--token-file", metavar="FILE", help=token),
        option(
            "--fleet",
            metavar="PATH",
            help="Fleet of a running lbctl serve or up, instead of --server and --token-file.",
        ),
        *((option("--tls-ca", metavar="FILE", help=_CA),) * tls),
    )  # fmt: skip

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def with_server(*arguments: Any, server: str, token_file: str | None, fleet: str | None, **options: Any) -> Any:
            ca = options.pop("tls_ca") if tls else options.get("tls_ca")
            with api_errors():
                return function(*arguments, remote=_client(server, token_file, fleet, ca), **options)

        decorated: Callable[..., Any] = with_server
        for add_option in reversed(added):
            decorated = add_option(decorated)
        return decorated

    return decorate


@contextmanager
def api_errors() -> Iterator[None]:
    """Convert API client errors to command errors with the same message and the corresponding exit code."""
    try:
        yield
    except InvalidRequestError as error:
        raise click.UsageError(str(error)) from None
    except InvalidUrlError as error:
        raise click.UsageError(f"--server: {error}") from None
    except ApiError as error:
        kind = _NoAnswerError if isinstance(error, UnavailableError) else click.ClickException
        raise kind(str(error)) from None


def _client(server: str, token_file: str | None, fleet: str | None, ca: str | None) -> ServeClient:
    """Return the client for the fleet's server, or for the --server option if its precedence is at least as high.

    The command line takes precedence over the environment. A file in --token-file takes precedence over the fleet's
    token file.
    """
    context = click.get_current_context()
    if fleet is None or option_precedence(context, "server") >= option_precedence(context, "fleet"):
        return ServeClient(server, token_file, ca)
    from lbctl.cli.fleet_server import server_of_fleet

    client = server_of_fleet(fleet, ca)
    context.set_parameter_source("server", click.core.ParameterSource.COMMANDLINE)
    return client if token_file is None else replace(client, token_file=token_file)


def option_precedence(context: click.Context, option: str) -> int:
    """Return 2 if the option is set on the command line, 1 if it is set in the environment, and 0 otherwise."""
    sources = click.core.ParameterSource
    levels = {sources.COMMANDLINE: 2, sources.ENVIRONMENT: 1}
    source = context.get_parameter_source(option)
    return levels.get(source, 0) if source else 0


def server_url(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    """Return the URL from `--server`, or None if it is not given. Raises UsageError for an invalid URL."""
    if text is None:
        return None
    parts = urlsplit(text)
    if without_user(text) != text:
        raise click.UsageError("--server: a URL must not contain a user or password (use --token-file)")
    if parts.scheme not in ("http", "https"):
        raise click.UsageError(f"--server: {plain(text)} is not a URL (use http:// or https://)")
    if not parts.hostname:
        raise click.UsageError(f"--server: {plain(text)} has no host")
    return text
