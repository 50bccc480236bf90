"""Converts `backend` and `listen` sections to pools."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from itertools import chain, count
from typing import Any

from lbctl.base.diagnostics import Path
from lbctl.importer import provider
from lbctl.importer.draft import sane_name
from lbctl.importer.haproxy import checks, sticky, values
from lbctl.importer.haproxy.context import HaproxyImport, HaproxySection
from lbctl.importer.haproxy.servers import ServerLine, template
from lbctl.importer.values import HOST, is_whole
from lbctl.ir.secrets import may_hold_credential

_ALGORITHMS = {"roundrobin": "round_robin", "static-rr": "round_robin", "leastconn": "least_request"}


def pool(context: HaproxyImport, section: HaproxySection) -> Path:
    """Add a section's pool."""
    path = context.draft.add("pools", section.name, section.block)
    context.draft.ledger.home(section.block, path)
    _balance(context, path, section)
    _members(context, path, section)
    _cookie(context, path, section)
    sticky.carry(context, path, section)
    _provider(context, path, section)
    for name, keys in (("connect", "connect"), ("queue", "queue")):
        _timeout(context, path, section, name, keys)
    return path


def _provider(context: HaproxyImport, path: Path, section: HaproxySection) -> None:
    """Make the pool a hosted API if its backend sends its own Host header and key."""
    lines = {
        item.args[1].lower(): item
        for item in section.own("http-request", "set-header")
        if len(item.args) == 3 and "%" not in re.sub(r"%\[env\(\w+\)\]", "", item.args[2])
    }
    host = lines.pop("host", None)
    headers = [provider.Header(name, item.args[2], item) for name, item in lines.items()]
    secrets = [item for item in headers if may_hold_credential(item.name)]
    address = "".join(
        str(item["address"]).rpartition(":")[0] for item in (context.draft.get((*path, "replicas")) or [])[:1]
    )
    name = host.args[2] if host is not None else address
    if secrets and HOST.fullmatch(name):
        texts = [item for item in headers if item not in secrets]
        provider.put(context.draft, path, name, secrets, texts if host is not None else [], [host] if host else [])
        if host is None:
            reason = "a pool with its own key sends its own Host header: here, the address of its first replica"
            context.draft.ledger.omit(secrets[0].statement, reason, path, part="the client's Host")


def _timeout(context: HaproxyImport, path: Path, section: HaproxySection, name: str, key: str) -> None:
    item = section.last("timeout", name)
    value = values.time(item.args[1]) if item is not None and len(item.args) > 1 else None
    if item is not None and value is not None:
        context.draft.put((*path, "timeouts", key), value, item)


# ── The algorithm ────────────────────────────────────────────────────────────────────────────────────────────────────


def _balance(context: HaproxyImport, path: Path, section: HaproxySection) -> None:
    draft, item = context.draft, section.last("balance")
    if item is None or not item.args:
        draft.put((*path, "balance"), {"algorithm": "round_robin"})
        return
    word = item.args[0]
    if word in _ALGORITHMS:
        draft.put((*path, "balance"), {"algorithm": _ALGORITHMS[word]}, item)
    elif word.startswith("random"):
        # According to the manual, two draws by default, and the less loaded server is used.
        draft.put((*path, "balance"), {"algorithm": "random" if word == "random(1)" else "least_request"}, item)
    elif (key := _hash_key(item.args)) is not None:
        draft.put((*path, "balance"), {"algorithm": "hash", "hash": {"key": key}}, item)
        _hash_settings(context, path, section)
        if "source_ip" in key:
            sticky.advise_address(context, item)
    else:
        draft.put((*path, "balance"), {"algorithm": "least_request"})
        draft.ledger.omit(item, "lbctl does not support this algorithm and uses `least_request` instead", path)


def _hash_key(args: Sequence[str]) -> dict[str, Any] | None:
    if args[0] == "source":
        return {"source_ip": {}}
    header = re.fullmatch(r"hdr\(([A-Za-z0-9_-]+)\)", args[0])
    if header is None and args[0] == "hash" and len(args) > 1:
        header = re.fullmatch(r"(?:req\.)?f?hdr\(([A-Za-z0-9_-]+)\)", args[1])
    if header:
        return {"header": header[1].lower()}
    if args[0] == "hash" and len(args) > 1 and (cookie := re.fullmatch(r"req\.cook\((\w+)\)", args[1])):
        return {"cookie": cookie[1]}
    return {"query": args[1]} if args[0] == "url_param" and len(args) > 1 else None


def _hash_settings(context: HaproxyImport, path: Path, section: HaproxySection) -> None:
    factor = section.last("hash-balance-factor")
    if factor is not None and factor.args[:1] and is_whole(factor.args[0]) and int(factor.args[0]) > 100:
        context.draft.put((*path, "balance", "hash", "bounded_load"), int(factor.args[0]) / 100, factor)
    if (kind := section.last("hash-type")) is not None:
        context.draft.ledger.imply("lbctl's hashes are always consistent", kind)


