"""A client for the API of a running `lbctl serve`, which handles the address and the token and returns typed responses.

Requests go only to the given server. The client ignores proxy settings in the environment, redirects and netrc files.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from lbctl.api import token_guard, tokens
from lbctl.api.codec import SchemaError, decode, decode_json, is_unicode
from lbctl.api.codec import plain as plain_json
from lbctl.base import ports
from lbctl.base.bounded import TooLargeError, whole_of
from lbctl.base.deadline import within
from lbctl.base.errors import reason_of
from lbctl.base.foreign_json import InvalidJsonError, count_values, parse_object
from lbctl.base.hosts import is_loopback
from lbctl.base.printable import plain

if TYPE_CHECKING:
    import requests

DEFAULT_SERVER = f"http://127.0.0.1:{ports.API}"
TOKEN = "/var/lib/lbctl/api-token"
"""Default path where `serve` creates its token."""
NO_TOKEN = ""
"""Value of the token-file parameter that disables the token, even for the default server."""
_TOKEN_FORM = re.compile(rb"[!-~]+")
_GIVE = "pass a token with --token-file, or set LBCTL_TOKEN_FILE for all commands"
_CONNECT = 5.0
TIMEOUTS = {"GET": 15.0}
WRITE_TIMEOUT = 60.0
"""Seconds to wait for the complete response to a write request. A reload, for example, first reads all files."""
MAX_ANSWER_BYTES = 48 << 20
"""The maximum size of a response. The response for a fleet with 10,000 replicas is smaller."""
MAX_VALUES = 5_000_000
"""The maximum number of values in a response."""
_OK = 200
_UNAUTHORIZED = 401
_NO_HTTP = "the server at this address does not use HTTP; this may be the port for proxies"
T = TypeVar("T")


class ApiError(Exception):
    """The API did not carry out a request. The message explains the reason to the user."""


class UnavailableError(ApiError):
    """The server cannot be reached, denies access, or is not an `lbctl serve` of this version."""


class RejectedError(ApiError):
    """The server rejects the content of the request."""


class InvalidRequestError(ApiError):
    """The request cannot be sent, because it contains a string that is not valid Unicode."""


class InvalidUrlError(ApiError):
    """The URL of the server has an invalid port."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """The status, body and Date header of an HTTP response."""

    status: int
    content: bytes
    date: str


@dataclass(frozen=True, slots=True)
class ServeClient:
    """A running control plane.

    Every method raises UnavailableError if the server does not respond or returns types from another version, and
    RejectedError if the server rejects the request.
    """

    url: str
    """The URL of the API."""
    token_file: str | None
    """Path of the token file. If it is None, the default server gets the token in the state directory, and other
    servers get no token."""
    ca: str | None
    """CA bundle to verify the server's certificate, or None for the system's CAs."""
    trusted: tuple[Path, ...] = ()
    """Paths whose owners may receive the token, in addition to root, this user and the token file's owner."""

    def get(self, path: str, kind: type[T]) -> T:
        """Get the document at the path, decoded as this type."""
        return self._decoded(path, kind, self._request("GET", path, None))

    def post(self, path: str, body: object, kind: type[T]) -> T:
        """Send a body of a schema type, and return the response decoded as this type."""
        return self._decoded(path, kind, self._request("POST", path, plain_json(body)))

    def delete(self, path: str, body: object, kind: type[T]) -> T:
        """Send a body of a schema type, and return the response decoded as this type."""
        return self._decoded(path, kind, self._request("DELETE", path, plain_json(body)))

    def _decoded(self, path: str, kind: type[T], answer: _Answer) -> T:
        """Decode a response. An unexpected response is parsed a second time, more slowly, to determine the reason."""
        if answer.status == _OK and count_values(answer.content) <= MAX_VALUES:
            with suppress(SchemaError):
                return decode_json(kind, answer.content)
        url = self.url.rstrip("/") + path
        try:
            return decode(kind, _object(url, answer))
        except SchemaError as error:
            raise UnavailableError(
                f"{url} returned a response from a different lbctl version: {plain(str(error))}"
            ) from None

    def date(self) -> str:
        """Return the server's `Date` header; empty if there is none. The request is sent without a token."""
        return self._send("GET", "/healthz", None, "").date

    def _request(self, method: str, path: str, body: dict[str, Any] | None) -> _Answer:
        if not is_unicode(body):
            raise InvalidRequestError("an argument is not valid UTF-8 text, which the API requires")
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
        try:
            return within(patience, lambda: self._sent(method, url, body, token, patience))
        except TimeoutError:
            raise UnavailableError(f"{url} did not respond within {patience:g} s; is `lbctl serve` running?") from None

    def _sent(self, method: str, url: str, body: dict[str, Any] | None, token: str, patience: float) -> _Answer:
        """Send a request. A request with a token but without TLS is sent only to processes of trusted users."""
        import requests

        headers = {"authorization": f"Bearer {token}"} if token else {}
        verify = self.ca or os.environ.get("REQUESTS_CA_BUNDLE") or True
        is_guarded = bool(token) and self._is_in_clear
        try:
            with self._guarded_session() if is_guarded else requests.Session() as session:
                session.trust_env = False
                with session.request(
                    method, url, json=body, headers=headers, timeout=(_CONNECT, patience), verify=verify,
                    allow_redirects=False, stream=True,
                ) as response:  # fmt: skip
                    content = whole_of(response.iter_content(1 << 16), MAX_ANSWER_BYTES)
                    return _Answer(response.status_code, content, str(response.headers.get("date", "")))
        except token_guard.UntrustedListenerError as error:
            raise UnavailableError(f"no token is sent: {error}") from None
        except TooLargeError:
            raise UnavailableError(f"{url} is not an lbctl serve: its response is too large") from None
        except (requests.RequestException, OSError) as error:
            raise UnavailableError(
                f"{url} is not responding: {innermost_reason(error)}; is `lbctl serve` running?"
            ) from None

    def _guarded_session(self) -> requests.Session:
        return token_guard.guarded_session(port_of(self.url), self._trusted_users())

    def _trusted_users(self) -> frozenset[int]:
        return token_guard.trusted_users(Path(self.token_file or TOKEN), Path(TOKEN).parent, *self.trusted)

    def token_for_stream(self) -> str:
        """Check the listener and return the token, for a connection that another client opens.

        Raises ConnectionError if the listener may belong to another user.
        """
        token = self.token()
        if token and self._is_in_clear:
            try:
                token_guard.check_port(urlsplit(self.url).hostname or "", port_of(self.url), self._trusted_users())
            except token_guard.UntrustedListenerError as error:
                raise ConnectionError(f"no token is sent: {error}") from None
        return token

    def token(self) -> str:
        """Return the given token. For the default server on this machine, return the token that `serve` created."""
        if self.token_file == NO_TOKEN or (self.token_file is None and self.url != DEFAULT_SERVER):
            return ""
        try:
            accepted = tokens.parse(Path(self.token_file or TOKEN).read_bytes())
        except OSError as error:
            if self.token_file is None:
                return ""
            raise UnavailableError(
                f"the token file {self.token_file} cannot be read: {innermost_reason(error)}"
            ) from None
        if len(accepted) != 1 or not _TOKEN_FORM.fullmatch(accepted[0].secret):
            content = f"{len(accepted)} tokens" if len(accepted) != 1 else "a token with spaces or non-ASCII characters"
            raise UnavailableError(
                f"the token file {self.token_file or TOKEN} contains {content}: specify a file with exactly one token"
            )
        if not _is_private(self.url):
            raise UnavailableError(
                f"the token is not sent to {self.url}, because it would cross the network unencrypted"
            )
        return accepted[0].secret.decode()


