"""Converts `listen` and a server's client settings to listeners."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence

from lbctl.base.diagnostics import Path
from lbctl.importer.nginx import values
from lbctl.importer.nginx.context import NginxImport, Scope, flat
from lbctl.importer.statement import Statement
from lbctl.importer.values import is_whole, written

_MAX_BODY_OF_NGINX = "nginx's default limit of 1 MiB for request bodies rejects long prompts and images with 413"
_LISTEN_IMPLIED = frozenset({"default_server", "default", "reuseport", "http2", "ssl", "proxy_protocol", "deferred"})


class Listeners:
    """An import's listeners, by address. Servers with the same address share a listener."""

    def __init__(self, context: NginxImport) -> None:
        self._context = context
        self._by_bind: dict[str, Path] = {}
        self.defaults: dict[Path, Scope] = {}
        """Maps each listener to the server that handles requests for unknown hosts."""

    def of(self, server: Scope, names: Sequence[str]) -> list[Path]:
        """Return a server's listeners. The server's settings are applied to them."""
        paths = []
        listens = list(flat(server.block, "listen"))
        for item in listens or [server.block]:
            path = self._listener(item, server, listens)
            if path is not None and path not in paths:
                paths.append(path)
                if path not in self.defaults or {"default_server", "default"} & set(item.args):
                    self.defaults[path] = server
                _tls(self._context, path, server, item, names)
                for name, settle in _SETTINGS.items():
                    _apply(self._context, path, server, name, settle)
                _body(self._context, path, server)
                _trusted(self._context, path, server)
        return paths

    def _listener(self, item: Statement, server: Scope, listens: Sequence[Statement]) -> Path | None:
        draft = self._context.draft
        bind = bind_of(item.args[0] if item.name == "listen" and item.args else "80")
        if bind is None:
            draft.ledger.omit(item, "`bind` accepts an address, not a host name")
            return None
        if bind not in self._by_bind:
            path = draft.add("listeners", _name(bind, listens), item, {"bind": bind})
            self._by_bind[bind] = path
        path = self._by_bind[bind]
        draft.ledger.carry(path, item)
        if item.name == "listen":
            self._listen_options(item, path)
        draft.ledger.home(server.block, path)
        return path

    def _listen_options(self, item: Statement, path: Path) -> None:
        if "proxy_protocol" in item.args:
            self._context.draft.put((*path, "proxy_protocol"), True, item)
        if "http2" in item.args and "ssl" not in item.args:
            self._context.draft.put((*path, "http2"), True, item)
        for word in item.args[1:]:
            if word not in _LISTEN_IMPLIED and not word.startswith("ipv6only="):
                reason = "lbctl sets socket options itself"
                self._context.draft.ledger.omit(item, reason, path, part=f"listen {item.args[0]} {word}")


def bind_of(text: str) -> str | None:
    """Return a `listen` directive's address in fleet-file form, or None for a host name."""
    if text.startswith("unix:"):
        return text
    if is_whole(text):
        return f"0.0.0.0:{text}"
    host, _, port = text.rpartition(":") if ":" in text and not text.endswith("]") else (text, "", "80")
    host = {"*": "0.0.0.0", "localhost": "127.0.0.1"}.get(host, host)
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None
    return f"{host}:{port}"


def _name(bind: str, listens: Sequence[Statement]) -> str:
    del listens
    if bind.startswith("unix:"):
        return "socket"
    host, _, port = bind.rpartition(":")
    name = {"80": "http", "443": "https"}.get(port, f"port-{port}")
    return f"{name}-v6" if host.startswith("[") else name


def _tls(context: NginxImport, path: Path, server: Scope, listen: Statement, names: Sequence[str]) -> None:
    draft, on = context.draft, server.last("ssl")
    if "ssl" not in listen.args and not (on is not None and on.args == ("on",)):
        return
    certificate, key = server.last("ssl_certificate"), server.last("ssl_certificate_key")
    files = [item.args[0] for item in (certificate, key) if item is not None and item.args and "$" not in item.args[0]]
    if len(files) < 2:
        message = "this listener uses TLS, but the configuration does not include its certificate file"
        context.draft.ledger.advise(listen, message, "set `tls.certificates` to the certificate and key files")
        files = [f"tls/{path[1]}.crt", f"tls/{path[1]}.key"]
    pair: dict[str, object] = {"certificate": files[0], "key": files[1]}
    pairs = list(draft.get((*path, "tls", "certificates")) or [])
    if pairs and names:
        pair["hosts"] = list(names)
    if not any(item["certificate"] == pair["certificate"] for item in pairs):
        pairs.append(pair)
    draft.put((*path, "tls", "certificates"), pairs, *filter(None, (certificate, key, on)))
    for name, settle in _TLS.items():
        _apply(context, path, server, name, settle)


def _apply(
    context: NginxImport, path: Path, server: Scope, name: str, settle: Callable[[NginxImport, Path, Statement], None]
) -> None:
    item = server.last(name)
    if item is not None and item.args:
        settle(context, path, item)