# ── The servers ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _members(context: HaproxyImport, path: Path, section: HaproxySection) -> None:
    ledger = context.draft.ledger
    templates = list(section.own("server-template"))
    lines = list(section.own("server"))
    base = ServerLine.defaults(section)
    ledger.carry(path, *base.statements)
    if templates and not lines:
        member = template(context, path, templates[0], base)
        for item in templates[1:]:
            ledger.omit(item, "a pool can discover replicas by only one DNS name", path)
        servers = [member] if member else []
    else:
        servers = [server for item in lines if (server := base.of(item))]
        _replicas(context, path, servers)
        for item in templates:
            ledger.omit(item, "a pool can have either `replicas` or `discovery`, but not both", path)
    _shared(context, path, servers)
    checks.active(context, path, section, servers)


def _replicas(context: HaproxyImport, path: Path, servers: Sequence[ServerLine]) -> None:
    draft, replicas, taken = context.draft, list[dict[str, Any]](), set[str]()
    weighted = len({server.get("weight", "1") for server in servers if server.get("weight", "1") != "0"}) > 1
    for server in servers:
        address = values.server_address(server.address)
        if address is None:
            reason = "a replica needs a host and a port"
            draft.ledger.omit(server.line, reason, path)
            continue
        replica: dict[str, Any] = {"name": server.name, "address": address}
        weight = server.get("weight", "1")
        if weighted and is_whole(weight) and int(weight) > 0:
            replica["weight"] = int(weight)
        elif weighted:
            replica["weight"] = 1
        if server.has("backup"):
            replica["priority"] = 1
        if server.has("disabled") or weight == "0":
            replica["drain"] = True
        replica["name"] = _unique_name(replica["name"], taken)
        taken.add(replica["name"])
        replicas.append(replica)
        draft.ledger.carry((*path, "replicas", len(replicas) - 1), server.line)
    if replicas:
        draft.put((*path, "replicas"), replicas)


def _unique_name(name: str, taken: Collection[str]) -> str:
    base = sane_name(name, "replica")
    return next(item for item in chain((base,), (f"{base[:58]}-{n}" for n in count(2))) if item not in taken)


def _per_replica(value: str) -> int | None:
    return int(value) if is_whole(value) and int(value) > 0 else None


_SHARED: dict[str, tuple[tuple[str, ...], Callable[[str], object]]] = {
    "maxconn": (("circuit_breaker", "per_replica", "max_requests"), _per_replica),
    "slowstart": (("slow_start", "window"), values.time),
    "error-limit": (("health", "passive", "consecutive_5xx"), _per_replica),
}


def _shared(context: HaproxyImport, path: Path, servers: Sequence[ServerLine]) -> None:
    """Convert server settings that are pool settings in a fleet, and report unsupported settings."""
    draft = context.draft
    for word, (keys, convert) in _SHARED.items():
        holders = [server for server in servers if server.get(word, "")]
        value = convert(holders[0].get(word, "")) if holders else None
        if value is None:
            continue
        draft.put((*path, *keys), value, holders[0].line)
        for server in servers:
            if (own := server.get(word, "")) != holders[0].get(word, ""):
                part = f"server {server.name} {word} {own}" if own else f"server {server.name} without {word}"
                reason = (
                    f"a pool has a single value for all replicas: {holders[0].get(word, '')} applies to this replica, "
                    "too"
                )
                draft.ledger.omit(server.line, reason, path, part=part)
    _tls(context, path, servers)
    for server in servers:
        for part in server.unknown:
            text = f"server {server.name} {part}"
            draft.ledger.omit(server.line, "the fleet file has no key for this option", path, part=text)


def _tls(context: HaproxyImport, path: Path, servers: Sequence[ServerLine]) -> None:
    draft = context.draft
    first = next((server for server in servers if server.has("ssl")), None)
    if any("proto h2" in server.text or "alpn h2" in server.text for server in servers):
        draft.put((*path, "protocol"), "http2", servers[0].line)
    if first is None:
        return
    tls: dict[str, Any] = {}
    if first.get("verify", "required") == "required" and first.get("ca-file", ""):
        ca = context.file("ca", first.get("ca-file", ""))
        tls["ca"] = "system" if ca == "@system-ca" else provider.authority(ca)
    else:
        message = "replica certificates are not verified: an attacker on the network can read and change prompts"
        draft.ledger.advise(first.line, message, "set `tls.ca` to the CA that signed the certificates")
    name = re.fullmatch(r"str\((.+)\)", first.get("sni", ""))
    if name or first.get("verifyhost", ""):
        tls["server_name"] = name[1] if name else first.get("verifyhost", "")
    if first.get("crt", ""):
        pair = context.file("crt", first.get("crt", ""))
        tls |= {"certificate": pair, "key": pair}
    draft.put((*path, "tls"), tls, first.line)


def _cookie(context: HaproxyImport, path: Path, section: HaproxySection) -> None:
    item = section.last("cookie")
    if item is None or not item.args:
        return
    if "insert" not in item.args:
        reason = "cookie `affinity` supports only cookies that the proxy sets"
        context.draft.lose_sessions(path, item, reason, sticky.OWN_COOKIE)
        return
    life = item.args[item.args.index("maxlife") + 1] if "maxlife" in item.args[:-1] else ""
    ttl = {"ttl": ttl} if (ttl := values.time(life if not is_whole(life) else f"{life}s")) else {}
    context.draft.put((*path, "affinity"), {"cookie": item.args[0], **ttl}, item)
