"""Converts `upstream` blocks, and addresses in `proxy_pass`, to pools."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from lbctl.base.diagnostics import Path
from lbctl.importer.nginx import values
from lbctl.importer.nginx.context import NginxImport, flat
from lbctl.importer.statement import Statement
from lbctl.importer.values import duration, is_whole

_IMPLIED = {
    "zone": "lbctl adds a zone to every pool",
    "keepalive": "lbctl always keeps connections to replicas open",
    "resolver": "the proxy or `lbctl serve` resolves names",
    "resolver_timeout": "the proxy or `lbctl serve` resolves names",
}
_HUGE_FAIL_TIMEOUT = 600_000


def upstream(context: NginxImport, block: Statement, *, port: int = 80) -> Path:
    """Add the pool for an `upstream` block."""
    pool = context.draft.add("pools", block.args[0] if block.args else "pool", block)
    context.draft.ledger.home(block, pool)
    context.draft.put((*pool, "balance"), {"algorithm": "round_robin"})
    servers = [item for item in flat(block, "server") if item.args]
    _replicas(context, pool, servers, port)
    for item in flat(block):
        if item.name in _ALGORITHMS:
            _ALGORITHMS[item.name](context, pool, item)
        elif item.name in _IMPLIED:
            context.draft.ledger.imply(_IMPLIED[item.name], item)
        elif item.name in _SETTINGS:
            _setting(context, pool, item)
    _advise(context, block, servers)
    return pool


def single(context: NginxImport, address: str, origin: Statement, name: str) -> Path:
    """Add the pool for a `proxy_pass` to a single address."""
    pool = context.draft.add("pools", name or re.sub(r"[^A-Za-z0-9.-]", "-", address), origin)
    context.draft.put((*pool, "replicas"), [{"address": address}], origin)
    return pool


# ── The servers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _replicas(context: NginxImport, pool: Path, servers: Iterable[Statement], port: int) -> None:
    draft, replicas = context.draft, list[dict[str, Any]]()
    weights = {_parameter(item, "weight") or "1" for item in servers}
    for item in servers:
        address = values.address(item.args[0], port)
        if address is None:
            draft.ledger.omit(item, "this is not a valid address for a replica", pool)
            continue
        replicas.append({"address": address})
        path = (*pool, "replicas", len(replicas) - 1)
        draft.ledger.carry(path, item)
        for word in item.args[1:]:
            _server_word(context, path, item, word, weighted=len(weights) > 1)
        if len(weights) > 1:
            replicas[-1].setdefault("weight", _number(_parameter(item, "weight") or "1"))
        replicas[-1].update(_flags(item))
    if replicas:
        draft.put((*pool, "replicas"), replicas)
    _shared_parameters(context, pool, list(servers))


def _flags(item: Statement) -> dict[str, Any]:
    return {
        key: value for word, key, value in (("backup", "priority", 1), ("down", "drain", True)) if word in item.args
    }


def _server_word(context: NginxImport, path: Path, item: Statement, word: str, *, weighted: bool) -> None:
    name, _, _ = word.partition("=")
    del weighted
    if name in {"weight", "backup", "down", "max_fails", "fail_timeout", "max_conns"}:
        return
    if name in {"resolve", "slow_start"}:
        reason = (
            "use `discovery: {dns: …}` to resolve the name repeatedly"
            if name == "resolve"
            else "lbctl turns on slow start by default"
        )
        context.draft.ledger.omit(item, reason, path[:2], part=f"server {item.args[0]} {word}")
        return
    context.draft.ledger.omit(
        item, "the fleet file has no key for this option", path[:2], part=f"server {item.args[0]} {word}"
    )


def _shared_parameters(context: NginxImport, pool: Path, servers: list[Statement]) -> None:
    """Convert parameters that apply to the whole pool in a fleet, using the first server's values."""
    targets: tuple[tuple[str, tuple[str, ...], Callable[[str], object]], ...] = (
        ("max_fails", ("health", "passive", "consecutive_connect_failures"), _positive),
        ("fail_timeout", ("health", "passive", "ejection_time"), _bounded_time),
        ("max_conns", ("circuit_breaker", "per_replica", "max_connections"), _positive),
    )
    for name, keys, convert in targets:
        holders = [(item, text) for item in servers if (text := _parameter(item, name)) is not None]
        if not holders:
            continue
        value = convert(holders[0][1])
        if value is not None:
            context.draft.put((*pool, *keys), value, holders[0][0])
        for item, written in holders:
            if value is None or written != holders[0][1]:
                reason = "a pool has a single value for all replicas" if value is not None else "lbctl uses its default"
                context.draft.ledger.omit(item, reason, pool, part=f"server {item.args[0]} {name}={written}")


def _parameter(item: Statement, name: str) -> str | None:
    return next((word.partition("=")[2] for word in item.args[1:] if word.startswith(f"{name}=")), None)


