"""The names that lbctl gives to things inside nginx.conf, and the variables in which nginx keeps parts of a request.

Everything of ours begins with `lb_` (variables), `pool_` or `within` (upstreams); a location of a route holds a colon,
which no other location's name does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from lbctl.targets.nginx import quote

_PLAIN = re.compile(r"[A-Za-z0-9_]+")
_HEADER = re.compile(r"[A-Za-z0-9-]+")


def location(route: str, pool: str = "") -> str:
    """Where a request of `route` that goes to `pool` is handled; without one, where the proxy answers itself."""
    return f"{route}:{pool}"


def header(name: str) -> str | None:
    """The variable of a request header; None where nginx drops the header (names beyond letters, digits and -)."""
    return f"$http_{name.lower().replace('-', '_')}" if _HEADER.fullmatch(name) else None


@dataclass(slots=True)
class Lookups:
    """Maps that take one value out of a longer one, numbered as they are asked for; variable → (source, regex)."""

    found: dict[str, tuple[str, str]] = field(default_factory=dict)

    def cookie(self, name: str) -> str:
        return self._lookup("$http_cookie", rf"(?:^|[;,] *){quote.literal(name)}=([^;,]*)")

    def query(self, name: str) -> str:
        if _PLAIN.fullmatch(name):
            return f"$arg_{name}"
        return self._lookup("$args", rf"(?:^|&){quote.literal(name)}=([^&]*)")

    def _lookup(self, source: str, pattern: str) -> str:
        for name, known in self.found.items():
            if known == (source, pattern):
                return name
        name = f"$lb_v{len(self.found)}"
        self.found[name] = (source, pattern)
        return name
