"""HAProxy's own settings: its user, its admin socket and its metrics."""

from __future__ import annotations

from lbctl.base.diagnostics import Path
from lbctl.importer.haproxy import values
from lbctl.importer.haproxy.context import HaproxyImport, HaproxySection
from lbctl.importer.haproxy.rules import HaproxyRule, rules
from lbctl.importer.statement import Statement

_PLACE = ("proxies", "haproxy")
_USUAL = "127.0.0.1:8405"
_HERE = "lbctl serves metrics to this machine only"


def process(context: HaproxyImport) -> None:
    """Convert the `global` settings that a fleet's `proxies` entry supports."""
    for item in context.globals:
        if item.name in {"user", "group", "chroot"} and len(item.args) == 1:
            _put(context, item.name, item.args[0], item)
        if item.tokens[:2] == ("stats", "socket") and len(item.args) > 1 and item.args[1].startswith("/"):
            _put(context, "runtime_api", item.args[1], item)


def is_exporter(section: HaproxySection) -> bool:
    """Return whether a frontend exports metrics for Prometheus and has no backend."""
    names = {item.name for item in section.block.block}
    leads = names & {"server", "server-template", "use_backend", "default_backend"}
    return not leads and any(rule.action == "metrics" for rule in rules(section))


def exporter(context: HaproxyImport, section: HaproxySection) -> None:
    """Convert a frontend that only exports metrics."""
    bind = next(section.own("bind"), None)
    address = next(iter(values.binds(bind.args[0])), None) if bind is not None and bind.args else None
    near = address if address and address.startswith("127.") else f"127.0.0.1:{(address or _USUAL).rpartition(':')[2]}"
    lines = [rule.line for rule in rules(section) if rule.action == "metrics"]
    _put(context, "metrics", near, section.block, *([bind] if bind else []), *lines)
    context.draft.ledger.imply(_HERE, *(item for item in section.block.block if item.name in {"mode", "no", "option"}))


def figures(context: HaproxyImport, route: Path, rule: HaproxyRule) -> None:
    """Convert metrics on a path in a client-facing frontend. They get a separate address."""
    address = context.draft.get((*_PLACE, "metrics")) or _USUAL
    _put(context, "metrics", address, rule.line)
    message = f"the proxy's metrics are reachable by clients; lbctl serves them at http://{address}/metrics instead"
    context.draft.ledger.advise(rule.line, message, "query that address; this path returns 404")
    context.draft.moved.add(route)
    context.draft.put((*route, "respond"), {"status": 404, "body": "not found"}, rule.line)


def _put(context: HaproxyImport, key: str, value: str, *statements: Statement) -> None:
    context.draft.put((*_PLACE, "kind"), "haproxy")
    context.draft.put((*_PLACE, key), value, *statements)
