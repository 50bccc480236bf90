"""Renders a view as one nginx.conf and the files that it includes."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from dataclasses import replace

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.ir import written_credentials
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.targets import own_lines
from lbctl.targets.locality import placeless
from lbctl.targets.nginx import busy, limits, listener, log, names, pick, quote
from lbctl.targets.nginx.blocks import LogFormat, ServerBlock
from lbctl.targets.nginx.installation import is_system_wide
from lbctl.targets.nginx.local_replies import ERRORS
from lbctl.targets.nginx.pool import Upstreams, warn_about_fallback_limits
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.nginx.route import Routes
from lbctl.targets.queue_priority import without_queue
from lbctl.targets.request_grammar import AMBIGUOUS, HOST
from lbctl.targets.target import Bundle, File
from lbctl.targets.token import Token, write

_HOST = "$lb_host"
_SAME, _PORT = names.group(_HOST, r"\k<lbn_first>"), names.group(_HOST, "(?::[0-9]+)?", "_port")
_HOST_TWICE = rf"~*^(?<lbn_first>[^\n]+)\n(?={HOST}\z){_SAME}\.?{_PORT}\z"
"""Matches the host that nginx found in a request, followed by the same host in the header, with an optional port."""
_CONNECTIONS = 8192
_SPARE = 512
_MAX_CONNECTIONS = 65_536
_FITS = 46
"""Maximum length of a key in nginx's default hash tables."""
_DOLLAR = "    geo $lb_dollar "
_WITHOUT_PUSH = (1, 25, 1)
"""First nginx version that does not push responses for replicas' `Link` headers."""
_FEW = 64
"""Maximum number of map entries that nginx's default hash tables can contain."""
_MANY = 256
"""Maximum number of map entries for which, with the smaller buckets, no bucket contains more than two of the longest
entries."""
_BUCKET = 128
"""Bucket size of a map's hash table in bytes. nginx logs a warning on each reload if no table size fits."""
_TEMPORARY = ("client-body", "proxy", "fastcgi", "uwsgi", "scgi")


def render(view: View) -> Bundle:
    """Return nginx.conf, the files that it includes, and the diagnostics for this view."""
    context = RenderContext(view)
    text, sources = _without_dollar(*write("nginx", "nginx.conf.j2", _values(context)), context.files)
    _warn_about_sizes(context)
    busy.warn(context)
    warn_about_fallback_limits(context)
    main = File(_main(view.proxy), names.finished(text, view.proxy), sources, written_credentials.in_text(view))
    files = (replace(item, text=names.finished(item.text, view.proxy)) for item in context.files)
    return Bundle((main, *files), (*context.diagnostics, *_of_view(view)))


def _without_dollar(text: str, sources: dict[int, Path], files: Iterable[File]) -> tuple[str, dict[int, Path]]:
    """Return the text and its sources without the dollar sign variable if it is not used."""
    if any(quote.DOLLAR in each for each in (text, *(file.text for file in files))):
        return text, sources
    lines = text.split("\n")
    line = next(number for number, each in enumerate(lines) if each.startswith(_DOLLAR))
    shifted = {number - (number > line): path for number, path in sources.items()}
    return "\n".join(lines[:line] + lines[line + 1 :]), shifted


def _main(proxy: Proxy) -> str:
    return "lbctl.conf" if proxy.is_fragment else "nginx.conf"


def diagnostics(view: View) -> tuple[Diagnostic, ...]:
    """Return the diagnostics of `render` without rendering the template."""
    context = RenderContext(view)
    _listeners(context, Upstreams(context))
    log.maps(context)
    _warn_about_sizes(context)
    busy.warn(context)
    warn_about_fallback_limits(context)
    return (*context.diagnostics, *_of_view(view))


def _of_view(view: View) -> tuple[Diagnostic, ...]:
    return (*placeless(view), *without_queue(view, "nginx"))


def _warn_about_sizes(context: RenderContext) -> None:
    """Warn if a fragment needs larger hash tables than nginx's default.

    Only the host can set the sizes of these tables.
    """
    hosts = [
        host for item in context.view.listeners if item.tls for each in item.tls.certificates for host in each.hosts
    ]
    longest = {"map": _longest(context), "server_names": max(map(len, hosts), default=0)}
    for table, length in longest.items():
        if context.view.proxy.is_fragment and length > _FITS:
            directive = f"{table}_hash_bucket_size {_power(2 * length, 128)};"
            message = f"a key of {length} characters needs `{directive}` in the host's `http` block"
            path = ("proxies", context.view.proxy.name, "form")
            context.warn(
                "proxies.form", path, message, "write the directive above the first `map` and `include` of that block"
            )


