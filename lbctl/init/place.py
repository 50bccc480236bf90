"""The URLs that `init` was given, as places to ask: a scheme, a host and a port, and nothing else.

A user, a password, a query or a path of one's own is refused before anybody is asked, and so are the addresses where
clouds hand out credentials. A URL that may hold a secret is named by its number, never repeated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from lbctl.base.diagnostics import Diagnostic, Diagnostics, show
from lbctl.base.quantities import QuantityError, parse_host
from lbctl.serve.resolve import UnresolvedError, answer, is_ip

CODE = "LB962"
_HINT = "as http://gpu1:8000"
_FORM = re.compile(r"[!-~]{1,1024}")
_PATHS = frozenset({"", "/", "/v1", "/v1/", "/metrics"})
"""What people copy with an address; `init` knows by itself what to ask for."""
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """`host`: a name, or an address without brackets."""

    scheme: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """As a replica's `address` writes it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.address}"


def places(urls: Sequence[str], diagnostics: Diagnostics) -> list[Place]:
    """Each place once, in the order of the URLs; what is wrong with the others goes to `diagnostics`."""
    found: dict[Place, None] = {}
    for number, url in enumerate(urls, 1):
        try:
            found.setdefault(_place(url))
        except QuantityError as error:
            secret = not _FORM.fullmatch(url) or any(character in url for character in "@?#")
            name = f"URL {number} (not shown)" if secret else show(url)
            diagnostics.add(Diagnostic(CODE, f"{name}: {error}", hint=error.hint or _HINT))
    return list(found)


def _place(url: str) -> Place:
    parts = _split(url)
    if parts.scheme not in _PORTS:
        raise QuantityError("not an http or https URL", _HINT)
    if "@" in parts.netloc:
        raise QuantityError("it holds a user or a password; init sends none", _HINT)
    if parts.query or parts.fragment or parts.path not in _PATHS:
        raise QuantityError("more than a scheme, a host and a port: init knows what to ask for", _HINT)
    bracketed = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else (parts.hostname or "")
    host, _ = parse_host(bracketed)
    place = Place(parts.scheme, host, _PORTS[parts.scheme] if parts.port is None else parts.port)
    _check(place)
    return place


def _split(url: str) -> SplitResult:
    try:
        if not _FORM.fullmatch(url):
            raise ValueError
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise QuantityError("not a URL", _HINT) from None
    return parts


def _check(place: Place) -> None:
    if place.port == 0:
        raise QuantityError("the port must be a number from 1 to 65535", _HINT)
    if is_ip(place.host):
        try:
            answer([place.host])
        except UnresolvedError:
            raise QuantityError("an address that no replica can have", _HINT) from None
