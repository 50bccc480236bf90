"""The client of the API of a running `lbctl serve`: its address, the token, typed answers, and how they are shown.

Requests go to the given server alone: no proxy of the environment, no redirect, no netrc.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from lbctl.api import tokens
from lbctl.api.codec import SchemaError, decode, decode_json, is_unicode, json_text
from lbctl.api.codec import plain as plain_json
from lbctl.base import ports
from lbctl.base.bounded import TooLargeError, whole_of
from lbctl.base.errors import reason_of
from lbctl.base.foreign_json import InvalidJsonError, count_values, parse_object
from lbctl.base.hosts import is_loopback
from lbctl.base.urls import without_user
from lbctl.cli import terminal, token_guard
from lbctl.cli.deadline import within
from lbctl.cli.options import options_of

DEFAULT_SERVER = f"http://127.0.0.1:{ports.API}"
_TOKEN = "/var/lib/lbctl/api-token"
"""The default path at which `serve` creates its token."""
NO_TOKEN = ""
"""In place of a token file: send no token, also not to the default server."""
_TOKEN_FORM = re.compile(rb"[!-~]+")
_WRITING = f"The token of its API, which this always needs; default: {_TOKEN}, for the default server alone."
_GIVE = "give it with --token-file, or for all commands with LBCTL_TOKEN_FILE"
_CONNECT = 5.0
TIMEOUTS = {"GET": 15.0}
WRITE_TIMEOUT = 60.0
"""Seconds to wait for the whole answer of a request that writes, because a reload reads all files first."""
MAX_ANSWER_BYTES = 48 << 20
"""The maximal size of an answer, above that of a fleet with 10,000 replicas."""
MAX_VALUES = 5_000_000
"""The maximal number of values of an answer."""
_OK = 200
_UNAUTHORIZED = 401
_NO_HTTP = "what listens there does not speak HTTP, as the port for proxies does not"
T = TypeVar("T")
_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


class RemoteError(click.ClickException):
    """The server cannot be reached, or does not authorise the client."""

    exit_code = 4


@dataclass(frozen=True, slots=True)
class _Answer:
    """The status, body and Date header of an HTTP response."""

    status: int
    content: bytes
    date: str


@dataclass(frozen=True, slots=True)
class ServeClient:
    """A running control plane.

    Every method raises RemoteError if the server does not answer or answers with another version's types, and
    ClickException if it rejects the request.
    """

    url: str
    """The URL of its API."""
    token_file: str | None
    """The file with the token; None: for the default server the one in its state, for others none."""
    ca: str | None
    """The file of the authorities that sign its certificate; None: those of the system."""

    def get(self, path: str, kind: type[T]) -> T:
        """Return the document of this type at the path."""
        return self._decoded(path, kind, self._request("GET", path, None))

    def get_object(self, path: str) -> dict[str, Any]:
        """Return the JSON object at the path, for commands that must also read other versions' answers."""
        return _object(self.url.rstrip("/") + path, self._request("GET", path, None))

    def post(self, path: str, body: object, kind: type[T]) -> T:
        """Send a body of the schema, and return the answer of this type."""
        return self._decoded(path, kind, self._request("POST", path, plain_json(body)))

    def delete(self, path: str, body: object, kind: type[T]) -> T:
        """Send a body of the schema, and return the answer of this type."""
        return self._decoded(path, kind, self._request("DELETE", path, plain_json(body)))

    def _decoded(self, path: str, kind: type[T], answer: _Answer) -> T:
        """Decode an answer. An answer that is not as expected is read in a slower way, which finds out the reason."""
        if answer.status == _OK and count_values(answer.content) <= MAX_VALUES:
            with suppress(SchemaError):
                return decode_json(kind, answer.content)
        url = self.url.rstrip("/") + path
        try:
            return decode(kind, _object(url, answer))
        except SchemaError as error:
            raise RemoteError(f"{url} answers as another version of lbctl does: {plain(str(error))}") from None

    def date(self) -> str:
        """Return the server's `Date`, empty without one. It sends no token."""
        return self._send("GET", "/healthz", None, "").date

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> _Answer:
        if not is_unicode(body):
            raise click.UsageError("an argument is not UTF-8 text, and the API takes no other")
        token = self.token()
        is_asked_first = method == "GET" and self._is_in_clear
        answer = self._send(method, path, body, "" if is_asked_first else token)
        if is_asked_first and token and answer.status == _UNAUTHORIZED:
            answer = self._send(method, path, body, token)
        return answer

    @property
    def _is_in_clear(self) -> bool:
        return urlsplit(self.url).scheme == "http"

    def _send(self, method: str, path: str, body: dict[str, Any] | None, token: str) -> _Answer:
        url, patience = self.url.rstrip("/") + path, TIMEOUTS.get(method, WRITE_TIMEOUT)
        users = self._trusted_users() if token and self._is_in_clear else None  # a thread has no context of the command
        try:
            return within(patience, lambda: self._sent(method, url, body, token, patience, users))
        except TimeoutError:
            raise RemoteError(f"{url} does not answer within {patience:g} s; is `lbctl serve` running?") from None

    def _sent(
        self, method: str, url: str, body: dict[str, Any] | None, token: str, patience: float,
        users: frozenset[int] | None,
    ) -> _Answer:  # fmt: skip
        """Send a request. `users`: whose processes may get it; None: it has no token, or goes over TLS."""
        import requests

        headers = {"authorization": f"Bearer {token}"} if token else {}
        verify = self.ca or os.environ.get("REQUESTS_CA_BUNDLE") or True
        own = requests.Session() if users is None else token_guard.guarded_session(port_of(self.url), users)
        try:
            with own as session:
                session.trust_env = False
                with session.request(
                    method, url, json=body, headers=headers, timeout=(_CONNECT, patience), verify=verify,
                    allow_redirects=False, stream=True,
                ) as response:  # fmt: skip
                    content = whole_of(response.iter_content(1 << 16), MAX_ANSWER_BYTES)
                    return _Answer(response.status_code, content, str(response.headers.get("date", "")))
        except token_guard.UntrustedListenerError as error:
            raise RemoteError(f"no token is sent: {error}") from None
        except TooLargeError:
            raise RemoteError(f"{url} is not an lbctl serve: its answer has no end") from None
        except (requests.RequestException, OSError) as error:
            raise RemoteError(f"{url} does not answer: {innermost_reason(error)}; is `lbctl serve` running?") from None

    def _trusted_users(self) -> frozenset[int]:
        return token_guard.trusted_users(Path(self.token_file or _TOKEN), Path(_TOKEN).parent)

    def token_for_stream(self) -> str:
        """Return the token after a check of the listener, for a connection that another client makes.

        Raises ConnectionError if it may belong to another user.
        """
        token = self.token()
        if token and self._is_in_clear:
            try:
                token_guard.check_port(urlsplit(self.url).hostname or "", port_of(self.url), self._trusted_users())
            except token_guard.UntrustedListenerError as error:
                raise ConnectionError(f"no token is sent: {error}") from None
        return token

    def token(self) -> str:
        """Return the given token; only for a server on this machine, the one that `serve` created here."""
        if self.token_file == NO_TOKEN or (self.token_file is None and self.url != DEFAULT_SERVER):
            return ""
        try:
            accepted = tokens.parse(Path(self.token_file or _TOKEN).read_bytes())
        except OSError as error:
            if self.token_file is None:
                return ""
            raise RemoteError(f"the token file {self.token_file} cannot be read: {innermost_reason(error)}") from None
        if len(accepted) != 1 or not _TOKEN_FORM.fullmatch(accepted[0].secret):
            content = f"{len(accepted)} tokens" if len(accepted) != 1 else "a token with blanks or beyond ASCII"
            raise RemoteError(f"the token file {self.token_file or _TOKEN} has {content}: give a file with one token")
        if not _is_private(self.url):
            raise RemoteError(f"no token is sent to {self.url}: it would go over the network in the clear")
        return accepted[0].secret.decode()


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


