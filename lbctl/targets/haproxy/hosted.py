"""Request settings for hosted APIs and replicas that require a key, in the pool's backend.

Secrets are in a separate file that only its owner may read; haproxy.cfg looks them up there.
"""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir.pools import Pool
from lbctl.ir.snapshot import View
from lbctl.targets import client_identity
from lbctl.targets.haproxy import health, quote, sections
from lbctl.targets.haproxy.quote import line
from lbctl.targets.haproxy.sections import looked_up
from lbctl.targets.hosted import hosted_pool
from lbctl.targets.target import File
from lbctl.targets.token import Token

_COOKIE = "cookie"


def lines(pool: Pool, view: View) -> Iterator[Token]:
    """Yield the lines that apply the pool's replacements to a request."""
    hosted = hosted_pool(view, pool.name)
    if hosted is None:
        return
    path = ("pools", pool.name, "upstream" if pool.upstream else "credentials")
    if (
        pool.affinity is not None and _COOKIE in hosted.removed
    ):  # HAProxy reads its cookie after these rules, and removes it before the API gets the request
        fetch = quote.word(quote.sample("req.cook", pool.affinity.cookie))
        yield line("http-request set-var(txn.affinity)", fetch, source=("pools", pool.name, "affinity"))
    for pattern in client_identity.groups(hosted.removed):
        yield line("http-request del-header", quote.word(pattern), "-m reg", source=path)
    if pool.affinity is not None and _COOKIE in hosted.removed:
        pair = quote.word(f"{pool.affinity.cookie.replace('%', '%%')}=%[var(txn.affinity)]")
        yield line("http-request add-header cookie", pair, "if { var(txn.affinity) -m found }", source=path)
    if hosted.upstream.host:
        host = quote.formatted(hosted.upstream.host)
        yield line("http-request set-header host", host, source=(*path, "host"))
    if hosted.upstream.path_prefix:
        new_path = quote.word(hosted.upstream.path_prefix.replace("%", "%%") + "%[path]")
        yield line("http-request set-path", new_path, source=(*path, "path_prefix"))
    for header in hosted.headers:
        value = quote.word(looked_up(pool, header.name, view.proxy)) if header.file else quote.formatted(header.text)
        source = (*path, "headers", header.name) if pool.upstream else (*path, "file")
        yield line("http-request set-header", quote.word(header.name), value, source=source)


def files(view: View) -> Iterator[File]:
    """Yield the file that contains the secrets of all pools, if there are any."""
    rows = [row for pool in view.pools.values() for row in _rows(pool, view)]
    if view.picker is not None and view.picker_key:
        rows.append(f"{sections.PICKER_ROW} {view.picker_key}\n")
    if rows:
        yield File(sections.SECRETS, "".join(rows), secret=True)


def _rows(pool: Pool, view: View) -> Iterator[str]:
    values = dict(view.upstream_headers.get(pool.name, ()))
    for header in pool.sent.headers if pool.sent else ():
        if header.file is not None and header.name in values:
            yield f"{pool.name}/{header.name} {values[header.name]}\n"
    check = health.grpc_check_with_key(pool, view)
    if check:
        yield f"{pool.name}/{sections.CHECK_ROW} {check}\n"
