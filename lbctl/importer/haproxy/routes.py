"""Converts a frontend's rules to routes.

HAProxy uses the first rule that holds, while a fleet uses the most specific route. If the two disagree, requests that
match both rules get a separate route to the first rule's destination.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lbctl.base.diagnostics import Path
from lbctl.importer import credentials
from lbctl.importer.haproxy import policy, proxy, rules
from lbctl.importer.haproxy.context import HaproxyImport, HaproxySection
from lbctl.importer.haproxy.decisions import LAID, FrontendRoute, decided, effective
from lbctl.importer.haproxy.pools import pool
from lbctl.importer.matching import REFUSES_ALL, covers, merge
from lbctl.importer.statement import Statement

_LOST = "`match` cannot express the whole condition of this route"
_HIDDEN = "this later rule handles the requests that do not meet the route's condition"
_UNPROTECTED = "a rule that protects the route could not be converted"
_TOO_MANY = "the frontend's rules overlap in too many ways"


def frontend(context: HaproxyImport, section: HaproxySection, plain: Sequence[str], encrypted: Sequence[str]) -> None:
    """Add the routes in a frontend or listen section."""
    all_rules = effective(list(rules.rules(section)))
    entries = decided(context, section, all_rules)
    redirects = [rule for rule in all_rules if rule.action == "redirect"] if plain else []
    whole = any(_redirect(context, section, rule, plain) for rule in redirects)
    served = [(entry, list(encrypted) if whole else [*plain, *encrypted]) for entry in entries]
    if whole:
        excluded = [match for rule in redirects for region in rule.when.regions() for match in region.excludes]
        joints = [(entry, merge([entry.match, match])) for match in excluded for entry in entries]
        served += [(replace(entry, match=joint), list(plain)) for entry, joint in joints if joint is not None]
    served = [(entry, names) for entry, names in served if names]
    paths = [_route(context, section, entry, names) for entry, names in served]
    for path, (entry, _) in zip(paths, served, strict=True):
        _protect(context, [rule for rule in all_rules if rule.action == "limit"], [path])
        _protect(context, entry.laid, [path])
        for line in entry.hidden:
            context.draft.ledger.omit(line, _HIDDEN, path)
    _fallbacks(context, all_rules, [entry for entry, _ in served], paths)


def _redirect(context: HaproxyImport, section: HaproxySection, rule: rules.HaproxyRule, plain: Sequence[str]) -> bool:
    """Add the routes for a redirect to https. Returns whether the redirect covers all requests in its condition."""
    whole = False
    for region in rule.when.regions():
        if not region.exact:
            message = "this redirects all requests of its listener to https: `match` cannot express the condition"
            context.draft.ledger.advise(rule.line, message, "add routes for requests that must not be redirected")
        for match in region.includes:
            path = _add(context, section, FrontendRoute(match, rule), plain)
            context.draft.put((*path, "respond"), {"redirect": "https"}, rule.line, *rule.statements)
            whole = whole or match == {}
    return whole


def _add(context: HaproxyImport, section: HaproxySection, entry: FrontendRoute, listeners: Sequence[str]) -> Path:
    every = set(context.draft.fleet["listeners"])
    route: dict[str, Any] = {"match": dict(entry.match)}
    if set(listeners) != every:
        route = {"listeners": list(listeners)} | route
    pool = str(entry.rule.value) if entry.rule.action in {"pool", "preferred"} else ""
    path = context.draft.add("routes", _label(section, entry), entry.rule.line, route, pool)
    context.draft.ledger.carry(path, *entry.rule.statements, *entry.rule.when.statements)
    return path


def _label(section: HaproxySection, entry: FrontendRoute) -> str:
    match = entry.match
    path = match.get("path") or match.get("path_prefix") or ""
    text = re.sub(r"[^A-Za-z0-9]+", "-", path).strip("-")
    host = (match.get("hosts") or [""])[0].removeprefix("*.").split(".")[0]
    values = "-".join(match.get("headers", {}).values()) if not text else ""
    name = "-".join(filter(None, (host, text, values)))
    return name or ("redirect" if entry.rule.action == "redirect" else section.name)


def _route(context: HaproxyImport, section: HaproxySection, entry: FrontendRoute, listeners: Sequence[str]) -> Path:
    rule = entry.rule
    path = _add(context, section, entry, listeners)
    if rule.action not in {"pool", "preferred"}:
        _answer(context, path, rule)
        return path
    target = context.sections.get(rule.value)
    if target is None:
        _close_unknown(context, path, rule)
        return path
    if rule.value not in context.pools:
        context.pools[rule.value] = pool(context, target)
    context.draft.put((*path, "pool"), context.pools[rule.value][1], rule.line)
    policy.carry(context, path, section)
    policy.times(context, path, target)
    if target.block is not section.block:
        policy.carry(context, path, target)
        _protect(context, [rule for rule in rules.rules(target) if rule.when.matches() == [{}]], [path])
        _refused_in_backend(context, path, target)
    return path


def _close_unknown(context: HaproxyImport, path: Path, rule: rules.HaproxyRule) -> None:
    """Close a route whose backend does not use HTTP."""
    ledger, tcp = context.draft.ledger, context.tcp.get(str(rule.value))
    if tcp is None:
        reason = (
            f"backend {rule.value!r} does not exist"
            if "%" not in str(rule.value)
            else "the backend's name contains variables"
        )
        ledger.omit(rule.line, f"{reason}: the route refuses all requests", path)
        context.draft.close(path, "the backend is unknown")
        return
    reason = f"backend {rule.value!r} is in TCP mode, and HAProxy does not start if an HTTP frontend uses it"
    if tcp.name not in context.pools:
        context.pools[tcp.name] = pool(context, tcp)
    context.draft.put((*path, "pool"), context.pools[tcp.name][1], rule.line)
    policy.times(context, path, tcp)
    ledger.omit(rule.line, f"{reason}: the route refuses all requests", path)
    ledger.advise(tcp.block, reason, "add `mode http` there or to `defaults`, and import again")
    context.draft.close(path, "the backend is in TCP mode")


def _refused_in_backend(context: HaproxyImport, path: Path, target: HaproxySection) -> None:
    """Close a route whose backend rejects requests based on a condition. Only a frontend's conditions become routes."""
    for rule in rules.rules(target):
        conditional = rule.action in {*LAID, "limit"} - {"silent"} and rule.when.matches() != [{}]
        if rule.action in {"guard", "unknown", "respond"} or conditional:
            why = "the backend answers some requests with a rule that could not be converted"
            context.draft.ledger.omit(rule.line, f"{why}: the route refuses all requests", path)
            context.draft.close(path, why)


