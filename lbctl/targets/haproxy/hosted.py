"""Hosted APIs: the host, the path and the headers of requests to one, in the backend of its pool.

A secret stands in a file of its own, which its owner alone may read; haproxy.cfg looks it up.
"""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir.pools import Pool
from lbctl.ir.snapshot import View
from lbctl.targets import client_headers
from lbctl.targets.haproxy import quote
from lbctl.targets.haproxy.quote import line
from lbctl.targets.hosted import hosted_pool
from lbctl.targets.target import File
from lbctl.targets.token import Token

_FILE = "haproxy-upstream-headers.map"


def lines(pool: Pool, view: View) -> Iterator[Token]:
    """Yield the lines that give a request to a hosted API what the pool has in place of the client's own."""
    hosted = hosted_pool(view, pool.name)
    if hosted is None:
        return
    path = ("pools", pool.name, "upstream")
    if pool.affinity is not None:  # HAProxy reads its cookie after these rules, and hides it from the API
        fetch = quote.word(quote.sample("req.cook", pool.affinity.cookie))
        yield line("http-request set-var(txn.affinity)", fetch, source=("pools", pool.name, "affinity"))
    for pattern in client_headers.groups(hosted.removed):
        yield line("http-request del-header", quote.word(pattern), "-m reg", source=path)
    if pool.affinity is not None:
        pair = quote.word(f"{pool.affinity.cookie.replace('%', '%%')}=%[var(txn.affinity)]")
        yield line("http-request add-header cookie", pair, "if { var(txn.affinity) -m found }", source=path)
    host = quote.formatted(hosted.upstream.host)
    yield line("http-request set-header host", host, source=(*path, "host"))
    if hosted.upstream.path_prefix:
        new_path = quote.word(hosted.upstream.path_prefix.replace("%", "%%") + "%[path]")
        yield line("http-request set-path", new_path, source=(*path, "path_prefix"))
    for header in hosted.headers:
        value = _looked_up(pool, header.name) if header.file else quote.formatted(header.text)
        yield line("http-request set-header", quote.word(header.name), value, source=(*path, "headers", header.name))


def files(view: View) -> Iterator[File]:
    """Yield the file with the secrets of all pools, if there are any."""
    rows = [
        f"{pool.name}/{header.name} {value}\n"
        for pool in view.pools.values()
        if pool.upstream is not None
        for header, value in (
            (item, dict(view.upstream_headers[pool.name]).get(item.name)) for item in pool.upstream.headers
        )
        if header.file is not None and value is not None
    ]
    if rows:
        yield File(_FILE, "".join(rows), secret=True)


def _looked_up(pool: Pool, header: str) -> Token:
    return quote.word(f'%[str("{quote.name(pool.name).text}/{quote.name(header).text}"),map_str("{_FILE}")]')
