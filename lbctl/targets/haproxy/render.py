"""Renders a view as one haproxy.cfg and the files that it reads."""

from __future__ import annotations

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir import written_credentials
from lbctl.ir.pools import DnsDiscovery, Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import (
    auth,
    config_digest,
    hosted,
    limits,
    listener,
    locality_tiers,
    own_lines,
    pick,
    pool,
    process,
    quote,
    sections,
    slots,
)
from lbctl.targets.haproxy.quote import line
from lbctl.targets.locality import placeless
from lbctl.targets.target import Bundle, File
from lbctl.targets.token import Token, read_by, write

MAIN, FRAGMENT = "haproxy.cfg", "lbctl.cfg"
_LARGE_ANSWERS = Token("accepted_payload_size 8192")
_ERRORS = {
    "not_http": Token(quote.error("the request is not valid HTTP", "bad_request")),
    "too_slow": Token(quote.error("the request did not arrive in time", "timeout")),
    "broke_off": Token(quote.error("the replica aborted its response", "bad_gateway")),
    "no_replica": Token(quote.error("no replica available", "unavailable")),
    "went_silent": Token(quote.error("the replica did not respond in time", "timeout")),
    "no_route": Token(listener.NO_ROUTE),
}
"""HAProxy's own responses, in the form that the template inserts."""


def render(view: View) -> Bundle:
    """Return haproxy.cfg, the files that it reads, and the diagnostics for this view."""
    parts = tuple(locality_tiers.all_parts(view))
    backends = [pool.backend(part) for part in parts]
    read = read_by(item for each in backends for item in (*each.lines, *each.own_lines))
    others = (*auth.files(view), *hosted.files(view), *slots.files(parts), *pick.files(view))
    values = {
        "fragment": view.proxy.is_fragment,
        "defaults": Token(" from lbctl" if view.proxy.is_fragment else ""),
        "digest_section": Token(config_digest.SECTION),
        "digest_line": Token(config_digest.SERVER),
        "events": Token("log global" if view.proxy.is_fragment else "log stderr format raw local0 notice"),
        "global_lines": [*process.global_lines(view, others), *limits.declared(parts)],
        "own_global": own_lines.tokens(view.proxy, "global"),
        "resolvers": [_resolver(item, view.proxy) for item in view.pools.values() if _resolves(item)],
        "errors": _ERRORS,
        "frontends": [listener.frontend(item, view, read) for item in view.listeners],
        "metrics": _metrics(view.proxy),
        "tables": [table for route in view.routes.values() for table in limits.tables(route, view.proxy)],
        "backends": backends,
        "picker": pick.backend(view),
    }
    values["slots"] = int(any(map(slots.names, parts)))
    text, sources = write("haproxy", "haproxy.cfg.j2", values)
    main = FRAGMENT if view.proxy.is_fragment else MAIN
    return Bundle(
        (File(main, config_digest.marked(text, others), sources, written_credentials.in_text(view)), *others),
        diagnostics(view),
    )


def diagnostics(view: View) -> tuple[Diagnostic, ...]:
    """Return HAProxy's limitations for this particular fleet, although it supports each feature by itself."""
    items = [item for settings in view.listeners for item in listener.diagnostics(settings, view)]
    items += [item for route in view.routes.values() for item in limits.diagnostics(route)]
    items += placeless(view)
    items += auth.diagnostics(view)
    wholes = (part for part in locality_tiers.all_parts(view) if part.name == part.pool.name)
    return (*items, *(item for part in wholes for item in pool.diagnostics(part)))


def _metrics(proxy: Proxy) -> Token | None:
    """Return the address of this HAProxy's metrics; None: disabled."""
    return line("bind", quote.address(proxy.metrics, ("proxies", proxy.name, "metrics"))) if proxy.metrics else None


def _resolves(settings: Pool) -> bool:
    return isinstance(settings.discovery, DnsDiscovery) and not settings.replicas


def _resolver(settings: Pool, proxy: Proxy) -> tuple[Token, list[Token]]:
    """Return the name and lines of a `resolvers` section.

    Without resolvers in the fleet, it uses the system's resolvers. An address that is missing from one response is kept
    until the next. More than about thirty addresses do not fit into 512 bytes, DNS's default limit.
    """
    assert isinstance(settings.discovery, DnsDiscovery)
    servers = [
        line(f"nameserver ns{i}", quote.address(address)) for i, address in enumerate(settings.discovery.resolvers)
    ]
    refresh = quote.duration(settings.discovery.refresh)
    times = [line(directive, refresh) for directive in ("hold valid", "timeout resolve", "hold obsolete")]
    return Token(sections.own(f"dns_{quote.name(settings.name).text}", proxy)), [
        *(servers or [Token("parse-resolv-conf")]),
        _LARGE_ANSWERS,
        *times,
    ]