form_choice = click.Choice(["table", "json", "yaml"])


def show(value: Any, form: str) -> None:
    """Print `value`, of JSON's own types or of the schema, as JSON or YAML on standard output."""
    click.echo(as_text(value, form))


def as_text(value: Any, form: str) -> str:
    """Return `value`, of JSON's own types or of the schema, as JSON or YAML."""
    text = json_text(value, indent=2)
    if form == "json":
        return text
    import yaml

    document: str = yaml.safe_dump(json.loads(text), sort_keys=False, allow_unicode=True, width=120)
    return document.rstrip("\n")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows on standard output, with each column as wide as its content and as the terminal allows."""
    click.echo(table_text(head, rows))


def table_text(head: Sequence[str], rows: Iterable[Sequence[str]], colours: Mapping[str, str] | None = None) -> str:
    """Return what `table` prints. `colours`: the text of a cell → its colour on a terminal."""
    return terminal.format_table(head, [tuple(plain(cell) for cell in row) for row in rows], colours)


def age(seconds: float | None) -> str:
    """Format a duration in seconds as `3s`, `12m`, `5h` or `9d`; `-` for None."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{int(seconds // size)}{unit}"
    return f"{max(0, int(seconds))}s"


def plain(cell: str) -> str:
    """Escape control characters, because the text may come from a proxy."""
    return cell if cell.isprintable() else ascii(cell)[1:-1]


def port_of(url: str) -> int:
    """Return the port of a URL of HTTP. Raises UsageError for one that is not a port."""
    parts = urlsplit(url)
    try:
        return parts.port or ports.BY_SCHEME[parts.scheme]
    except ValueError:
        raise click.UsageError(f"--server: {plain(url)} has an invalid port") from None


def _is_private(url: str) -> bool:
    return urlsplit(url).scheme == "https" or is_on_loopback(url)


def is_on_loopback(url: str) -> bool:
    """Return whether the URL names this machine."""
    return is_loopback(urlsplit(url).hostname or "")


def _object(url: str, answer: _Answer) -> dict[str, Any]:
    status = answer.status
    try:
        content = parse_object(answer.content, MAX_VALUES)
    except InvalidJsonError:
        raise RemoteError(f"{url} is not an lbctl serve: it answered {status}, and no JSON") from None
    reason = plain(str(content.get("error")))
    if status in (401, 403):
        raise RemoteError(f"{url} denies access: {reason} ({_GIVE})")
    if status == 400:
        raise click.ClickException(reason)
    if status != _OK:
        raise RemoteError(f"{url} answered {status}: {reason}")
    return content


def innermost_reason(error: Exception) -> str:
    """Return the innermost reason, without the library's wrapping."""
    inner: BaseException = error
    while inner.__context__ is not None:
        inner = inner.__context__
    reason = reason_of(inner)
    return reason if reason.isprintable() else _NO_HTTP
