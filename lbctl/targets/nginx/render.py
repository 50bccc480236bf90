"""A view as one nginx.conf, and the files that it reads."""

from __future__ import annotations

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.snapshot import View
from lbctl.targets.locality import placeless
from lbctl.targets.nginx import listener, log, quote
from lbctl.targets.nginx.blocks import Listener, LogFormat
from lbctl.targets.nginx.pool import Upstreams
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.nginx.route import NO_REPLICA, Routes
from lbctl.targets.request_host import HOST
from lbctl.targets.request_target import AMBIGUOUS
from lbctl.targets.target import Bundle, File
from lbctl.targets.token import Token, write

_CONNECTIONS = 8192
_SPARE = 512
_LARGEST = 65_536


def render(view: View) -> Bundle:
    book = RenderContext(view)
    text, sources = write("nginx", "nginx.conf.j2", _values(book))
    return Bundle((File("nginx.conf", text, sources), *book.files), (*book.findings, *placeless(view)))


def remarks(view: View) -> tuple[Diagnostic, ...]:
    book = RenderContext(view)
    _listeners(book, Upstreams(book))
    return (*book.findings, *placeless(view))


def _values(book: RenderContext) -> dict[str, object]:
    upstreams = Upstreams(book)
    built = _listeners(book, upstreams)
    log.maps(book)
    return {
        "connections": _connections(book.view),
        "installed": book.view.proxy.config is not None,
        "formats": [written for _, written in built],
        "listeners": [server for server, _ in built],
        "upstreams": upstreams.all,
        "maps": book.maps,
        "ambiguous": quote.plain(f"~{AMBIGUOUS}"),
        "host": quote.plain(rf"~*^([^\n]+)\n(?={HOST}\z)(\1)\.?(:[0-9]+)?\z"),
        "lookups": _lookups(book),
        "draws": book.draws,
        "geos": book.geos,
        "zones": book.zones,
        "hash_size": _power(4 * (len(book.maps) + 200)),
        "map_bucket": _power(2 * _longest(book), 128),
        "map_size": _power(4 * max((len(item.entries) for item in book.maps), default=1), 2048),
        "no_replica": Token(f"'{NO_REPLICA}'"),
    }


def _listeners(book: RenderContext, upstreams: Upstreams) -> list[tuple[Listener, LogFormat]]:
    routes = Routes.of(book, upstreams)
    return [listener.build(book, routes, item, number) for number, item in enumerate(book.view.listeners)]


def _lookups(book: RenderContext) -> list[dict[str, Token]]:
    return [
        {"variable": Token(variable), "source": Token(source), "pattern": quote.plain(f"~{pattern}")}
        for variable, (source, pattern) in book.lookups.found.items()
    ]


def _connections(view: View) -> int:
    """For each of a listener's connections one to a replica, and some to spare."""
    asked = [item.max_connections for item in view.listeners]
    total = sum(item for item in asked if item) if asked and all(asked) else _CONNECTIONS
    return min(_LARGEST, 2 * total + _SPARE)


def _longest(book: RenderContext) -> int:
    plain = (key.text for item in book.maps for key, _ in item.entries if not key.text.startswith('"~'))
    return max(map(len, plain), default=1)


def _power(size: int, least: int = 1024) -> int:
    """The next power of two."""
    return max(least, 1 << (size - 1).bit_length())
