"""Converts `bind` lines and a frontend's client settings to listeners."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lbctl.base.diagnostics import Path
from lbctl.importer.haproxy import values
from lbctl.importer.haproxy.context import HaproxyImport, HaproxySection
from lbctl.importer.statement import Statement
from lbctl.importer.values import is_whole, written

_FREE_BYTES = 1024
"""HAProxy's default for `tune.maxrewrite`."""
_MAX_HEADERS = 1 << 20
"""A fleet's maximum `headers.max_bytes`."""
_FLAGS = frozenset({"ssl", "accept-proxy", "transparent", "v4v6", "v6only", "defer-accept", "tfo", "strict-sni"})
_IMPLIED = frozenset(
    {"ssl", "v4v6", "v6only", "alpn", "defer-accept", "name", "id", "process", "thread", "shards", "nice"}
)


def listeners(context: HaproxyImport, section: HaproxySection) -> tuple[list[str], list[str]]:
    """Add a frontend's listeners.

    Returns the names of the listeners without TLS, and of the listeners with TLS.
    """
    plain, encrypted = list[str](), list[str]()
    for item in section.own("bind"):
        addresses = values.binds(item.args[0]) if item.args else [None]
        for bind in addresses:
            if bind is None:
                context.draft.ledger.omit(item, "a listener needs exactly one address and port")
                continue
            path = context.draft.add("listeners", _name(section, item), item, {"bind": bind})
            _bind_options(context, path, item)
            _settings(context, path, section)
            (encrypted if "ssl" in item.args else plain).append(str(path[1]))
    return plain, encrypted


def _name(section: HaproxySection, item: Statement) -> str:
    several = len(list(section.own("bind"))) > 1
    return f"{section.name}-tls" if several and "ssl" in item.args else section.name


def _bind_options(context: HaproxyImport, path: Path, item: Statement) -> None:
    draft, rest = context.draft, list(item.args[1:])
    while rest:
        word = rest.pop(0)
        value = "" if word in _FLAGS or not rest else rest.pop(0)
        if word in {"crt", "crt-list"}:
            _certificate(context, path, item, word, value)
        elif word == "accept-proxy":
            draft.put((*path, "proxy_protocol"), True, item)
        elif word == "ca-file":
            draft.put((*path, "tls", "client_ca"), context.file("ca", value), item)
        elif word == "crl-file":
            draft.put((*path, "tls", "client_crl"), context.file("ca", value), item)
        elif word == "verify" and value in {"required", "optional"}:
            draft.put((*path, "tls", "client_certificate"), value, item)
        elif word == "ssl-min-ver" and value in {"TLSv1.2", "TLSv1.3"}:
            draft.put((*path, "tls", "min_version"), value.removeprefix("TLSv"), item)
        elif word not in _IMPLIED:
            part = f"bind {item.args[0]} {word} {value}".strip()
            draft.ledger.omit(item, "the fleet file has no listener key for this option", path, part=part)
    _oldest(context, path)


def _certificate(context: HaproxyImport, path: Path, item: Statement, word: str, value: str) -> None:
    """Add a certificate. For a directory or a list, the operator must name the files."""
    file = context.file("crt", value)
    if word == "crt-list" or file.endswith("/"):
        message = f"bind {item.args[0]} {word} {value}: lbctl needs the name of each certificate file"
        context.draft.ledger.advise(
            item, message, "write one entry with `hosts` in `tls.certificates` for each certificate"
        )
        file = f"{file.rstrip('/')}/{path[1]}.pem" if word == "crt" else f"tls/{path[1]}.pem"
    pairs = [*(context.draft.get((*path, "tls", "certificates")) or []), {"certificate": file, "key": file}]
    context.draft.put((*path, "tls", "certificates"), pairs, item)


def _oldest(context: HaproxyImport, path: Path) -> None:
    """Set the minimum TLS version in `ssl-default-bind-options` if the `bind` does not set one."""
    for item in context.globals:
        arguments = item.args
        if item.name != "ssl-default-bind-options" or "ssl-min-ver" not in arguments[:-1]:
            continue
        version = arguments[arguments.index("ssl-min-ver") + 1].removeprefix("TLSv")
        tls = context.draft.get((*path, "tls"))
        if tls is not None and version in {"1.2", "1.3"} and "min_version" not in tls:
            context.draft.put((*path, "tls", "min_version"), version, item)


def _time(*keys: str) -> Callable[[HaproxyImport, Path, Statement, str], None]:
    def settle(context: HaproxyImport, path: Path, item: Statement, value: str) -> None:
        if (time := values.time(value)) is not None:
            context.draft.put((*path, *keys), time, item)

    return settle


def _maxconn(context: HaproxyImport, path: Path, item: Statement, value: str) -> None:
    if is_whole(value) and int(value) > 0:
        context.draft.put((*path, "max_connections"), int(value), item)


_SETTINGS: dict[Sequence[str], Callable[[HaproxyImport, Path, Statement, str], None]] = {
    ("timeout", "http-request"): _time("timeouts", "request_headers"),
    ("timeout", "http-keep-alive"): _time("timeouts", "idle"),
    ("maxconn",): _maxconn,
}


def _settings(context: HaproxyImport, path: Path, section: HaproxySection) -> None:
    for prefix, settle in _SETTINGS.items():
        item = section.last(*prefix)
        if item is not None and len(item.tokens) > len(prefix):
            settle(context, path, item, item.tokens[len(prefix)])
    _headers(context, path)
    _trusted(context, path, section.last("option", "forwardfor"))
    log = section.last("option", "dontlog-normal")
    if log is not None:
        context.draft.ledger.omit(log, "lbctl logs every request", path)


def _headers(context: HaproxyImport, path: Path) -> None:
    """Set the header limits. All headers share one buffer, of which `tune.maxrewrite` bytes remain free."""
    sizes = {item.name: item for item in context.globals if item.args[:1] and is_whole(item.args[0])}
    lines, buffer, free = (sizes.get(name) for name in ("tune.http.maxhdr", "tune.bufsize", "tune.maxrewrite"))
    if lines is not None:
        context.draft.put((*path, "headers", "max_count"), int(lines.args[0]), lines)
    if buffer is None:
        return
    size = int(buffer.args[0]) - (int(free.args[0]) if free is not None else _FREE_BYTES)
    if size > _MAX_HEADERS:
        context.draft.ledger.imply("lbctl reads bodies only if a route needs them", buffer)
    else:
        context.draft.put((*path, "headers", "max_bytes"), written(size), buffer, *filter(None, [free]))


def _trusted(context: HaproxyImport, path: Path, item: Statement | None) -> None:
    """Trust the peers in `option forwardfor except`, because they forward the client's address.

    HAProxy itself still authorizes clients based on the peer's address.
    """
    arguments = item.args if item is not None else ()
    if item is None or "except" not in arguments[:-1]:
        return
    network = arguments[arguments.index("except") + 1]
    network = network if "/" in network else f"{network}/{128 if ':' in network else 32}"
    header = {"header": arguments[arguments.index("header") + 1].lower()} if "header" in arguments[:-1] else {}
    context.draft.put((*path, "client_address"), {"trusted": [network], **header}, item)
    context.draft.guessed[*path, "client_address"] = item
