"""The whole haproxy.cfg of one view."""

from __future__ import annotations

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import DnsDiscovery, Pool
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import keys, limits, listener, pool, quote, residency
from lbctl.targets.haproxy.quote import line
from lbctl.targets.target import Bundle, File
from lbctl.targets.token import Token, write

MAIN = "haproxy.cfg"
_HEADROOM = 16 * 1024
"""Of a buffer, beside the body: the request's headers, and what HAProxy keeps for changes to them."""


def render(view: View) -> Bundle:
    found: list[Diagnostic] = [item for each in view.listeners for item in listener.diagnostics(each)]
    found += [item for each in view.routes.values() for item in limits.diagnostics(each)]
    backends: list[pool.Backend] = []
    for each in view.pools.values():
        backend, more = pool.backend(each, view)
        backends.append(backend)
        found += more
    backends += [pool.backend(each, within, name)[0] for name, each, within in residency.copies(view)]
    values = {
        "global_lines": _global(view),
        "resolvers": [_resolver(each) for each in view.pools.values() if _resolves(each)],
        "frontends": [listener.frontend(each, view) for each in view.listeners],
        "tables": [table for route in view.routes.values() for table in limits.tables(route)],
        "backends": backends,
    }
    text, sources = write("haproxy", "haproxy.cfg.j2", values)
    return Bundle((File(MAIN, text, sources),), tuple(found))


def _global(view: View) -> list[Token]:
    lines = []
    jitter = max((each.active.jitter for each in view.pools.values() if each.active), default=0.0)
    lines.append(Token("max-spread-checks 500ms"))
    lines.append(line("spread-checks", min(50, round(jitter))))
    inspected = [each.inspect for each in view.listeners if listener.reads_bodies(each, view)]
    bodies = [len(body) for body in _bodies(view)]
    if inspected or max(bodies, default=0) > _HEADROOM // 2:
        lines.append(line("tune.bufsize", max(inspected + bodies) + _HEADROOM))
    if keys.shortened(view):
        lines.append(Token("ssl-load-extra-del-ext"))
    if view.proxy.runtime_api:
        socket = quote.word(view.proxy.runtime_api, ("proxies", view.proxy.name, "runtime_api"))
        lines.append(line("stats socket", socket, "mode 600 level admin expose-fd listeners"))
    return lines


def _bodies(view: View) -> list[bytes]:
    return [getattr(route.action, "body", "").encode() for route in view.routes.values()]


def _resolves(each: Pool) -> bool:
    return isinstance(each.discovery, DnsDiscovery) and not each.replicas


def _resolver(each: Pool) -> tuple[Token, list[Token]]:
    """Without resolvers in the fleet, the system's."""
    assert isinstance(each.discovery, DnsDiscovery)
    servers = [line(f"nameserver ns{i}", quote.address(at)) for i, at in enumerate(each.discovery.resolvers)]
    refresh = quote.duration(each.discovery.refresh)
    times = [line("hold valid", refresh), line("timeout resolve", refresh), line("hold obsolete 30s")]
    return Token(f"dns_{quote.name(each.name).text}"), [*(servers or [Token("parse-resolv-conf")]), *times]