def _number(text: str) -> int | str:
    return int(text) if is_whole(text) else text


def _positive(text: str) -> int | None:
    return int(text) if is_whole(text) and int(text) > 0 else None


def _bounded_time(text: str) -> str | None:
    value = values.milliseconds(text)
    return duration(value) if value is not None and 0 < value < _HUGE_FAIL_TIMEOUT else None


# ── The algorithm ────────────────────────────────────────────────────────────────────────────────────────────────────


def _named(algorithm: str) -> Callable[[NginxImport, Path, Statement], None]:
    def put(context: NginxImport, pool: Path, item: Statement) -> None:
        context.draft.put((*pool, "balance"), {"algorithm": algorithm}, item)

    return put


def _random(context: NginxImport, pool: Path, item: Statement) -> None:
    two = bool(item.args) and item.args[0] == "two"
    context.draft.put((*pool, "balance"), {"algorithm": "least_request" if two else "random"}, item)


def _ip_hash(context: NginxImport, pool: Path, item: Statement) -> None:
    balance = {"algorithm": "hash", "hash": {"key": {"source_ip": {}}}}
    context.draft.put((*pool, "balance"), balance, item)
    context.draft.ledger.advise(
        item,
        "ip_hash sends all clients behind one address to one replica, even if it is overloaded",
        "lbctl uses `hash` by `source_ip`; to spread the load, use a session header, or `prompt_prefix` with "
        "`bounded_load`",
    )


def _hash(context: NginxImport, pool: Path, item: Statement) -> None:
    key = _hash_key(item.args[0] if item.args else "")
    if key is None:
        reason = "`hash.key` can be a header, cookie, query parameter, the client's address, or a part of the body"
        hint = "set `balance: {algorithm: hash, hash: {key: …}}` with a key that identifies a session"
        context.draft.lose_sessions(pool, item, reason, hint)
        context.draft.put((*pool, "balance"), {"algorithm": "least_request"})
        return
    context.draft.put((*pool, "balance"), {"algorithm": "hash", "hash": {"key": key}}, item)


def _hash_key(variable: str) -> dict[str, Any] | None:
    if variable in {"$remote_addr", "$binary_remote_addr"}:
        return {"source_ip": {}}
    if header := values.header_of(variable):
        return {"header": header}
    if cookie := values.cookie_of(variable):
        return {"cookie": cookie}
    match = re.fullmatch(r"\$\{?arg_([A-Za-z0-9_]+)\}?", variable)
    return {"query": match[1]} if match else None


def _sticky(context: NginxImport, pool: Path, item: Statement) -> None:
    if len(item.args) < 2 or item.args[0] != "cookie":
        reason = "cookie `affinity` supports only cookies that the proxy sets"
        hint = (
            "write `affinity: {cookie: NAME}`: lbctl sets this cookie, and clients that return it stay on their replica"
        )
        context.draft.lose_sessions(pool, item, reason, hint)
        return
    expires = next((word[8:] for word in item.args if word.startswith("expires=")), "")
    ttl = {"ttl": ttl} if (ttl := values.time(expires)) else {}
    context.draft.put((*pool, "affinity"), {"cookie": item.args[1], **ttl}, item)


_ALGORITHMS: dict[str, Callable[[NginxImport, Path, Statement], None]] = {
    "least_conn": _named("least_request"),
    "least_time": _named("least_time"),
    "round_robin": _named("round_robin"),
    "random": _random,
    "ip_hash": _ip_hash,
    "hash": _hash,
    "sticky": _sticky,
}
_SETTINGS: dict[str, tuple[tuple[str, ...], Callable[[str], object]]] = {
    "keepalive_timeout": (("connections", "idle"), values.time),
    "keepalive_requests": (("connections", "max_requests"), _positive),
}


def _setting(context: NginxImport, pool: Path, item: Statement) -> None:
    keys, convert = _SETTINGS[item.name]
    value = convert(item.args[0]) if item.args else None
    if value is not None:
        context.draft.put((*pool, *keys), value, item)


def _advise(context: NginxImport, block: Statement, servers: list[Statement]) -> None:
    ledger = context.draft.ledger
    if next(flat(block, "zone"), None) is None and len(servers) > 1:
        message = "without `zone` in the upstream, each worker counts connections and failures separately"
        ledger.advise(block, message, "lbctl adds a zone to every pool")
    for item in servers:
        written = values.milliseconds(_parameter(item, "fail_timeout") or "")
        if written is not None and written >= _HUGE_FAIL_TIMEOUT:
            message = f"fail_timeout={_parameter(item, 'fail_timeout')} removes a replica for this time after a failure"
            ledger.advise(item, message, "lbctl ejects a replica for 30s by default, and at most half of a pool")
        if _parameter(item, "max_fails") == "0":
            ledger.advise(
                item,
                "max_fails=0 keeps sending requests to a dead replica",
                "lbctl ejects a replica after three failed connections",
            )