def _answer(context: HaproxyImport, path: Path, rule: rules.HaproxyRule) -> None:
    """Set the proxy's own response. A rejection that cannot be parsed applies to all clients."""
    if rule.action == "metrics":
        proxy.figures(context, path, rule)
        return
    if rule.action == "respond" and rule.value is not None and rule.when.matches() is not None:
        location = policy.text_of(rule.value.get("location", ""))
        if not location and "location" not in rule.value:
            context.draft.put((*path, "respond"), rule.value, rule.line)
            return
        if location:
            context.draft.redirect(path, rule.value["status"], location, rule.line)
            return
    why = "the response could not be converted"
    for item in (rule.line, *rule.when.statements):
        context.draft.ledger.omit(item, f"{why}: the route refuses all requests", path)
    context.draft.close(path, why)


# ── Protection ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _protect(context: HaproxyImport, all_rules: Sequence[rules.HaproxyRule], paths: Sequence[Path]) -> None:
    """Apply rules that reject clients to all routes, and close the routes if the rules cannot be converted."""
    for rule in all_rules:
        for path in paths:
            if rule.action in {*LAID, "guard", "limit", "lost"}:
                _lay(context, path, rule)


def _lay(context: HaproxyImport, path: Path, rule: rules.HaproxyRule) -> None:
    draft = context.draft
    if rule.action == "lost":
        for item in (rule.line, *rule.when.statements):
            draft.ledger.omit(item, f"{_LOST}: {REFUSES_ALL}", path)
        draft.close(path, _LOST, by_hand="match")
    elif rule.action == "guard":
        why = _TOO_MANY if rule.line.is_block else _UNPROTECTED
        for item in (rule.line, *rule.when.statements):
            draft.ledger.omit(item, f"{why}: the route refuses all requests", path)
        draft.close(path, why, by_hand="" if rule.line.is_block else "auth")
    elif draft.answers(path):
        draft.ledger.carry(path, rule.line, *rule.statements)
    elif rule.action in {"allow", "deny"}:
        networks = [item if "/" in item else f"{item}/{128 if ':' in item else 32}" for item in rule.value]
        draft.put((*path, f"{rule.action}_from"), networks, rule.line, *rule.statements)
    elif rule.action == "keys":
        # An ACL on the path or the client is part of the condition, and contains no key.
        secrets = [
            item for item in rule.statements if not "".join(item.args[1:2]).startswith(("path", "src", "method"))
        ]
        credentials.keys(draft, path, rule.value, secrets or (rule.line,), rule.line, *rule.statements)
    elif rule.action == "users":
        realm, name = rule.value
        users = context.userlists.get(name)
        lines = (users, *users.block) if users is not None else ()
        credentials.users(draft, path, realm, users or rule.line, rule.line, *rule.statements, *lines)
    elif rule.action == "silent":
        draft.put((*path, "access_log"), "off", rule.line, *rule.statements)
    else:
        limits = [*(draft.get((*path, "rate_limit")) or []), rule.value]
        draft.put((*path, "rate_limit"), limits, rule.line, *rule.statements)


