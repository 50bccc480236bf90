"""A route's request settings: headers, paths, timeouts and retries from its frontend and backend."""

from __future__ import annotations

import re

from lbctl.base.diagnostics import Path
from lbctl.importer import headers, provider
from lbctl.importer.draft import BUSY
from lbctl.importer.haproxy import own, values
from lbctl.importer.haproxy.conditions import condition
from lbctl.importer.haproxy.context import HaproxyImport, HaproxySection
from lbctl.importer.haproxy.rules import acls, parted
from lbctl.importer.matching import covers
from lbctl.importer.statement import Statement
from lbctl.importer.values import HOST, is_whole
from lbctl.ir.secrets import may_hold_credential

_SHORT = 300_000
_FORWARDED = frozenset({"x-forwarded-for", "x-forwarded-proto", "x-real-ip"})
_OWN_VALUES = frozenset({"%[src]", "%ci", "%[ssl_fc,iif(https,http)]", "https", "http", "%[unique-id]"})
_VARIABLE = re.compile(r"%\[([^\]]+)\]|%(%|ci\b|ID\b)|(%\S?)")
_MEANINGS = {
    "src": headers.CLIENT, "ci": headers.CLIENT, "unique-id": "{request_id}", "ID": "{request_id}",
    "uuid()": "{request_id}", "uuid": "{request_id}", "%": "%",
    **dict.fromkeys(("hdr(host)", "req.hdr(host)", "hdr(Host)", "req.hdr(Host)"), "{host}"),
}  # fmt: skip
"""Maps HAProxy's header variables to fleet variables."""
_ENVIRONMENT = re.compile(r"%\[env\(\w+\)\]")
_NAMED_BY = re.compile(r"(?:%\[)?(?:req\.)?f?hdr(?:_ip)?\(([A-Za-z0-9_-]+)(?:,-?1)?\)\]?")
_PLAIN_PATH = r"(?:/[A-Za-z0-9._-]+)+"
_PREFIXED = re.compile(
    rf"set-path (?P<set>{_PLAIN_PATH})%\[path\]|replace-path \^?\(\.\*\)\$? (?P<replace>{_PLAIN_PATH})\\1"
)
"""Rule that adds a prefix to every path."""
_REWRITE = re.compile(r"\^(?P<old>/[A-Za-z0-9._/-]*?)(?:/?\(\.\*\)|\(/\.\*\))\$?")


def carry(context: HaproxyImport, route: Path, section: HaproxySection) -> None:
    """Apply a section's rules to a route that passes through it."""
    _forward_for(context, route, section)
    for item in section.rules("http-request", "http-response", "http-after-response"):
        if item.name == "http-request":
            _request(context, route, section, item)
        else:
            _response(context, route, section, item)


def times(context: HaproxyImport, route: Path, section: HaproxySection) -> None:
    """Convert a backend's timeouts and retries."""
    draft, ledger = context.draft, context.draft.ledger
    idle = section.last("timeout", "server")
    if idle is not None and len(idle.args) > 1 and (value := values.time(idle.args[1])):
        draft.put((*route, "timeouts", "idle"), value, idle)
        if (values.milliseconds(idle.args[1]) or 0) < _SHORT:
            message = f"timeout server {idle.args[1]} cuts off a model that takes longer to send its first token"
            ledger.advise(idle, message, "increase `timeouts.idle`, or remove it to use lbctl's default of 5m")
    tunnel = section.last("timeout", "tunnel")
    if tunnel is not None:
        draft.put((*route, "websocket"), True, tunnel)
    _retries(context, route, section)


def _retries(context: HaproxyImport, route: Path, section: HaproxySection) -> None:
    draft, item, on = context.draft, section.last("retries"), section.last("retry-on")
    if item is not None and item.args[:1] and is_whole(item.args[0]):
        draft.put((*route, "retry", "attempts"), min(int(item.args[0]), 10), item)
    if (redispatch := section.last("option", "redispatch")) is not None:
        draft.ledger.imply("each retry goes to a different replica", redispatch)
    if on is None:
        return
    busy = {word for word in on.args if is_whole(word) and int(word) in BUSY}
    if busy and next(section.own("http-request", "disable-l7-retry"), None) is None:
        draft.retry_busy(route, map(int, busy), on)
    else:
        busy = set()
    repeated = [word for word in on.args if word not in {"conn-failure", "none", *busy}]
    if not repeated:
        draft.ledger.imply("lbctl retries failed connections", on)
        return
    draft.ledger.omit(on, "lbctl retries only requests that no replica has started to process", route)
    if {"all-retryable-errors", "empty-response", "junk-response", "response-timeout"} & set(repeated) or any(
        word.startswith("5") for word in repeated
    ):
        message = f"retry-on {' '.join(repeated)} repeats generations that have already started, even for POST requests"
        draft.ledger.advise(on, message, "lbctl retries a request only if it has not reached the model")


def _forward_for(context: HaproxyImport, route: Path, section: HaproxySection) -> None:
    item = section.last("option", "forwardfor")
    if item is None:
        return
    arguments = item.args
    name = arguments[arguments.index("header") + 1].lower() if "header" in arguments[:-1] else "x-forwarded-for"
    if name in _FORWARDED:
        context.draft.ledger.imply("lbctl always forwards the client's address", item)
    else:
        headers.put(context.draft, route, name, headers.CLIENT, item)
    if "if-none" in arguments:
        reason = "lbctl trusts client address headers only from peers in `client_address.trusted`"
        context.draft.ledger.omit(item, reason, route, part="option forwardfor … if-none")


