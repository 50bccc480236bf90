"""Locations: files, networks, URLs."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import PlainValidator

from lbctl.base.diagnostics import show
from lbctl.ir.store_url import parse_store_url
from lbctl.model.section import refuse
from lbctl.model.values.grammar import schema
from lbctl.model.values.quantities import PORT

_FILE = r"[A-Za-z0-9._/][A-Za-z0-9._/@+=:,~ -]{0,1023}"
_FILE_WHOLE = rf"(?!(.*/)?\.\.(/|$))(?!.*/-)(?!(.*/)? )(?!.* (/|$))(?!.*/$)(?![^/]*:){_FILE}"
"""`_FILE` together with the conditions that `_file` checks on its parts."""


def _file(value: object) -> str:
    hint = "use letters, digits, spaces and . _ / @ + = : , ~ -; a name must not start with -"
    if isinstance(value, str) and value.startswith("~"):
        hint = "~ is not replaced by a home directory: write an absolute path, for example /home/NAME/FILE"
    if not isinstance(value, str) or not re.fullmatch(_FILE, value):
        raise refuse("LB013", f"{show(value)} is not a file path", hint)
    parts = value.split("/")
    if ":" in parts[0]:
        raise refuse(
            "LB013",
            f"{show(value)} is not a file path",
            "a colon is only allowed after a /; schemes such as data: are not supported",
        )
    if any(part.startswith("-") or part != part.strip() for part in parts) or value.endswith("/"):
        raise refuse("LB013", f"{show(value)} is not a file path", hint)
    if ".." in parts:
        raise refuse(
            "LB502", f"{show(value)} contains ..", "write an absolute path, or a path below the fleet's directory"
        )
    return value


def _absolute(value: object) -> str:
    if isinstance(value, str) and value and not value.startswith("/"):
        raise refuse(
            "LB145",
            f"{show(value)} is not an absolute path, and a proxy starts in another directory",
            "write a path that starts with /, for example /run/haproxy/admin.sock",
        )
    return _file(value)


FilePath = Annotated[
    str,
    PlainValidator(_file),
    schema(
        _FILE_WHOLE,
        "a file: a path, absolute or relative to the directory of the fleet file that contains it; a relative path "
        "must stay below the fleet's directory",
    ),
]
AbsolutePath = Annotated[str, PlainValidator(_absolute), schema(f"(?=/){_FILE_WHOLE}", "a socket: an absolute path")]
_IPV4 = r"[0-9]{1,3}(\.[0-9]{1,3}){3}"
_NETWORK = rf"({_IPV4}|([0-9A-Fa-f]{{0,4}}:){{2,8}}([0-9A-Fa-f]{{0,4}}|{_IPV4}))(/[0-9]{{1,3}})?"


def _network(value: object) -> str:
    try:
        if isinstance(value, str) and re.fullmatch(_NETWORK, value):
            return str(ipaddress.ip_network(value, strict=True))
    except ValueError:
        pass
    raise refuse("LB013", f"{show(value)} is not a network", "for example 10.0.0.0/8 or 2001:db8::/32")


Network = Annotated[str, PlainValidator(_network), schema(_NETWORK, "a network: for example 10.0.0.0/8")]
_URL_CHARACTER = r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%{}-]"
_PLACEHOLDER = re.compile(r"\{(address|host|port|name|device)\}")


def _url(value: object) -> str:
    hint = "for example http://{host}:{port}/metrics"
    if not isinstance(value, str) or not re.fullmatch(rf"{_URL_CHARACTER}{{1,1024}}", value):
        raise refuse("LB013", f"{show(value)} is not a URL", hint)
    filled = _PLACEHOLDER.sub("1", value)
    if "{" in filled or "}" in filled:
        raise refuse(
            "LB013",
            f"{show(value)} contains an unknown word in braces",
            "use {address}, {host}, {port}, {name} or {device}",
        )
    try:
        parts = urlsplit(filled)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise refuse("LB013", f"{show(value)} is not a URL", hint) from None
    if parts.scheme not in {"http", "https"} or not host:
        raise refuse("LB013", f"{show(value)} is not an http or https URL", hint)
    if parts.username is not None or parts.password is not None:
        raise refuse("LB504", "a URL must not contain a user or password", hint)
    return value


Url = Annotated[
    str,
    PlainValidator(_url),
    schema(rf"https?://{_URL_CHARACTER}{{1,1000}}", "a URL: with http or https, without a password"),
]
_CHECK_URL = rf"http://({_IPV4}|\[[0-9A-Fa-f:.]+\])(:{PORT})?(/[A-Za-z0-9._~/-]*)?"


def _check_url(value: object) -> str:
    hint = "write an IP address, for example http://127.0.0.1:9191/check"
    if not isinstance(value, str) or len(value) > 1024 or not re.fullmatch(_CHECK_URL, value):
        raise refuse("LB144", f"{show(value)} is not a valid URL of an authorization service", hint)
    try:
        ipaddress.ip_address(urlsplit(value).hostname or "")
    except ValueError:
        raise refuse("LB144", f"{show(value)} is not a valid URL of an authorization service", hint) from None
    return value


CheckUrl = Annotated[str, PlainValidator(_check_url), schema(_CHECK_URL, "a URL: with http and an IP address")]
_STORE_HOST = rf"([A-Za-z0-9._-]{{1,253}}|\[[0-9A-Fa-f:.]{{2,45}}\])(:{PORT})?"
_STORE_HOSTS = rf"{_STORE_HOST}(,{_STORE_HOST}){{0,8}}"
_STORE = (
    rf"rediss?://{_STORE_HOST}(/[0-9]{{1,4}})?"
    rf"|rediss?\+sentinel://{_STORE_HOSTS}/[A-Za-z0-9._-]{{1,128}}(/[0-9]{{1,4}})?"
    rf"|etcds?://{_STORE_HOSTS}/?"
    r"|kubernetes://[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/[a-z0-9]([a-z0-9.-]{0,238}[a-z0-9])?"
)


def _store_url(value: object) -> str:
    hint = "for example redis://store.example:6379/0, etcds://etcd.example:2379 or kubernetes://NAMESPACE/NAME"
    if isinstance(value, str) and "@" in value:
        hint = "write `user: NAME` and `password: {file: …}` next to `url`"
        raise refuse("LB504", "a URL must not contain a user or password", hint)
    if isinstance(value, str) and re.fullmatch(rf"rediss?://{_STORE_HOSTS}(/.*)?", value) and "," in value:
        hint = "for several Sentinel hosts, write redis+sentinel://HOST,HOST/NAME/DATABASE"
    if not isinstance(value, str) or not re.fullmatch(_STORE, value):
        raise refuse("LB013", f"{show(value)} is not a store URL", hint)
    try:
        parse_store_url(value)
    except ValueError as error:
        raise refuse("LB013", f"{show(value)} is not a store URL", str(error)) from None
    return value


StoreUrl = Annotated[
    str,
    PlainValidator(_store_url),
    schema(f"({_STORE})", "a store URL, without a password"),
]
