"""Converts `proxy_pass` and `grpc_pass`: the destination's pool, path and host, and the effect of variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from lbctl.base.diagnostics import Path
from lbctl.importer import provider
from lbctl.importer.nginx import hosted, includes, pools, values
from lbctl.importer.nginx.context import NginxImport, Scope, flat
from lbctl.importer.nginx.match import hosts_of, label
from lbctl.importer.nginx.policy import CLIENT_HOST
from lbctl.importer.statement import Statement
from lbctl.importer.values import HOST, is_whole

_VARIABLE = re.compile(r"(\w+://)?\$\{?(\w+)\}?(?:\$(?:request_uri|uri|is_args|args))*")
_REWRITE = re.compile(r"\^?(?P<old>/[A-Za-z0-9._/-]*?)(?:/?\(\.\*\)|/\(\.\*\))\$?")
_PERCENT = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,2})?%", re.ASCII)
_DEFAULT_PORT = {"http": 80, "https": 443, "grpc": 80, "grpcs": 443}


@dataclass(frozen=True, slots=True)
class PassTarget:
    """The destination of requests that meet one condition."""

    pools: dict[Path, int]
    """Pools with their shares."""
    match: dict[str, Any] = field(default_factory=dict)
    """Conditions in addition to the location."""
    path: str = ""
    """Path that replaces the location's prefix, or an empty string if the prefix is not replaced."""
    host: str = ""
    """Host in the URL, which nginx sends if no Host header is set."""
    statements: tuple[Statement, ...] = ()
    """The destination's statements."""
    label: str = ""
    """Suffix that distinguishes the route's name, or an empty string for the default."""


def targets(context: NginxImport, scope: Scope, passing: Statement) -> list[PassTarget]:
    """Return a `proxy_pass` directive's targets, or none if they depend on variables that lbctl cannot follow."""
    url = passing.args[0] if passing.args else ""
    variable = _VARIABLE.fullmatch(url)
    if variable is None:
        target = _plain(context, url, passing, scope)
        return [target] if target else []
    scheme, name = variable[1] or "http://", f"${variable[2]}"
    return [item for item in _resolved(context, scope, passing, scheme, name) if item is not None]


def _plain(context: NginxImport, url: str, passing: Statement, scope: Scope) -> PassTarget | None:
    """Return the target of a URL whose host does not contain a variable."""
    if "$" in url:
        url, _, rest = url.partition("$")
        if (
            not re.fullmatch(r"(?:request_uri|uri\$is_args\$args|1\$is_args\$args)", rest)
            and "/" not in url.split("://")[-1]
        ):
            return None
    scheme, _, rest = (url if "://" in url else f"grpc://{url}").partition("://")
    authority, slash, path = rest.partition("/")
    if scheme not in _DEFAULT_PORT:
        return None
    if rest.startswith("unix:"):
        authority, slash, path = rest.removesuffix(":"), "", ""
    pool = _pool(context, scheme, authority, passing, scope)
    if pool is None:
        return None
    _protocol(context, pool, scheme, authority, passing, scope)
    hosted.carry(context, pool, authority, scope)
    return PassTarget({pool: 1}, path=f"/{path}" if slash else "", host=authority, statements=(passing,))


def _pool(context: NginxImport, scheme: str, authority: str, passing: Statement, scope: Scope) -> Path | None:
    """Return the pool for an upstream or address. An upstream with several protocols becomes several pools."""
    secrets = tuple(item.value for item in hosted.credentials(scope))
    key, port = (scheme, authority, secrets), _DEFAULT_PORT[scheme]
    if key in context.addresses:
        return context.addresses[key]
    block = next((item for item in flat(context.http.block, "upstream") if item.args == (authority,)), None)
    if block is not None:
        context.addresses[key] = pools.upstream(context, block, port=port)
        return context.addresses[key]
    address = values.address(authority, port)
    if address is None:
        return None
    context.addresses[key] = pools.single(context, address, passing, _pool_name(scope))
    return context.addresses[key]


def _pool_name(scope: Scope) -> str:
    """Return a name for an address's pool, derived from its location or otherwise from its server."""
    servers = [level for level in scope.levels if level.name == "server"]
    hosts, _ = hosts_of([item for level in servers for item in flat(level, "server_name")])
    location = next((level for level in scope.levels if level.name == "location"), None)
    text = label(location, ()) if location is not None else "default"
    return text if text != "default" else (hosts[0].split(".")[0] if hosts else "backend")


def _protocol(context: NginxImport, pool: Path, scheme: str, authority: str, passing: Statement, scope: Scope) -> None:
    if scheme.startswith("grpc"):
        context.draft.put((*pool, "protocol"), "grpc", passing)
    if scheme in {"https", "grpcs"}:
        _tls(context, pool, authority, passing, scope, "grpc" if scheme == "grpcs" else "proxy")