# ── Requests ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _request(context: HaproxyImport, route: Path, section: HaproxySection, item: Statement) -> None:
    args, when, negated = parted(item.args)
    name = args[0] if args else ""
    if name not in {"set-header", "add-header", "del-header", "set-path", "replace-path", "replace-uri", "set-uri"}:
        if name == "set-src" and len(args) > 1 and (match := _NAMED_BY.fullmatch(args[1])) is not None:
            headers.named_by(context.draft, route, match[1].lower(), item, decides=True)
        return
    if when and not _applies(context, route, section, when, negated):
        if not (name.endswith("header") and len(args) > 1 and args[1].lower() in _FORWARDED):
            return
        context.draft.ledger.imply("lbctl always forwards the client's address and scheme", item)
        return
    if name.endswith("-header"):
        _header(context, route, section, item, args)
    else:
        _path(context, route, section, item, args, conditional=bool(when))


def _applies(
    context: HaproxyImport, route: Path, section: HaproxySection, when: tuple[str, ...], negated: bool
) -> bool:
    """Return whether a rule's condition holds for all of a route's requests."""
    matches = condition(when, acls(section)).matches()
    match = context.draft.get((*route, "match")) or {}
    return not negated and matches is not None and any(covers(item, match) for item in matches)


def _header(
    context: HaproxyImport, route: Path, section: HaproxySection, item: Statement, args: tuple[str, ...]
) -> None:
    draft, ledger = context.draft, context.draft.ledger
    name = args[1].lower() if len(args) > 1 else ""
    value = args[2] if len(args) > 2 else ""
    if provider.owns(draft, route, name) or (name == "host" and provider.host_of(draft, route) == value):
        return
    if args[0] == "del-header":
        _remove(context, route, item, name, "request")
    elif name in _FORWARDED and value in _OWN_VALUES:
        ledger.imply("lbctl always forwards the client's address and scheme", item)
    elif may_hold_credential(name) and "%" not in _ENVIRONMENT.sub("", value):
        hint = "keep secrets in files with mode 0600"
        ledger.secret(item, f"the value of {name} is a secret and was not copied", hint)
        reason = "secrets are not copied: write the header by hand or omit it"
        ledger.omit(item, reason, route, part=f"http-request set-header {name} (a secret)")
        _remove(context, route, item, name, "request")
    elif name in _FORWARDED and (match := _NAMED_BY.fullmatch(value)) is not None:
        headers.named_by(draft, route, match[1].lower(), item)
    elif (text := headers.text(value, _VARIABLE, _MEANINGS)) is None or args[0] == "add-header":
        if not own.keep(context, section, item):
            ledger.omit(
                item,
                "lbctl does not support the header's variables, or cannot append a value to an existing header",
                route,
            )
    elif name == "x-request-id" and text == "{request_id}":
        ledger.imply("lbctl adds an ID to every request", item)
    elif name == "host" and HOST.fullmatch(value):
        draft.put((*route, "rewrite", "host"), value, item)
    else:
        headers.put(draft, route, name, text, item)


def text_of(value: str) -> str | None:
    """Return a string with HAProxy variables replaced by fleet variables, or None if a variable has no equivalent."""
    return headers.text(value, _VARIABLE, _MEANINGS)


def _remove(context: HaproxyImport, route: Path, item: Statement, name: str, side: str) -> None:
    path = (*route, "headers", side, "remove")
    context.draft.put(path, list(dict.fromkeys([*(context.draft.get(path) or []), name])), item)


def _path(
    context: HaproxyImport,
    route: Path,
    section: HaproxySection,
    item: Statement,
    args: tuple[str, ...],
    *,
    conditional: bool,
) -> None:
    draft = context.draft
    before = _PREFIXED.fullmatch(" ".join(args))
    pool = ("pools", str(draft.get((*route, "pool"))))
    if before and not conditional and section.block.name == "backend" and draft.get((*pool, "upstream")):
        draft.put((*pool, "upstream", "path_prefix"), before["set"] or before["replace"], item)
        return
    match = draft.get((*route, "match")) or {}
    replacement = _replaced(args)
    prefix = match.get("path_prefix", "")
    if replacement is not None and prefix and replacement[0].rstrip("/") == prefix.rstrip("/"):
        draft.put((*route, "rewrite", "path_prefix"), replacement[1] or "/", item)
        return
    if replacement is not None and not (prefix or "path" in match or "path_regex" in match):
        return
    if replacement is not None and prefix and not prefix.startswith(replacement[0]):
        return
    draft.ledger.omit(item, "lbctl can replace only the matched prefix (`rewrite.path_prefix`)", route)
    draft.close(route, "the rewrite could not be converted")


def _replaced(args: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the prefix that a rule removes and the prefix that replaces it."""
    if args[0] in {"replace-path", "replace-uri"} and len(args) > 2:
        old, new = _REWRITE.fullmatch(args[1]), re.fullmatch(r"(/?[A-Za-z0-9._/-]*?)\\1", args[2])
        return (old["old"], new[1]) if old and new else None
    text = " ".join(args[1:])
    match = re.fullmatch(r"%\[path,regsub\(\^(/[A-Za-z0-9._/-]*),(/[A-Za-z0-9._/-]*)\)\]", text)
    return (match[1], match[2]) if match else None


def _response(context: HaproxyImport, route: Path, section: HaproxySection, item: Statement) -> None:
    args, when, _ = parted(item.args)
    name = args[1].lower() if len(args) > 1 else ""
    if when or not args or args[0] not in {"set-header", "del-header"}:
        return
    if args[0] == "del-header":
        _remove(context, route, item, name, "response")
    elif len(args) > 2 and (text := headers.text(args[2], _VARIABLE, _MEANINGS)) is not None:
        context.draft.put((*route, "headers", "response", "set", name), text, item)
    elif not own.keep(context, section, item):
        context.draft.ledger.omit(item, "lbctl does not support the variables in this header", route)
