"""A location's request settings for a hosted API: its own Host header, key and other headers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lbctl.base.diagnostics import Path
from lbctl.importer import provider
from lbctl.importer.nginx.context import NginxImport, Scope, flat
from lbctl.importer.statement import Statement
from lbctl.importer.values import HOST
from lbctl.ir.secrets import may_hold_credential

_IN_TEXT = re.compile(r"\$\{(\w+)\}|\$(\w+)")


def credentials(scope: Scope) -> list[provider.Header]:
    """Return a location's headers that contain its own key for the service."""
    return [
        provider.Header(item.args[0].lower(), item.args[1], item)
        for item in scope.all("proxy_set_header")
        if len(item.args) > 1 and may_hold_credential(item.args[0]) and _is_secret(scope, item.args[1])
    ]


def _is_secret(scope: Scope, value: str) -> bool:
    """Return whether a value comes from the configuration or its environment rather than from a client."""
    names = [next(filter(None, match.groups())) for match in _IN_TEXT.finditer(value)]
    settings = [item for level in scope.levels for item in flat(level, "set") if len(item.args) > 1]
    assigned = {item.args[0].lstrip("$") for item in settings if "$" not in item.args[1]}
    return bool(value) and all(name.isupper() or name in assigned for name in names)


def _own_host(scope: Scope) -> Statement | None:
    """Return the directive that sets a Host header other than the client's."""
    items = [item for item in scope.all("proxy_set_header") if item.args[:1] and item.args[0].lower() == "host"]
    return items[-1] if items and len(items[-1].args) > 1 and HOST.fullmatch(items[-1].args[1]) else None


def carry(context: NginxImport, pool: Path, authority: str, scope: Scope) -> None:
    """Make the pool a hosted API if its location sends its own key, or a Host header that only this pool receives."""
    secrets, host = credentials(scope), _own_host(scope)
    named = scope.block.name == "location" and scope.block.args[-1:] and scope.block.args[-1].startswith("@")
    if not (secrets or (named and host is not None)) or context.draft.get((*pool, "upstream")):
        return
    name = host.args[1] if host is not None else re.sub(r":\d+$", "", authority)
    if HOST.fullmatch(name):
        texts = [item for item in _texts(scope) if item.name not in {each.name for each in secrets}] if named else []
        provider.put(context.draft, pool, name, secrets, texts, [host] if host is not None else [])


def _texts(scope: Scope) -> Iterator[provider.Header]:
    """Yield a location's headers whose values are constant."""
    for item in scope.all("proxy_set_header"):
        name, value = item.args[0].lower() if item.args else "host", "".join(item.args[1:2])
        if value and "$" not in value and name not in {"host", "connection", "upgrade"}:
            yield provider.Header(name, value, item)
