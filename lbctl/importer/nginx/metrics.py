"""Converts `stub_status`, nginx's own metrics, to the proxy's `metrics`."""

from __future__ import annotations

from lbctl.base.diagnostics import Path
from lbctl.importer.nginx.context import NginxImport, flat
from lbctl.importer.nginx.listeners import bind_of
from lbctl.importer.statement import Statement, walk

_USUAL = "127.0.0.1:9113"
_PLACE = ("proxies", "nginx")
_HERE = "lbctl serves metrics to this machine only"


def server(context: NginxImport, block: Statement) -> bool:
    """Convert a server that only exports metrics. Returns whether it is such a server."""
    locations = list(flat(block, "location"))
    if not locations or not all(next(flat(item, "stub_status"), None) for item in locations):
        return False
    listen = next(flat(block, "listen"), None)
    bind = bind_of(listen.args[0]) if listen is not None and listen.args else None
    if bind is None or bind.startswith("unix:"):
        return False
    address = bind if bind.startswith(("127.", "[::1]")) else f"127.0.0.1:{bind.rpartition(':')[2]}"
    shown = [item for location in locations for item in (location, *flat(location, "stub_status"))]
    _put(context, address, block, *flat(block, "listen"), *shown)
    rest = [item for item in walk(block.block) if item.name in {"allow", "deny", "access_log", "server_name"}]
    context.draft.ledger.imply(_HERE, *rest)
    return True


def location(context: NginxImport, route: Path, block: Statement) -> None:
    """Convert a metrics location in a client-facing server. The metrics get a separate address."""
    status = next(flat(block, "stub_status"), None)
    if status is None:
        return
    address = context.draft.get((*_PLACE, "metrics")) or _USUAL
    _put(context, address, status)
    message = f"stub_status is reachable by clients; lbctl serves it at http://{address}/stub_status instead"
    context.draft.ledger.advise(status, message, "query that address; this path returns 404")
    context.draft.moved.add(route)
    context.draft.put((*route, "respond"), {"status": 404, "body": "not found"}, block)
    context.draft.ledger.imply(_HERE, *flat(block, "allow", "deny"))


def _put(context: NginxImport, address: str, *statements: Statement) -> None:
    context.draft.put((*_PLACE, "kind"), "nginx")
    context.draft.put((*_PLACE, "metrics"), address, *statements)
