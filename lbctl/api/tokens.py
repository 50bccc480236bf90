"""The tokens of the API and their roles.

A line of the token file is `name:role:token`. The `read` role allows reading, `operate` also allows writing, and
`picker` allows subscribing to the replica tables and joining the exchange between pickers. A line without a name
defines a token with the name `operator` and the `operate` role. Empty lines and lines that begin with `#` are ignored.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, cast

Role = Literal["read", "operate", "picker"]
_LINE = re.compile(rb"([A-Za-z0-9][A-Za-z0-9._@-]{0,62}):(read|operate|picker):(\S+)")


@dataclass(frozen=True, slots=True)
class Principal:
    """The sender of a request."""

    name: str
    """The name of the token, which the audit log records."""
    role: Role
    """The permissions of the token."""


OPERATOR = Principal("operator", "operate")
"""The principal for a token without a name."""


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A token with its principal."""

    principal: Principal
    """The name and role of the token."""
    secret: bytes = field(repr=False)
    """The token itself."""


def parse(content: bytes) -> tuple[ApiToken, ...]:
    """Parse the content of a token file."""
    return tuple(_tokens(content.splitlines()))


def _tokens(lines: Iterable[bytes]) -> Iterator[ApiToken]:
    for line in map(bytes.strip, lines):
        if not line or line.startswith(b"#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            yield ApiToken(OPERATOR, line)
        else:
            yield ApiToken(Principal(match[1].decode(), cast(Role, match[2].decode())), match[3])


def token_of(tokens: Iterable[ApiToken], given: bytes) -> ApiToken | None:
    """Return the entry of the given token, or None if there is no such entry. The comparison takes constant time."""
    found = None
    for token in tokens:
        if hmac.compare_digest(given, token.secret):
            found = token
    return found
