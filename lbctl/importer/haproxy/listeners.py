"""`bind` lines and what a frontend says of its clients, as listeners."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lbctl.base.diagnostics import Path
from lbctl.importer.haproxy import values
from lbctl.importer.haproxy.context import Context, Section
from lbctl.importer.statement import Statement

_FLAGS = frozenset({"ssl", "accept-proxy", "transparent", "v4v6", "v6only", "defer-accept", "tfo", "strict-sni"})
_IMPLIED = frozenset(
    {"ssl", "v4v6", "v6only", "alpn", "defer-accept", "name", "id", "process", "thread", "shards", "nice"}
)


def listeners(context: Context, section: Section) -> tuple[list[str], list[str]]:
    """Add the listeners of a frontend; returns the names of those without TLS, and of those with it."""
    plain, encrypted = list[str](), list[str]()
    for item in section.own("bind"):
        addresses = values.binds(item.args[0]) if item.args else [None]
        for bind in addresses:
            if bind is None:
                context.draft.ledger.omit(item, "a listener binds one address and port")
                continue
            path = context.draft.add("listeners", _name(section, item), item, {"bind": bind})
            _bind_options(context, path, item)
            _settings(context, path, section)
            (encrypted if "ssl" in item.args else plain).append(str(path[1]))
    return plain, encrypted


def _name(section: Section, item: Statement) -> str:
    several = len(list(section.own("bind"))) > 1
    return f"{section.name}-tls" if several and "ssl" in item.args else section.name


def _bind_options(context: Context, path: Path, item: Statement) -> None:
    draft, rest = context.draft, list(item.args[1:])
    while rest:
        word = rest.pop(0)
        value = "" if word in _FLAGS or not rest else rest.pop(0)
        if word == "crt":
            pairs = [*(draft.get((*path, "tls", "certificates")) or []), {"certificate": value, "key": value}]
            draft.put((*path, "tls", "certificates"), pairs, item)
        elif word == "accept-proxy":
            draft.put((*path, "proxy_protocol"), True, item)
        elif word == "ca-file":
            draft.put((*path, "tls", "client_ca"), value, item)
        elif word == "verify" and value in {"required", "optional"}:
            draft.put((*path, "tls", "client_certificate"), value, item)
        elif word == "ssl-min-ver" and value in {"TLSv1.2", "TLSv1.3"}:
            draft.put((*path, "tls", "min_version"), value.removeprefix("TLSv"), item)
        elif word not in _IMPLIED:
            part = f"bind {item.args[0]} {word} {value}".strip()
            draft.ledger.omit(item, "no key of a listener means this", path, part=part)


def _time(*keys: str) -> Callable[[Context, Path, Statement, str], None]:
    def settle(context: Context, path: Path, item: Statement, value: str) -> None:
        if (time := values.time(value)) is not None:
            context.draft.put((*path, *keys), time, item)

    return settle


def _maxconn(context: Context, path: Path, item: Statement, value: str) -> None:
    if value.isdigit() and int(value) > 0:
        context.draft.put((*path, "max_connections"), int(value), item)


_SETTINGS: dict[Sequence[str], Callable[[Context, Path, Statement, str], None]] = {
    ("timeout", "http-request"): _time("timeouts", "request_headers"),
    ("timeout", "http-keep-alive"): _time("timeouts", "idle"),
    ("maxconn",): _maxconn,
}


def _settings(context: Context, path: Path, section: Section) -> None:
    for prefix, settle in _SETTINGS.items():
        item = section.last(*prefix)
        if item is not None and len(item.words) > len(prefix):
            settle(context, path, item, item.words[len(prefix)])
    log = section.last("option", "dontlog-normal")
    if log is not None:
        context.draft.ledger.omit(log, "every request has a line in the access log", path)
