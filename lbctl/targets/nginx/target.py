"""nginx as a target: what differs by version, and how a view becomes one nginx.conf."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lbctl.ir.snapshot import View
from lbctl.targets.nginx import check, listener, log
from lbctl.targets.nginx.book import Book
from lbctl.targets.nginx.capabilities import CAPABILITIES
from lbctl.targets.nginx.pool import Upstreams
from lbctl.targets.nginx.route import NO_REPLICA, Routes
from lbctl.targets.target import Bundle, Capability, Complaint, File, Version
from lbctl.targets.token import Token

_CONNECTIONS = 8192
_SPARE = 512
_LARGEST = 65_536


class Nginx:
    """Stateless: `render` builds everything anew."""

    kind = "nginx"
    binary = "nginx"
    versions: tuple[Version, ...] = (
        (1, 22), (1, 25, 1), (1, 27, 3), (1, 29, 4), (1, 29, 6), (1, 31, 0),
    )  # fmt: skip

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        return CAPABILITIES

    def render(self, view: View, form: str = "yaml") -> Bundle:  # noqa: ARG002 -- nginx.conf has one form
        from lbctl.targets.token import write

        book = Book(view)
        text, sources = write("nginx", "nginx.conf.j2", _values(book))
        return Bundle((File("nginx.conf", text, sources),), tuple(book.findings))

    def check_command(self, binary: str, prefix: str, main: str) -> list[str]:
        return check.command(binary, prefix, main)

    def complaints(self, output: str, bundle: Bundle) -> Iterable[Complaint]:
        return check.complaints(output, bundle)


def _values(book: Book) -> dict[str, object]:
    upstreams = Upstreams(book)
    routes = Routes.of(book, upstreams)
    built = [listener.build(book, routes, item, number) for number, item in enumerate(book.view.listeners)]
    log.maps(book)
    return {
        "connections": _connections(book.view),
        "installed": book.view.proxy.config is not None,
        "formats": [written for _, written in built],
        "listeners": [server for server, _ in built],
        "upstreams": upstreams.all,
        "maps": book.maps,
        "lookups": _lookups(book),
        "draws": book.draws,
        "geos": book.geos,
        "zones": book.zones,
        "hash_size": _power(4 * (len(book.maps) + 200)),
        "map_bucket": _power(2 * _longest(book), 128),
        "map_size": _power(4 * max((len(item.entries) for item in book.maps), default=1), 2048),
        "no_replica": Token(f"'{NO_REPLICA}'"),
    }


def _lookups(book: Book) -> list[dict[str, Token]]:
    from lbctl.targets.nginx import quote

    return [
        {"variable": Token(variable), "source": Token(source), "pattern": quote.plain(f"~{pattern}")}
        for variable, (source, pattern) in book.lookups.found.items()
    ]


def _connections(view: View) -> int:
    """For each of a listener's connections one to a replica, and some to spare."""
    asked = [item.max_connections for item in view.listeners]
    total = sum(item for item in asked if item) if asked and all(asked) else _CONNECTIONS
    return min(_LARGEST, 2 * total + _SPARE)


def _longest(book: Book) -> int:
    plain = (key.text for item in book.maps for key, _ in item.entries if not key.text.startswith('"~'))
    return max(map(len, plain), default=1)


def _power(size: int, least: int = 1024) -> int:
    """The next power of two."""
    return max(least, 1 << (size - 1).bit_length())


TARGET = Nginx()