def port_of(url: str) -> int:
    """Return the port of an HTTP URL. Raises InvalidUrlError if it is not a valid port."""
    parts = urlsplit(url)
    try:
        return parts.port or ports.BY_SCHEME[parts.scheme]
    except ValueError:
        raise InvalidUrlError(f"{plain(url)} has an invalid port") from None


def _is_private(url: str) -> bool:
    return urlsplit(url).scheme == "https" or is_on_loopback(url)


def is_on_loopback(url: str) -> bool:
    """Return whether the URL refers to this machine."""
    return is_loopback(urlsplit(url).hostname or "")


def _object(url: str, answer: _Answer) -> dict[str, Any]:
    status = answer.status
    try:
        content = parse_object(answer.content, MAX_VALUES)
    except InvalidJsonError:
        raise UnavailableError(f"{url} is not an lbctl serve: it returned status {status} without JSON") from None
    reason = plain(str(content.get("error")))
    if status in (401, 403):
        raise UnavailableError(f"{url} denies access: {reason} ({_GIVE})")
    if status == 400:
        raise RejectedError(reason)
    if status != _OK:
        raise UnavailableError(f"{url} returned status {status}: {reason}")
    return content


def innermost_reason(error: Exception) -> str:
    """Return the root cause, unwrapped from the library's exceptions."""
    inner: BaseException = error
    while inner.__context__ is not None:
        inner = inner.__context__
    reason = reason_of(inner)
    return reason if reason.isprintable() else _NO_HTTP
