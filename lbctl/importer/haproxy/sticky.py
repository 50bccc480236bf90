"""Converts `stick` rules, which store a session's server, to a hash of the same key or to `affinity`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lbctl.base.diagnostics import Path
from lbctl.importer.haproxy import values
from lbctl.importer.haproxy.conditions import condition
from lbctl.importer.haproxy.context import HaproxyImport, HaproxySection
from lbctl.importer.haproxy.rules import acls, parted
from lbctl.importer.statement import Statement

OWN_COOKIE = (
    "write `affinity: {cookie: NAME}`: lbctl sets this cookie, and clients that return it stay on their replica"
)
_HASH = (
    "set the hash key to a header that clients send with each request of a session: `balance: {algorithm: hash, "
    "hash: {key: {header: NAME}}}`"
)
_HEADER = re.compile(r"(?:req\.)?f?hdr\(([A-Za-z0-9_-]+)(?:,-?1)?\)")
_ANSWERED = re.compile(r"res\.f?hdr\(([A-Za-z0-9_-]+)(?:,-?1)?\)")
_KEYS = (
    ("cookie", re.compile(r"(?:(?:req\.)?cook|cookie)\((\w+)\)")),
    ("query", re.compile(r"(?:url_param|urlp)\(([\w.-]+)\)")),
    ("json_body", re.compile(r"req\.body,json_query\([\'\"]?(\$\.[\w.]+)[\'\"]?\)")),
)


def carry(context: HaproxyImport, path: Path, section: HaproxySection) -> None:
    """Convert a section's `stick` rules to settings of its pool, or report that its sessions are lost."""
    lines = [item for item in section.own("stick") if len(item.args) > 1]
    if (session := _session_header(section, lines)) is not None:
        context.draft.put((*path, "affinity"), session, *lines, *_tables(section))
    elif any(item.args[0] == "store-response" for item in lines):
        for item in lines:
            reason = "lbctl cannot remember a value from a response"
            context.draft.lose_sessions(path, item, reason, OWN_COOKIE)
    else:
        _hash(context, path, section, lines)


def _session_header(section: HaproxySection, lines: list[Statement]) -> dict[str, Any] | None:
    """Return the `affinity` for sessions that responses name in a header and that requests send back, or None."""
    rules = {item.args[0]: item.args[1] for item in lines if len(item.args) == 2}
    stored, sent = _ANSWERED.fullmatch(rules.get("store-response", "")), _HEADER.fullmatch(rules.get("match", ""))
    if len(lines) != 2 or stored is None or sent is None or section.last("cookie") is not None:
        return None
    if stored[1].lower() != sent[1].lower():
        return None
    table = next((item.args for item in _tables(section) if "expire" in item.args[:-1]), ())
    idle = values.time(table[table.index("expire") + 1]) if table else None
    return {"header": sent[1].lower(), **({"ttl": idle} if idle else {})}


def _hash(context: HaproxyImport, path: Path, section: HaproxySection, lines: list[Statement]) -> None:
    """Set the pool's hash to the key in the first rule that has one."""
    draft, chosen = context.draft, dict[str, Any]()
    stored = [_key(item) for item in lines if item.args[0] in {"on", "store-request"}]
    for item in lines:
        key, present = _key(item), draft.get((*path, "balance", "hash", "key"))
        if key is None or key not in stored:
            draft.lose_sessions(path, item, "lbctl cannot use this value as a hash key", _HASH)
        elif chosen and key != chosen:
            draft.lose_sessions(
                path, item, f"a pool can have only one hash key; this pool uses {_named(chosen)}", _HASH
            )
        elif (conditions := list(_conditions(section, item))) and not _is_presence(key, section, item):
            draft.lose_sessions(path, item, "a hash key cannot have a condition", _HASH)
        else:
            if present != key:
                _replace(context, path, section, key)
            chosen = key
            draft.ledger.carry((*path, "balance", "hash"), item, *conditions, *_tables(section))
            if "source_ip" in key:
                advise_address(context, item)


def _replace(context: HaproxyImport, path: Path, section: HaproxySection, key: dict[str, Any]) -> None:
    draft, balance = context.draft, section.last("balance")
    present = draft.get((*path, "balance", "hash"))
    if balance is not None and present is not None:
        draft.ledger.revoke((*path, "balance"))
        draft.ledger.omit(
            balance, f"a pool can have only one hash key; this pool uses {_named(key)} from `stick`", path
        )
    elif balance is not None:
        draft.ledger.imply("the hash selects the replica of a new session", balance)
    draft.put((*path, "balance"), {"algorithm": "hash", "hash": (present or {}) | {"key": key}})


def _key(item: Statement) -> dict[str, Any] | None:
    """Return a hash key that identifies the same session as a rule, or None."""
    fetch = item.args[1]
    if fetch == "src":
        return {"source_ip": {}}
    if (header := _HEADER.fullmatch(fetch)) is not None:
        return {"header": header[1].lower()}
    return next(({name: match[1]} for name, form in _KEYS if (match := form.fullmatch(fetch)) is not None), None)


def _named(key: dict[str, Any]) -> str:
    ((name, value),) = key.items()
    return f"{name} {value}" if value else "the client's address"


def _conditions(section: HaproxySection, item: Statement) -> Iterator[Statement]:
    """Yield the rule itself if it has a condition, and the ACLs in the condition."""
    _, when, negated = parted(item.args)
    if when:
        yield item
        yield from condition(when, acls(section), negated=negated).statements


def _is_presence(key: dict[str, Any], section: HaproxySection, item: Statement) -> bool:
    """Return whether a rule's condition only checks that the request has its key."""
    _, when, negated = parted(item.args)
    terms = condition(when, acls(section), negated=negated).terms
    first = terms[0][0] if len(terms) == 1 and len(terms[0]) == 1 else None
    return (
        first is not None
        and not first.negated
        and first.tokens[1:] == ("-m", "found")
        and _key(Statement(item.position, ("stick", "on", first.tokens[0]))) == key
    )


def _tables(section: HaproxySection) -> Iterator[Statement]:
    return section.own("stick-table")


def advise_address(context: HaproxyImport, item: Statement) -> None:
    """Report that a key is the client's address."""
    line = " ".join(item.args[:2]) if item.name == "stick" else item.args[0]
    message = f"{item.name} {line} sends all clients behind one address to one server, even if it is overloaded"
    hint = "to spread the load, use a session header, or `prompt_prefix` with `bounded_load`"
    context.draft.ledger.advise(item, message, hint)