def _tls(context: NginxImport, pool: Path, authority: str, passing: Statement, scope: Scope, prefix: str) -> None:
    draft, tls = context.draft, dict(context.draft.get((*pool, "tls")) or {})
    statements = [passing]
    verify = scope.last(f"{prefix}_ssl_verify")
    keys = [("ssl_certificate", "certificate"), ("ssl_certificate_key", "key"), ("ssl_name", "server_name")]
    if verify is not None and verify.args == ("on",):
        keys.append(("ssl_trusted_certificate", "ca"))
        statements.append(verify)
    elif not hosted.credentials(scope):
        message = "replica certificates are not verified: an attacker on the network can read and change prompts"
        draft.ledger.advise(verify or passing, message, "set `tls.ca` to the CA that signed the certificates")
    for name, key in keys:
        item = scope.last(f"{prefix}_{name}")
        if item is not None and item.args and "$" not in item.args[0]:
            tls[key] = provider.authority(item.args[0]) if key == "ca" else item.args[0]
            statements.append(item)
    sni = scope.last(f"{prefix}_ssl_server_name")
    if sni is not None:
        draft.ledger.imply("lbctl always sends the server name (SNI)", sni)
    host = authority.rpartition(":")[0] or authority
    if "server_name" not in tls and HOST.fullmatch(host) and not is_whole(host.replace(".", "")):
        tls["server_name"] = host
    draft.put((*pool, "tls"), tls, *statements)


# ── Variables ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _resolved(
    context: NginxImport, scope: Scope, passing: Statement, scheme: str, name: str
) -> Iterator[PassTarget | None]:
    assigned = [item for level in scope.levels for item in flat(level, "set") if item.args[:1] == (name,)]
    if assigned and len(assigned[0].args) > 1:
        value = assigned[0].args[1]
        inner = _VARIABLE.fullmatch(value)
        if inner is not None and f"${inner[2]}" != name:
            yield from _resolved(context, scope, passing, inner[1] or scheme, f"${inner[2]}")
            context.draft.ledger.imply("lbctl resolves the variable", assigned[0])
            return
        yield _with(_plain(context, _url(scheme, value), passing, scope), statements=(passing, assigned[0]))
        yield from _conditional(context, scope, passing, scheme, name)
        return
    table = context.maps.get(name)
    if table is not None and table.name == "split_clients":
        yield _split(context, scope, passing, scheme, table)
    elif table is not None and table.name == "map":
        yield from _mapped(context, scope, passing, scheme, table)


def _conditional(
    context: NginxImport, scope: Scope, passing: Statement, scheme: str, name: str
) -> Iterator[PassTarget | None]:
    """Yield the targets of `if (…) { set $name …; }`."""
    for level in scope.levels:
        for block in flat(level, "if"):
            change = next((item for item in flat(block, "set") if item.args[:1] == (name,)), None)
            extra = condition(block)
            if change is None or len(change.args) < 2:
                continue
            target = _plain(context, _url(scheme, change.args[1]), passing, scope) if extra is not None else None
            if target is None:
                misroute(context, block, change.args[1])
            yield _with(target, match=extra, statements=(block, change), label=change.args[1])


def misroute(context: NginxImport, item: Statement, destination: str) -> None:
    """Report a condition that cannot be expressed.

    Requests that meet the condition are sent to the same destination as other requests for the location.
    """
    message = f"requests for {destination} use another route of this location: `match` cannot express the condition"
    context.draft.ledger.misroute(item, message)


def condition(block: Statement) -> dict[str, Any] | None:
    """Return the match for an `if` that compares a header or the method, without cookies; None for any other `if`."""
    text = " ".join(block.args).strip()
    text = text[1:-1].strip() if text.startswith("(") and text.endswith(")") else text
    match = re.fullmatch(r"(\$\{?\w+\}?)\s+=\s+\"?([^\"]+)\"?", text)
    if match is None:
        return None
    if match[1] == "$request_method":
        return {"methods": [match[2].strip("'")]}
    header = values.header_of(match[1])
    if match[1] in {"$host", "$http_host"}:
        return {"hosts": [match[2]]}
    return {"headers": {header: match[2]}} if header else None


def _url(scheme: str, value: str) -> str:
    return value if "://" in value else f"{scheme}{value}"


def _with(
    target: PassTarget | None,
    *,
    match: dict[str, Any] | None = None,
    statements: tuple[Statement, ...] = (),
    label: str = "",
) -> PassTarget | None:
    if target is None:
        return None
    statements = (*statements, *(item for item in target.statements if item not in statements))
    return PassTarget(target.pools, match or {}, target.path, target.host, statements, label)


def _split(context: NginxImport, scope: Scope, passing: Statement, scheme: str, table: Statement) -> PassTarget | None:
    shares = dict[Path, int]()
    rest = 10_000
    host = ""
    for item in table.block:
        target = _plain(context, _url(scheme, item.args[0] if item.args else ""), passing, scope)
        if target is None or (item.name != "*" and not _PERCENT.fullmatch(item.name)):
            return None
        share = rest if item.name == "*" else round(float(item.name.rstrip("%")) * 100)
        rest -= share
        host = host or target.host
        for pool in target.pools:
            shares[pool] = shares.get(pool, 0) + share
    if table.args and re.sub(r"[{}]", "", table.args[0]) not in {"$remote_addr", "$binary_remote_addr", "$request_id"}:
        reason = "lbctl selects a variant for each request; `sticky_split` keeps a client on one variant"
        context.draft.ledger.omit(table, reason, (), part=f"split_clients {table.args[0]}")
    return PassTarget(shares, host="", statements=(passing, table, *table.block))


