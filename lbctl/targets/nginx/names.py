"""The names that lbctl gives to objects in nginx.conf, and nginx's variables for parts of a request.

All of lbctl's names begin with `lb_` (variables), `lbn_` (captures), `pool_` or `within` (upstreams). A route's
location contains a colon, which no other location's name does. In a fragment, names that share a namespace with the
host's configuration begin with `lbctl_` instead: variables, zones, log formats and upstreams.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field

from lbctl.ir.proxies import Proxy
from lbctl.targets.nginx import quote

AGAIN = ":again"
"""Suffix of the location in which a request continues if it did not reach a replica."""
CHECKED, READ = ":checked", ":read"
"""Suffixes of the locations in which a request continues after a service has accepted it, or after its body was
read."""
_PLAIN = re.compile(r"[A-Za-z0-9_]+")
_HEADER = re.compile(r"[A-Za-z0-9-]+")
_PREFIX = "lbctl_"
_CAPTURE = "lbn_"
_VARIABLE = re.compile(r"\$(\{?)lb_")


def own(name: str, proxy: Proxy) -> str:
    """Return the name of a zone, a log format or an upstream in this proxy's configuration."""
    return f"{_PREFIX}{name}" if proxy.is_fragment else name


def included(name: str, proxy: Proxy) -> str:
    """Return the path of a file next to the configuration.

    nginx resolves relative paths against the directory of its main file, which is different for a fragment.
    """
    return posixpath.join(posixpath.dirname(proxy.config or ""), name) if proxy.is_fragment else name


def finished(text: str, proxy: Proxy) -> str:
    """Return a configuration's text with its variables renamed for this proxy."""
    if proxy.is_fragment:
        text = _VARIABLE.sub(rf"$\1{_PREFIX}", text)
    return text.replace(quote.NO_VARIABLE, "")


def group(variable: str, pattern: str, part: str = "") -> str:
    """Return a named group for a map's regular expression; `captured` returns its variable.

    Groups are named for two reasons: a number refers to the expression that nginx evaluated last, and nginx before
    1.30.4 computes the length of a text before it evaluates the variables in it (CVE-2026-42533).
    """
    return f"(?<{captured(variable, part)[1:]}>{pattern})"


def captured(variable: str, part: str = "") -> str:
    """Return the variable of a group in the map of `variable`; `part` distinguishes between several groups."""
    return f"${_CAPTURE}{variable.removeprefix('$lb_')}{part}"


def location(route: str, pool: str = "") -> str:
    """Return the name of the location that handles requests of `route` to `pool`.

    Without a pool, it is the location with the proxy's own response.
    """
    return f"{route}:{pool}"


def header(name: str) -> str | None:
    """Return the variable of a request header, or None if nginx drops headers with this name.

    nginx keeps only names that consist of letters, digits and hyphens.
    """
    return f"$http_{name.lower().replace('-', '_')}" if _HEADER.fullmatch(name) else None


@dataclass(slots=True)
class Lookups:
    """Maps that extract a value from a longer text, numbered in the order of first use."""

    patterns: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """Maps each variable to (source, regular expression before the value, regular expression of the value)."""

    def cookie(self, name: str) -> str:
        """Return the variable that contains a cookie's value."""
        return self._lookup("$http_cookie", rf"(?:^|[;,] *){quote.literal(name)}=", "[^;,]*")

    def query(self, name: str) -> str:
        """Return the variable that contains a query parameter's value."""
        if _PLAIN.fullmatch(name):
            return f"$arg_{name}"
        return self._lookup("$args", rf"(?:^|&){quote.literal(name)}=", "[^&]*")

    def _lookup(self, source: str, before: str, pattern: str) -> str:
        for name, lookup in self.patterns.items():
            if lookup == (source, before, pattern):
                return name
        name = f"$lb_v{len(self.patterns)}"
        self.patterns[name] = (source, before, pattern)
        return name
