"""The request for `lbctl explain route`, parsed from the command line, with its listener and proxies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, quote, urlsplit

import click

from lbctl.base import ports
from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position, did_you_mean, show
from lbctl.base.errors import reason_of
from lbctl.cli.proxy import unnamed
from lbctl.compile.fleet import Compiled
from lbctl.ir.listeners import Listener
from lbctl.ir.proxies import Proxy
from lbctl.targets import KINDS
from lbctl.targets.load import Loaded
from lbctl.targets.reading import Message

_METHOD = re.compile(r"[A-Z][A-Z_-]*")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+): *(.*)", re.DOTALL)
_PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))


@dataclass(frozen=True, slots=True)
class RouteQuery:
    """Command-line arguments.

    `kind` restricts the explanation to one kind of proxy. `listener` overrides the choice of the listener by the URL's
    port.
    """

    method: str
    url: str
    headers: tuple[str, ...]
    """Headers, each as `name: value`."""
    body: str | None
    """Request body, or None if it has no body."""
    kind: str | None
    listener: str | None
    form: str


def split(url: str) -> SplitResult:
    """Split a URL or path into its parts. Raises UsageError if it is not a request URL."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise click.UsageError(f"{show(url)} is not a URL: {error}") from None
    if parts.scheme not in ("", "http", "https") or (parts.scheme and not parts.hostname) or parts.username:
        raise click.UsageError(
            f"{show(url)} is not a request URL (for example https://api.example.com/v1/chat or /v1/chat)"
        )
    if not parts.scheme and not url.startswith("/"):
        raise click.UsageError(f"{url!r} does not begin with http://, https:// or /")
    return parts


def message_of(query: RouteQuery, parts: SplitResult, diagnostics: Diagnostics) -> Message | None:
    """Return the request as a client would send it, or None and a diagnostic if its body cannot be read."""
    method = query.method.upper()
    if not _METHOD.fullmatch(method) or method == "CONNECT":
        raise click.UsageError(f"routes do not support the method {query.method!r}")
    headers = tuple(_header(item) for item in query.headers)
    hosts = [value for name, value in headers if name == "host"]
    path = _quoted(parts.path or "/")
    if query.url.startswith("//"):
        path, hosts = _quoted(query.url.partition("?")[0].partition("#")[0]), hosts or [""]
    try:
        body = Path(query.body).read_bytes() if query.body is not None else b""
    except OSError as error:
        reason = f"the body cannot be read: {reason_of(error)}"
        diagnostics.add(Diagnostic("LB001", reason, Position(str(query.body))))
        return None
    return Message(method, hosts[0] if hosts else parts.netloc, path, headers, body, _quoted(_query(query.url)))


def _query(url: str) -> str:
    return url.partition("#")[0].partition("?")[2]


def _quoted(path: str) -> str:
    """Return the path as a client would send it. Non-UTF-8 bytes from the command line are sent unchanged."""
    return quote(path, safe=_PRINTABLE, errors="surrogateescape")


def _header(text: str) -> tuple[str, str]:
    match = _HEADER.fullmatch(text)
    if match is None:
        raise click.UsageError(f"{text!r} is not a header: write 'name: value'")
    return match[1].lower(), match[2].strip()


def listener_of(compiled: Compiled, name: str | None, parts: SplitResult) -> Listener:
    """Return the specified listener, the listener at the URL's port, or the only listener.

    If the only listener has a different port, a notice is printed. Raises UsageError if no listener can be chosen.
    """
    listeners = {item.name: item for item in compiled.topology.listeners}
    if name is not None:
        if name not in listeners:
            hint = did_you_mean(name, listeners) or f"its listeners: {', '.join(listeners) or 'none'}"
            raise click.UsageError(f"the fleet has no listener {name!r}; {hint}")
        return listeners[name]
    port = parts.port or ports.BY_SCHEME.get(parts.scheme)
    at_port = [item for item in listeners.values() if item.bind.port == port]
    candidates = at_port or list(listeners.values())
    if len(candidates) == 1:
        if port is not None and not at_port:
            notice = (
                f"no listener has port {port}: using the only listener, {candidates[0].name} ({candidates[0].bind})"
            )
            click.echo(f"lbctl: {notice}", err=True)
        return candidates[0]
    binds = ", ".join(f"{item.name} ({item.bind})" for item in listeners.values()) or "none"
    raise click.UsageError(f"several listeners can receive this request: choose one with --listener: {binds}")


def proxies_of(loaded: Loaded, listener: Listener, kind: str | None) -> list[Proxy]:
    """Return the fleet's proxies that have the listener, one of each kind and version.

    If the fleet has no proxy of the requested kind, or no proxies at all, return default proxies. Raises UsageError if
    the fleet has proxies but none of them has the listener.
    """
    topology = loaded.compiled.topology
    carrying = [item for item in topology.proxies if not item.listeners or listener.name in item.listeners]
    selected = [item for item in carrying if kind in (None, item.kind)]
    if topology.proxies and not selected and kind is None:
        raise click.UsageError(f"no proxy of the fleet has the listener {listener.name}")
    if not selected:
        return [unnamed(topology, each) for each in ((kind,) if kind is not None else KINDS)]
    return list({(item.kind, item.version): item for item in reversed(selected)}.values())
