"""The whole haproxy.cfg of one view."""

from __future__ import annotations

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.pools import DnsDiscovery, Pool
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import (
    auth,
    config_digest,
    keys,
    limits,
    listener,
    locality_tiers,
    pool,
    quote,
    request_limits,
)
from lbctl.targets.haproxy.quote import line
from lbctl.targets.locality import placeless
from lbctl.targets.target import Bundle, File
from lbctl.targets.token import Token, write

MAIN = "haproxy.cfg"
_LARGE_ANSWERS = Token("accepted_payload_size 8192")


def render(view: View) -> Bundle:
    parts = tuple(locality_tiers.all_parts(view))
    values = {
        "global_lines": [*_global(view), *filter(None, map(request_limits.declared, parts))],
        "resolvers": [_resolver(each) for each in view.pools.values() if _resolves(each)],
        "frontends": [listener.frontend(each, view) for each in view.listeners],
        "tables": [table for route in view.routes.values() for table in limits.tables(route)],
        "backends": [pool.backend(part) for part in parts],
    }
    text, sources = write("haproxy", "haproxy.cfg.j2", values)
    others = tuple(auth.files(view))
    return Bundle((File(MAIN, config_digest.marked(text, others), sources), *others), remarks(view))


def remarks(view: View) -> tuple[Diagnostic, ...]:
    """What HAProxy cannot say of this particular fleet, though it can say each feature by itself."""
    found = [item for each in view.listeners for item in listener.diagnostics(each)]
    found += [item for each in view.routes.values() for item in limits.diagnostics(each)]
    found += placeless(view)
    found += auth.diagnostics(view)
    wholes = (part for part in locality_tiers.all_parts(view) if part.name == part.pool.name)
    return (*found, *(item for part in wholes for item in pool.remarks(part)))


def _global(view: View) -> list[Token]:
    lines = [Token("default-path config")]
    jitter = max((each.active.jitter for each in view.pools.values() if each.active), default=0.0)
    lines.append(Token("max-spread-checks 500ms"))
    lines.append(line("spread-checks", min(50, round(jitter))))
    size = listener.buffer(view)
    if size != listener.USUAL_BUFFER:
        lines.append(line("tune.bufsize", size))
    if keys.shortened(view):
        lines.append(Token("ssl-load-extra-del-ext"))
    if view.proxy.runtime_api:
        socket = quote.word(view.proxy.runtime_api, ("proxies", view.proxy.name, "runtime_api"))
        lines.append(Token(config_digest.BLANK))
        lines.append(line("stats socket", socket, "mode 600 level admin expose-fd listeners"))
    return lines


def _resolves(each: Pool) -> bool:
    return isinstance(each.discovery, DnsDiscovery) and not each.replicas


def _resolver(each: Pool) -> tuple[Token, list[Token]]:
    """Without resolvers in the fleet, the system's. An address that the answers lack is kept for one more of them; more
    than some thirty addresses do not fit into the 512 bytes that DNS allows by default."""
    assert isinstance(each.discovery, DnsDiscovery)
    servers = [line(f"nameserver ns{i}", quote.address(at)) for i, at in enumerate(each.discovery.resolvers)]
    refresh = quote.duration(each.discovery.refresh)
    times = [line(words, refresh) for words in ("hold valid", "timeout resolve", "hold obsolete")]
    return Token(f"dns_{quote.name(each.name).text}"), [
        *(servers or [Token("parse-resolv-conf")]),
        _LARGE_ANSWERS,
        *times,
    ]
