"""Kinds of nginx arguments that a comparison accepts, and their quoting."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterable, Iterator, Sequence

from lbctl.importer.compare.sources import kinds
from lbctl.importer.nginx.values import milliseconds

_ESCAPE = re.compile(r"\\([\"'\\trn])")
_ESCAPED = {"t": "\t", "r": "\r", "n": "\n"}
_WRITTEN = {"\t": "\\t", "\r": "\\r", "\n": "\\n", "\\": "\\\\", '"': '\\"'}
_BARE = re.compile(r"[A-Za-z0-9_./:=@*-]+")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z0-9_]+)\}|([A-Za-z0-9_]+))?")
_ENVIRONMENT = re.compile(r"\$\{[A-Z][A-Z0-9_]*\}")
"""Environment variable that is substituted in a template before nginx reads it."""
RESERVED = "lbctl_"
"""Prefix of the comparison's own variables."""
_PATTERNS = {
    kind: re.compile(pattern)
    for kind, pattern in {
        "flag": "on|off",
        "number": r"[0-9]{1,6}",
        "size": r"[0-9]{1,9}[kKmMgG]?",
        "status": r"[1-9][0-9]{2}",
        "changed": r"=(?:[1-9][0-9]{2})?",
        "header": r"[A-Za-z0-9_-]{1,256}",
        "word": r"[A-Za-z0-9_.+*/-]{1,256}",
        "variable": r"\$[A-Za-z_][A-Za-z0-9_]*",
        "name": r"[A-Za-z_][A-Za-z0-9_.-]{0,127}",
    }.items()
}
_HARMLESS = re.compile(
    r"(?:arg|cookie|http|sent_http|sent_trailer|upstream|ssl|proxy_protocol|tcpinfo|realip_remote)_\w+|[0-9]"
    r"|args|binary_remote_addr|body_bytes_sent|bytes_sent|connection|connection_requests|connection_time|content_length"
    r"|content_type|document_uri|host|https|http2|http3|invalid_referer|is_args|limit_conn_status|limit_rate"
    r"|limit_req_status|msec|nginx_version|pipe|proxy_add_x_forwarded_for|proxy_host|proxy_port|query_string"
    r"|remote_addr|remote_port|remote_user|request|request_body|request_completion|request_id|request_length"
    r"|request_method|request_time|request_uri|scheme|secure_link|secure_link_expires|server_addr|server_name"
    r"|server_port|server_protocol|status|time_iso8601|time_local|uri"
)
"""nginx variables taken from the request, the response or the connection. None of them names a file on this machine."""


def value_of(token: str) -> str:
    """Return the nginx argument for a token in the file, with environment variables replaced by placeholders."""
    text = _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), token)
    return _ENVIRONMENT.sub("stand-in", text)


def quoted(value: str) -> str:
    """Return the token for an argument, quoted so that nothing in it ends the token."""
    if _BARE.fullmatch(value):
        return value
    return '"' + "".join(_WRITTEN.get(character, character) for character in value) + '"'


def variables(text: str) -> set[str] | None:
    """Return the variables in a string, in lower case as nginx reads them; None if a `$` does not start a variable."""
    names = {(match[1] or match[2] or "").lower() for match in _VARIABLE.finditer(text)}
    return None if "" in names else names


def is_harmless(text: str, known: Collection[str]) -> bool:
    """Return whether a string contains only request variables or variables in `known`."""
    if kinds.has_control(text) or is_reserved(text):
        return False
    names = variables(text)
    return names is not None and all(_HARMLESS.fullmatch(name) or name in known for name in names)


def is_of_nginx(name: str) -> bool:
    """Return whether nginx itself defines the variable."""
    return _HARMLESS.fullmatch(name) is not None


def accepts(specification: str, values: Sequence[str], known: Collection[str]) -> bool:
    """Return whether the arguments match the kinds in the specification (see `kinds.accepts`)."""
    return kinds.accepts(specification, values, lambda kind, value: _is(kind, value, known))


def first_refused(specifications: Iterable[str], values: Sequence[str], known: Collection[str]) -> str:
    """Return the first argument that does not match any of the kinds (see `kinds.first_refused`)."""
    return kinds.first_refused(specifications, values, lambda kind, value: _is(kind, value, known))


def is_reserved(text: str) -> bool:
    """Return whether a string may name a comparison's variable, which a capture or `set` could then change."""
    return RESERVED in text.lower()


def _is(kind: str, value: str, known: Collection[str]) -> bool:
    if is_reserved(value):
        return False
    if kind in _PATTERNS:
        return _PATTERNS[kind].fullmatch(value) is not None
    if kind == "time":
        return len(value) < 32 and milliseconds(value) is not None
    if kind == "network":
        return is_network(value)
    if kind == "text":
        return is_harmless(value, known)
    return not kinds.has_control(value) and ("$" not in value or kind == "regex")


def is_network(value: str) -> bool:
    """Return whether the value is an IP address or a network, so that no name is resolved."""
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        return False
    return True


def named_captures(pattern: str) -> Iterator[str]:
    """Yield the variables that a regular expression sets."""
    yield from (name.lower() for name in re.findall(r"\(\?P?[<']([A-Za-z_][A-Za-z0-9_]*)[>']", pattern))
