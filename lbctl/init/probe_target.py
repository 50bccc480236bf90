"""Parses the URLs passed to `init` into probe targets, which consist only of a scheme, a host and a port.

URLs with a user, a password, a query string or another path are rejected before anything is probed. The same applies to
addresses at which cloud providers serve credentials. A URL that may contain a secret is identified by its number and is
never printed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from lbctl.base import ports
from lbctl.base.diagnostics import Diagnostic, Diagnostics, show
from lbctl.base.hosts import is_ip
from lbctl.base.quantities import QuantityError, parse_host
from lbctl.runtime.net.resolve import UnresolvedError, usable_answer

CODE = "LB962"
_HINT = "for example http://gpu1:8000"
_FORM = re.compile(r"[!-~]{1,1024}")
_PATHS = frozenset({"", "/", "/v1", "/v1/", "/metrics"})
"""Paths that users often copy together with an address. They are ignored, because `init` chooses its own paths."""


@dataclass(frozen=True, slots=True, order=True)
class ProbeTarget:
    """A server to probe."""

    scheme: str
    """`http` or `https`."""
    host: str
    """Host name, or IP address without brackets."""
    port: int

    @property
    def address(self) -> str:
        """The replica's `address` value."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """The base URL."""
        return f"{self.scheme}://{self.address}"


def parse_targets(urls: Sequence[str], diagnostics: Diagnostics) -> list[ProbeTarget]:
    """Parse the URLs into distinct targets in the same order. Invalid URLs are added to `diagnostics`."""
    targets: dict[ProbeTarget, None] = {}
    for number, url in enumerate(urls, 1):
        try:
            targets.setdefault(_parse_target(url))
        except QuantityError as error:
            may_hold_secret = not _FORM.fullmatch(url) or any(character in url for character in "@?#")
            name = f"URL {number} (not shown)" if may_hold_secret else show(url)
            diagnostics.add(Diagnostic(CODE, f"{name}: {error}", hint=error.hint or _HINT))
    return list(targets)


def _parse_target(url: str) -> ProbeTarget:
    parts = _split(url)
    if parts.scheme not in ports.BY_SCHEME:
        raise QuantityError("not an http or https URL", _HINT)
    if "@" in parts.netloc:
        raise QuantityError("it contains a user or a password, which init does not send", _HINT)
    if parts.query or parts.fragment or parts.path not in _PATHS:
        raise QuantityError("use only a scheme, a host and a port: init chooses the paths itself", _HINT)
    bracketed = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else (parts.hostname or "")
    host, _ = parse_host(bracketed)
    target = ProbeTarget(parts.scheme, host, ports.BY_SCHEME[parts.scheme] if parts.port is None else parts.port)
    _check(target)
    return target


def _split(url: str) -> SplitResult:
    try:
        if not _FORM.fullmatch(url):
            raise ValueError
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise QuantityError("not a URL", _HINT) from None
    return parts


def _check(target: ProbeTarget) -> None:
    if target.port == 0:
        raise QuantityError("the port must be a number from 1 to 65535", _HINT)
    if is_ip(target.host):
        try:
            usable_answer([target.host])
        except UnresolvedError:
            raise QuantityError("this address is not valid for a replica", _HINT) from None
