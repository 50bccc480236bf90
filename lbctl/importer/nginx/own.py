"""Converts directives without a matching key to own lines of their servers and locations."""

from __future__ import annotations

from lbctl.base.diagnostics import Path
from lbctl.importer import own
from lbctl.importer.nginx.context import NginxImport
from lbctl.importer.statement import Statement

_NAMES = frozenset(
    {
        "charset", "client_body_timeout", "client_header_buffer_size", "etag", "expires", "gunzip", "if_modified_since",
        "keepalive_disable", "keepalive_time", "limit_rate_after", "log_not_found",
        "postpone_output", "proxy_cookie_domain", "proxy_cookie_flags", "proxy_cookie_path", "proxy_force_ranges",
        "proxy_pass_header", "send_timeout", "ssl_ciphers", "ssl_conf_command", "ssl_dhparam", "ssl_ecdh_curve",
        "ssl_prefer_server_ciphers", "ssl_session_timeout", "sub_filter", "sub_filter_once", "sub_filter_types"
    }
)  # fmt: skip
"""Directives that lbctl never writes to a server or a location, and that affect neither access nor destinations."""
_PREFIXES = ("brotli", "gzip_", "http2_", "lingering_", "more_", "proxy_ssl_c", "proxy_ssl_p", "ssl_stapling", "zstd")


def collect(context: NginxImport) -> None:
    """Keep the remaining directives that `include` supports."""
    ledger = context.draft.ledger
    for item in ledger.unclaimed():
        if item.is_block or not (item.name in _NAMES or item.name == "gzip" or item.name.startswith(_PREFIXES)):
            continue
        if item.tokens == ("gzip", "off"):
            ledger.imply("nothing is compressed", item)
            continue
        parent = ledger.parent(item)
        for place, owner in _places(context, parent):
            own.keep(context.draft, "nginx", place, owner, _line(item), item)


def _places(context: NginxImport, block: Statement | None) -> list[tuple[str, str]]:
    """Return the `include` places for a block, or none if other blocks would also be affected."""
    listeners = context.draft.fleet["listeners"]
    if block is None or block.name == "http":
        return [("server", name) for name in listeners]
    if block.name == "server":
        paths = context.listeners_of.get(block, [])
        users = [each for each in context.listeners_of.values() if set(each) & set(paths)]
        return [("server", str(path[1])) for path in paths] if len(users) == 1 else []
    routes: list[Path] = [path for path, origin in context.draft.origins.items() if origin is block]
    return [("location", str(path[1])) for path in routes if "respond" not in (context.draft.get(path) or {})]


def _line(item: Statement) -> str:
    import crossplane

    text = crossplane.build([{"directive": item.name, "line": 1, "args": list(item.args)}])
    return f"{text.strip()}  # {item.position.file.rpartition('/')[2]}:{item.position.line}"
