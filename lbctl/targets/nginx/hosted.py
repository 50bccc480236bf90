"""Hosted APIs and replicas that require a key: request headers and paths in the pool's locations.

Secrets are in a separate file that only its owner may read; nginx.conf includes it as a variable's value.
"""

from __future__ import annotations

from collections.abc import Sequence

from lbctl.ir.pools import Pool, UpstreamHeader
from lbctl.targets.hosted import hosted_pool
from lbctl.targets.nginx import quote
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.target import File
from lbctl.targets.token import Token

Headers = Sequence[tuple[Token, Token]]


def headers(context: RenderContext, pool: Pool, replica_headers: Headers) -> tuple[tuple[Token, Token], ...]:
    """Return the request headers for the pool: the replica's headers, overridden by the pool's own headers."""
    hosted = hosted_pool(context.view, pool.name)
    if hosted is None:
        return tuple(replica_headers)
    changed = {name.text: text for name, text in replica_headers}
    changed |= {name: Token('""') for name in hosted.removed}
    changed |= {item.name: _value(context, pool, number, item) for number, item in enumerate(hosted.upstream.headers)}
    if hosted.upstream.host:
        changed["host"] = quote.value(hosted.upstream.host, ("pools", pool.name, "upstream", "host"))
    return tuple((quote.plain(name), text) for name, text in sorted(changed.items()))


def url(pool: Pool, address: str, path: str) -> Token:
    """Return the URL of requests to the pool: `address`, the pool's own prefix, and the variable `path`."""
    if pool.upstream is None or not pool.upstream.path_prefix:
        return Token(f"{address}{path}")
    prefix = quote.embed(pool.upstream.path_prefix)
    return quote.script(f"{address}{prefix}{path or '$request_uri'}", ("pools", pool.name, "upstream", "path_prefix"))


def _value(context: RenderContext, pool: Pool, number: int, header: UpstreamHeader) -> Token:
    own = ("upstream", "headers", header.name) if pool.upstream else ("credentials", "file")
    path = ("pools", pool.name, *own)
    if header.file is None:
        return quote.value(header.text, path)
    name = f"nginx-upstream-{pool.name}-{header.name}.map"
    variable = f"$lb_u{list(context.view.pools).index(pool.name)}_{number}"
    if not context.has_map(variable):
        values = dict(context.view.upstream_headers[pool.name])
        line = f"default {quote.value(values[header.name]).text};\n" if header.name in values else ""
        context.files.append(File(name, line, secret=True))
        context.map("", variable, (), include=quote.plain(name))
    return Token(variable, path)
