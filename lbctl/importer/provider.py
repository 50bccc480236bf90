"""Hosted APIs, which are pools with their own Host header and a key that the fleet reads from a file."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lbctl.base.diagnostics import Path
from lbctl.base.system_ca import PLACES, WORD
from lbctl.importer.draft import Draft
from lbctl.importer.statement import Statement

_PREFIX = re.compile(r"(?i)(?:bearer|basic|token|key) +")


@dataclass(frozen=True, slots=True)
class Header:
    """A header that a hosted API requires."""

    name: str
    """The lowercase header name."""
    value: str
    """The value as written in the configuration. A credential's value is never written anywhere."""
    statement: Statement


def put(
    draft: Draft,
    pool: Path,
    host: str,
    credentials: Sequence[Header],
    texts: Sequence[Header] = (),
    statements: Sequence[Statement] = (),
) -> None:
    """Make a pool a hosted API.

    Its credentials become files for the operator to fill in, and other headers remain text.
    """
    headers: dict[str, object] = {item.name: item.value for item in texts}
    for item in credentials:
        prefix = _PREFIX.match(item.value)
        file = f"secrets/{pool[1]}-key" if len(credentials) == 1 else f"secrets/{pool[1]}-{item.name}"
        headers[item.name] = ({"prefix": prefix[0]} if prefix else {}) | {"file": file}
        message = f"the value of {item.name} is a secret and was not copied"
        draft.ledger.secret(item.statement, message, f"write it to {file} with mode 0600")
    upstream = {"host": host} | ({"headers": headers} if headers else {})
    draft.put((*pool, "upstream"), upstream, *(item.statement for item in (*credentials, *texts)), *statements)
    if (draft.get((*pool, "tls")) or {"ca": ""}).get("ca") is None:
        draft.put((*pool, "tls", "ca"), WORD)


def owns(draft: Draft, route: Path, name: str) -> bool:
    """Return whether a route's pool itself sets a header."""
    pool = draft.get((*route, "pool"))
    return name in (draft.get(("pools", str(pool), "upstream", "headers")) or {})


def host_of(draft: Draft, route: Path) -> str | None:
    """Return the Host header that a route's pool sends if it is a hosted API."""
    host = draft.get(("pools", str(draft.get((*route, "pool"))), "upstream", "host"))
    return None if host is None else str(host)


def authority(file: str) -> str:
    """Return the `ca` value for a file, which is `system` for the system's CA bundle."""
    return WORD if file in PLACES else file