def _fallbacks(
    context: HaproxyImport,
    all_rules: Sequence[rules.HaproxyRule],
    entries: Sequence[FrontendRoute],
    paths: Sequence[Path],
) -> None:
    """Set the fallback pool of routes from `nbsrv`, which is used while a route's own pool has no servers."""
    for rule in (rule for rule in all_rules if rule.action == "fallback"):
        watched, spare = rule.value
        own, matches = context.pools.get(watched), rule.when.matches()
        if matches is None:
            context.draft.ledger.omit(rule.line, "`match` cannot express the rest of this condition")
            message = (
                f"{spare} does not take over when {watched} has no servers: `match` cannot express the rest of "
                "the condition"
            )
            context.draft.ledger.advise(rule.line, message, "set `fallback` on the routes that are allowed to use it")
        for path in paths:
            match = context.draft.get((*path, "match")) or {}
            served = own is not None and context.draft.get((*path, "pool")) == own[1]
            if served and any(covers(item, match) for item in matches or []):
                _fallback(context, path, spare, rule.line, *rule.statements)
    for index, entry in enumerate(entries):
        if entry.rule.action != "preferred" or index >= len(paths):
            continue
        spare_rule = next((e.rule for e in entries[index + 1 :] if covers(e.match, entry.match)), None)
        if spare_rule is not None and spare_rule.action == "pool":
            _fallback(context, paths[index], str(spare_rule.value), entry.rule.line, *entry.rule.statements)
            same = next((i for i, e in enumerate(entries) if i > index and e.match == entry.match), None)
            if same is not None:
                lost = context.draft.drop(paths[same])
                context.draft.ledger.carry((*paths[index], "fallback"), *lost)


def _fallback(context: HaproxyImport, path: Path, spare: str, *statements: Statement) -> None:
    target = context.sections.get(spare)
    if target is None:
        return
    if spare not in context.pools:
        context.pools[spare] = pool(context, target)
    context.draft.put((*path, "fallback"), context.pools[spare][1], *statements)