def _mapped(
    context: NginxImport, scope: Scope, passing: Statement, scheme: str, table: Statement
) -> Iterator[PassTarget | None]:
    """Yield a target for each value in a map, if a route can match its source."""
    source = table.args[0] if table.args else ""
    for item in includes.unread(table.block):
        misroute(context, item, f"the pools in {item.args[0]}")
    for item in flat(table):
        if item.name in {"hostnames", "volatile"}:
            context.draft.ledger.imply("this changes only how nginx reads the map", item)
            continue
        if item.name == "default":
            target = _mapped_value(context, scope, passing, scheme, item)
            yield _with(target, statements=(passing, table, item))
            continue
        extra = _map_match(source, item.name)
        if extra is None:
            context.draft.ledger.omit(item, "`match` compares full values of headers, hosts and methods only")
            misroute(context, item, " ".join(item.args))
            continue
        target = _mapped_value(context, scope, passing, scheme, item)
        if target is None:
            misroute(context, item, " ".join(item.args))
        yield _with(target, match=extra, statements=(table, item), label=item.name)


def _mapped_value(
    context: NginxImport, scope: Scope, passing: Statement, scheme: str, item: Statement
) -> PassTarget | None:
    value = item.args[0] if item.args else ""
    inner = _VARIABLE.fullmatch(value)
    if inner is not None:
        table = context.maps.get(f"${inner[2]}")
        return _split(context, scope, passing, scheme, table) if table and table.name == "split_clients" else None
    return _plain(context, _url(scheme, value), passing, scope) if value else None


def _map_match(source: str, key: str) -> dict[str, Any] | None:
    key = key.removeprefix("\\")
    header = values.header_of(source)
    if key.startswith("~") or not key:
        return None
    if source in {"$host", "$http_host", "$server_name"}:
        return {"hosts": [key]} if HOST.fullmatch(key.removeprefix("*.")) else None
    if source == "$request_method":
        return {"methods": [key]}
    if source == "$uri" and key.startswith("/"):
        return {"path": key}
    return {"headers": {header: key}} if header else None


# ── Path and host ────────────────────────────────────────────────────────────────────────────────────────────────────


def rewrite(context: NginxImport, route: Path, scope: Scope, target: PassTarget, prefix: str, location: str) -> None:
    """Set the route's rewrite: the path of the URL or of a `rewrite … break`, and the Host header."""
    draft = context.draft
    replaces = bool(target.path) and target.path != location and bool(target.statements)
    if replaces and "path_prefix" in draft.get((*route, "match")):
        draft.put((*route, "rewrite", "path_prefix"), target.path, target.statements[0])
    for item in flat(scope.block, "rewrite"):
        _rewrite(context, route, item)
    hosts = [item for item in scope.all(f"{prefix}_set_header") if item.args[:1] and item.args[0].lower() == "host"]
    if (own := provider.host_of(draft, route)) is not None:
        draft.ledger.imply("the pool sends its own Host header (`upstream.host`)", *hosts)
        if hosts and hosts[-1].args[1:] != (own,):
            draft.ledger.omit(hosts[-1], "a pool with its own key sends its own Host header (`upstream.host`)", route)
        return
    value = hosts[-1].args[1] if hosts and len(hosts[-1].args) > 1 else ("" if hosts else "$proxy_host")
    if value in CLIENT_HOST:
        draft.ledger.imply("lbctl forwards the client's Host header", *hosts)
        return
    host = target.host if value in {"$proxy_host", "$proxy_host:$proxy_port"} else value
    if HOST.fullmatch(host):
        draft.put((*route, "rewrite", "host"), host, *(hosts or target.statements[:1]))
    elif hosts:
        draft.ledger.omit(
            hosts[-1],
            "lbctl cannot send this value as the Host header: replicas receive the client's Host header",
            route,
        )
    elif host:
        reason = "nginx sends this Host header to replicas; lbctl sends the client's Host header"
        draft.ledger.omit(target.statements[0], reason, route, part=f"Host: {host}")


def _rewrite(context: NginxImport, route: Path, item: Statement) -> None:
    old = _REWRITE.fullmatch(item.args[0]) if item.args else None
    new = re.fullmatch(r"(/[A-Za-z0-9._/-]*?)\$1", item.args[1]) if len(item.args) > 1 else None
    match = context.draft.get((*route, "match")) or {}
    written = match.get("path_prefix", "/").rstrip("/")
    if old is not None and new is not None and old["old"].rstrip("/") == written and match.get("path_prefix"):
        context.draft.put((*route, "rewrite", "path_prefix"), new[1] or "/", item)
        return
    context.draft.ledger.omit(item, "lbctl can replace only the matched prefix (`rewrite.path_prefix`)", route)
    context.draft.close(route, "the rewrite could not be converted")