def _min_version(context: NginxImport, path: Path, item: Statement) -> None:
    oldest = min((word for word in item.args if word.startswith("TLSv1")), default="")
    if oldest in {"TLSv1", "TLSv1.1"}:
        context.draft.ledger.omit(item, "lbctl does not support TLS versions before 1.2", path)
    elif oldest:
        context.draft.put((*path, "tls", "min_version"), oldest.removeprefix("TLSv"), item)


def _of_clients(key: str) -> Callable[[NginxImport, Path, Statement], None]:
    """Return a function that sets one of the files for checking client certificates.

    The first server for an address takes precedence.
    """

    def settle(context: NginxImport, path: Path, item: Statement) -> None:
        if context.draft.get((*path, "tls", key)) in {None, item.args[0]}:
            context.draft.put((*path, "tls", key), item.args[0], item)

    return settle


def _verify_client(context: NginxImport, path: Path, item: Statement) -> None:
    mode, place = {"on": "required", "optional": "optional"}.get(item.args[0]), (*path, "tls", "client_certificate")
    if mode == "optional" and context.draft.get(place) == "required":
        context.draft.ledger.omit(item, "another server on this address requires client certificates", path)
    elif mode:
        context.draft.put(place, mode, item)
    else:
        context.draft.ledger.omit(item, "`client_certificate` can be only `required` or `optional`", path)


def _timeout(*keys: str) -> Callable[[NginxImport, Path, Statement], None]:
    def settle(context: NginxImport, path: Path, item: Statement) -> None:
        value = values.time(item.args[0])
        if value is None or value == "0ms":
            context.draft.ledger.omit(item, "lbctl needs a duration of more than 0 here", path)
        else:
            context.draft.put((*path, *keys), value, item)

    return settle


def _header_bytes(context: NginxImport, path: Path, item: Statement) -> None:
    """Set the total size of headers, with one buffer per line. The first server for an address takes precedence."""
    if context.draft.get((*path, "headers")) is not None:
        return
    size = values.bytes_of(item.args[1]) if len(item.args) > 1 and is_whole(item.args[0]) else None
    if size is not None:
        context.draft.put((*path, "headers", "max_bytes"), written(int(item.args[0]) * size), item)


def _access_log(context: NginxImport, path: Path, item: Statement) -> None:
    if item.args[0] == "off":
        context.draft.put((*path, "access_log", "format"), "none", item)
    elif ":" in item.args[0]:
        context.draft.ledger.omit(item, "lbctl's access log is a file; `control.logs` sets an address for syslog", path)
    else:
        context.draft.put((*path, "access_log", "path"), item.args[0], item)


def _body(context: NginxImport, path: Path, server: Scope) -> None:
    item = server.last("client_max_body_size")
    locations = [inner for block in flat(server.block, "location") for inner in flat(block, "client_max_body_size")]
    largest = _largest([*([item] if item else []), *locations])
    if largest is None:
        context.draft.ledger.advise(
            server.block, _MAX_BODY_OF_NGINX, "lbctl has no such limit unless `max_body` is set"
        )
        return
    draft, written = context.draft, values.size(largest.args[0]) if largest.args else None
    if written is None:
        return
    if written.startswith("0"):
        draft.ledger.imply("lbctl has no such limit unless `max_body` is set", largest)
    else:
        draft.put((*path, "max_body"), written, largest)
    for other in {*locations, *([item] if item else [])} - {largest}:
        draft.ledger.omit(other, "a listener has one `max_body`: the largest limit applies", path)


def _largest(items: Sequence[Statement]) -> Statement | None:
    def bytes_of(item: Statement) -> float:
        text = item.args[0].lower() if item.args else "0"
        factor = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}.get(text[-1:], 1)
        number = int(text.rstrip("kmg")) if is_whole(text.rstrip("kmg")) else 0
        return number * factor or float("inf")

    return max(items, key=bytes_of, default=None)


def _trusted(context: NginxImport, path: Path, server: Scope) -> None:
    networks, header = server.all("set_real_ip_from"), server.last("real_ip_header")
    if not networks:
        return
    trusted = [word for item in networks for word in item.args[:1]]
    context.draft.put((*path, "client_address", "trusted"), trusted, *networks)
    if header is not None and header.args and header.args[0].lower() != "proxy_protocol":
        context.draft.put((*path, "client_address", "header"), header.args[0].lower(), header)
    if (recursive := server.last("real_ip_recursive")) is not None:
        context.draft.ledger.imply("lbctl uses the last untrusted address as the client's address", recursive)


CLIENT_FILES = {"ssl_client_certificate": "client_ca", "ssl_crl": "client_crl"}
"""Maps directives to the keys of a listener's `tls` that check client certificates."""
_TLS: dict[str, Callable[[NginxImport, Path, Statement], None]] = {
    "ssl_protocols": _min_version,
    **{name: _of_clients(key) for name, key in CLIENT_FILES.items()},
    "ssl_verify_client": _verify_client,
}
_SETTINGS: dict[str, Callable[[NginxImport, Path, Statement], None]] = {
    "keepalive_timeout": _timeout("timeouts", "idle"),
    "client_header_timeout": _timeout("timeouts", "request_headers"),
    "large_client_header_buffers": _header_bytes,
    "access_log": _access_log,
}