def _temporary_paths(proxy: Proxy) -> Token | None:
    """Return the path of nginx's temporary files; None for nginx's default paths, which an installed nginx has.

    Only root can create the default paths, so an nginx with its configuration elsewhere keeps its temporary files next
    to it.
    """
    if is_system_wide(proxy):
        return None
    directory = posixpath.dirname(proxy.config or "")
    paths = {name: quote.plain(posixpath.join(directory, f"lbctl-{name}")) for name in _TEMPORARY}
    return Token(" ".join(f"{name.replace('-', '_')}_temp_path {path.text};" for name, path in paths.items()))


def _values(context: RenderContext) -> dict[str, object]:
    view, upstreams = context.view, Upstreams(context)
    built = _listeners(context, upstreams)
    number = len(context.maps)
    log.maps(context)
    if context.view.picker is not None:
        pick.maps(context)
        context.files.extend(file for file in [pick.key_file(context.view)] if file is not None)
    return {
        "fragment": context.view.proxy.is_fragment,
        "pushes": context.view.proxy.version < _WITHOUT_PUSH,
        "uncounted": limits.uncounted(context) if context.view.proxy.is_fragment else (),
        "picker_name": pick.upstream_name(context.view),
        "pick_format": pick.format_name(context.view),
        "traffic_format": log.traffic_name(context.view),
        "tls_cache": Token(names.own("lb_tls", context.view.proxy)),
        "connections": _connections(context.view),
        "temporary": _temporary_paths(context.view.proxy),
        "formats": [
            *(written for _, written in built),
            *([log.traffic_format(context.view)] if context.view.traffic_log else ()),
            *([pick.log_format(context.view)] if context.view.picker is not None else ()),
        ],
        "picker": pick.address(context.view),
        "metrics": _metrics(context.view.proxy),
        "listeners": [server for server, _ in built],
        "own_http": own_lines.tokens(context.view.proxy, "http"),
        "upstreams": upstreams.all,
        "maps": context.maps[:number],
        "log_maps": context.maps[number:],
        "grpc": any(server.has_grpc for server, _ in built),
        "forwards": any(server.forwards for server, _ in built),
        "websocket": any(route.websocket for route in context.view.routes.values()),
        "ambiguous": quote.plain(f"~{AMBIGUOUS}"),
        "host": quote.plain(_HOST_TWICE),
        "host_value": quote.script(f"{names.captured(_HOST)}{names.captured(_HOST, '_port')}"),
        "lookups": _lookups(context),
        "draws": context.draws,
        "geos": context.geos,
        "zones": context.zones,
        "hash_size": _power(4 * (len(context.maps) + 200)),
        "map_hash": _map_hash(context),
        "names_hosts": any(host for server, _ in built for identity in server.identities for host in identity.hosts),
        "chooses": bool(view.proxy.include) or any(server.only is None or server.checks for server, _ in built),
        "limits_rates": any(zone.rate is not None for zone in context.zones),
        "errors": ERRORS,
    }


def _metrics(proxy: Proxy) -> Token | None:
    return quote.plain(str(proxy.metrics), ("proxies", proxy.name, "metrics")) if proxy.metrics else None


def _listeners(context: RenderContext, upstreams: Upstreams) -> list[tuple[ServerBlock, LogFormat]]:
    routes = Routes.of(context, upstreams)
    return [listener.build(context, routes, item, number) for number, item in enumerate(context.view.listeners)]


def _lookups(context: RenderContext) -> list[dict[str, Token]]:
    return [
        {
            "variable": Token(variable),
            "source": Token(source),
            "pattern": quote.plain(f"~{before}{names.group(variable, pattern)}"),
            "value": Token(names.captured(variable)),
        }
        for variable, (source, before, pattern) in context.lookups.patterns.items()
    ]


def _connections(view: View) -> int:
    """Return `worker_connections`: two for each client connection (one is to the replica), plus a reserve."""
    limits = [item.max_connections for item in view.listeners]
    total = sum(item for item in limits if item) if limits and all(limits) else _CONNECTIONS
    return min(_MAX_CONNECTIONS, 2 * total + _SPARE)


def _map_hash(context: RenderContext) -> tuple[int, int] | None:
    """Return the sizes of the maps' hash tables and of their buckets; None if nginx's defaults are sufficient."""
    most, longest = max((len(item.entries) + item.included for item in context.maps), default=1), _longest(context)
    if most <= _FEW and longest <= _FITS:
        return None
    return _power(4 * most, 2048), _power(2 * longest, _BUCKET if most <= _MANY else 2 * _BUCKET)


def _longest(context: RenderContext) -> int:
    keys = (key.text for item in context.maps for key, _ in item.entries if not key.text.startswith('"~'))
    return max(map(len, keys), default=1)


def _power(size: int, least: int = 1024) -> int:
    """Return the smallest power of two that is not less than `size` and `least`."""
    return max(least, 1 << (size - 1).bit_length())
