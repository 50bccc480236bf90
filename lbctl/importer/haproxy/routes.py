"""The rules of a frontend as routes.

HAProxy takes the first rule that holds, a fleet the most specific route. Where the two disagree, requests that both of
two rules would take get a route of their own, to where the first one leads.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from lbctl.base.diagnostics import Path
from lbctl.base.records import dataclass
from lbctl.importer import credentials
from lbctl.importer.haproxy import policy, proxy, rules
from lbctl.importer.haproxy.conditions import AclCondition, Region
from lbctl.importer.haproxy.context import HaproxyImport, HaproxySection
from lbctl.importer.haproxy.pools import pool
from lbctl.importer.matching import MAX_ADDED, Match, apart, covers, hides, merge, overlaps
from lbctl.importer.statement import Statement


@dataclass(frozen=True, slots=True)
class FrontendRoute:
    """What a frontend does with some requests."""

    match: Match
    """Which requests."""
    rule: rules.HaproxyRule
    """The rule that decides."""
    laid: tuple[rules.HaproxyRule, ...] = ()
    """The rules of the frontend that hold for all its requests: who may send them, and that they are not logged."""


def frontend(context: HaproxyImport, section: HaproxySection, plain: Sequence[str], encrypted: Sequence[str]) -> None:
    """Add the routes of a frontend or listen section."""
    all_rules = _effective(list(rules.rules(section)))
    entries = _decided(context, section, all_rules)
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
    _fallbacks(context, all_rules, [entry for entry, _ in served], paths)


def _redirect(context: HaproxyImport, section: HaproxySection, rule: rules.HaproxyRule, plain: Sequence[str]) -> bool:
    """Add the routes of a redirect to https; returns whether it holds for all requests that its condition can name."""
    whole = False
    for region in rule.when.regions():
        if not region.exact:
            message = "redirects all requests of its listener to https: no match of a route expresses its condition"
            context.draft.ledger.advise(rule.line, message, "write routes for those that it must not redirect")
        for match in region.includes:
            path = _add(context, section, FrontendRoute(match, rule), plain)
            context.draft.put((*path, "respond"), {"redirect": "https"}, rule.line, *rule.statements)
            whole = whole or match == {}
    return whole


def _effective(all_rules: list[rules.HaproxyRule]) -> list[rules.HaproxyRule]:
    """Return the rules without each `allow` that no other rule follows: it lets in what nothing refuses."""
    last = max((index for index, rule in enumerate(all_rules) if _refuses(rule)), default=-1)
    return [rule for index, rule in enumerate(all_rules) if index < last or not rule.is_allow]


def _refuses(rule: rules.HaproxyRule) -> bool:
    return rule.line.name != "use_backend" and rule.action != "silent" and not rule.is_allow


def _decided(
    context: HaproxyImport, section: HaproxySection, all_rules: Sequence[rules.HaproxyRule]
) -> list[FrontendRoute]:
    """Return what the rules decide, each with the rules laid on it; the first one that matches a request wins."""
    entries = list(_entries(context, section, all_rules))
    for rule in all_rules:
        if rule.action in _LAID:
            entries = _laid(context, entries, rule)
        elif rule.action == "guard":
            entries = _guarded(context, entries, rule)
    entries = _first(entries)
    added = [
        (replace(entries[index], match=match), index) for match, index in overlaps([item.match for item in entries])
    ]
    if len(added) >= MAX_ADDED:
        guard = rules.HaproxyRule(section.block, "guard", AclCondition())
        entries = [replace(entry, laid=(*entry.laid, guard)) for entry in entries]
        added = []
    placed = [*zip(entries, range(len(entries)), strict=True), *added]
    return [_closed_if_unclear(entry, entries[:index]) for entry, index in placed]


def _closed_if_unclear(entry: FrontendRoute, earlier: Sequence[FrontendRoute]) -> FrontendRoute:
    """Return the entry, closed if an earlier rule may refuse its requests: no match says which of them."""
    for other in earlier:
        refuses = other.rule.action not in {"pool", "preferred"} or any(rule.action == "guard" for rule in other.laid)
        if refuses and hides(entry.match, other.match):
            return replace(entry, laid=(*entry.laid, replace(other.rule, action="guard")))
    return entry


def _first(entries: Sequence[FrontendRoute]) -> list[FrontendRoute]:
    """Return the entries without those whose requests an earlier one takes."""
    return [entry for index, entry in enumerate(entries) if not any(_takes(each, entry) for each in entries[:index])]


def _takes(earlier: FrontendRoute, entry: FrontendRoute) -> bool:
    """Whether an earlier rule takes all requests of an entry."""
    return earlier.rule.action != "preferred" and covers(earlier.match, entry.match)


def _entries(
    context: HaproxyImport, section: HaproxySection, all_rules: Sequence[rules.HaproxyRule]
) -> Iterator[FrontendRoute]:
    """Yield what the rules decide, in their order, without what an earlier rule takes already."""
    taken: list[Match] = []
    for rule in (*all_rules, *_default(section)):
        matches = _matches(rule)
        if matches is None and rule.action in {"pool", "preferred"}:
            context.draft.ledger.omit(rule.line, _UNREADABLE)
            message = f"no request takes this rule to {rule.value}: no match of a route expresses its condition"
            context.draft.ledger.advise(rule.line, message, "write a route for its requests: they take the next rule")
        for match in matches or []:
            if any(covers(earlier, match) for earlier in taken):
                context.draft.ledger.omit(rule.line, "an earlier rule takes these requests")
                continue
            yield FrontendRoute(match, rule)
            if rule.action != "preferred":
                taken.append(match)


_UNPROTECTED = "a rule that protects it could not be carried over"
_TOO_MANY = "the rules of its frontend overlap in too many ways"
_UNREADABLE = "no match of a route expresses this condition: its requests take the next rule"


_LAID = frozenset({"allow", "deny", "keys", "users", "silent"})
"""Actions that hold for the requests of a condition, wherever those go."""


def _laid(context: HaproxyImport, entries: Sequence[FrontendRoute], rule: rules.HaproxyRule) -> list[FrontendRoute]:
    """Return the entries with a rule laid on those that it holds for; where it holds for a part, that gets its own."""
    matches = rule.when.matches()
    if matches is None:
        context.draft.ledger.omit(rule.line, _UNREADABLE)
        return list(entries)
    for match in matches if rule.action != "silent" else ():
        context.draft.advise_prefix(match.get("path_prefix", "/"), rule.line)
    result = list[FrontendRoute]()
    for entry in entries:
        joints = [merge([match, entry.match]) for match in matches]
        unclear = rule.action != "silent" and any(
            joint is None and not apart([match, entry.match]) for joint, match in zip(joints, matches, strict=True)
        )
        if entry.rule.action not in {"pool", "preferred"}:
            result.append(_behind(entry, rule) if unclear or any(joints) or entry.match in joints else entry)
        elif unclear or entry.match in joints:
            result.append(replace(entry, laid=(*entry.laid, rule)))
        else:
            parts = [joint for joint in joints if joint is not None and all(joint != each.match for each in result)]
            result += [replace(entry, match=joint, laid=(*entry.laid, rule)) for joint in parts]
            result.append(entry)
    return result


def _behind(entry: FrontendRoute, rule: rules.HaproxyRule) -> FrontendRoute:
    """Return the entry, closed if it answers, behind a rule that protects it, with what only some may see."""
    answer = entry.rule.value if entry.rule.action == "respond" and entry.rule.line.name == "http-request" else None
    if (
        rule.action == "silent"
        or not answer
        or answer["status"] >= 400
        or entry.rule.line.position < rule.line.position
    ):
        return entry
    return replace(entry, rule=rules.HaproxyRule(entry.rule.line, "unknown", entry.rule.when))


# ── Protections that no key expresses ────────────────────────────────────────────────────────────────────────────────


_MAX_ENTRIES = 256
"""Number of routes of a frontend above which a protection closes them whole, and not in part."""


def _guarded(context: HaproxyImport, entries: Sequence[FrontendRoute], rule: rules.HaproxyRule) -> list[FrontendRoute]:
    """Return the entries, closed where the rule may refuse their requests.

    The rest of an entry that the rule refuses in part stays open.
    """
    current = list(entries)
    for region in rule.when.regions():
        for match in region.includes:
            context.draft.advise_prefix(match.get("path_prefix", "/"), rule.line)
        bounded = region if len(current) <= _MAX_ENTRIES else Region([{}], [], exact=False)
        current = _first([part for entry in current for part in _guarded_parts(entry, bounded, rule)])
    return current


def _guarded_parts(entry: FrontendRoute, region: Region, rule: rules.HaproxyRule) -> Iterator[FrontendRoute]:
    joints = [merge([match, entry.match]) for match in region.includes]
    unclear = any(
        joint is None and not apart([match, entry.match]) for joint, match in zip(joints, region.includes, strict=True)
    )
    closed = [entry.match] if unclear else [joint for joint in joints if joint is not None]
    closed = [match for match in closed if not any(covers(exempt, match) for exempt in region.excludes)]
    if entry.rule.action not in {"pool", "preferred"}:
        yield _behind(entry, rule) if closed else entry
        return
    for match in closed:
        exempt = [(merge([item, match]), item) for item in region.excludes]
        yield from (replace(entry, match=joint) for joint, _ in exempt if joint is not None)
        is_exact = region.exact and not unclear and all(joint or apart([item, match]) for joint, item in exempt)
        yield _closed(replace(entry, match=match), rule, is_exact=is_exact)
    if entry.match not in closed:
        yield entry


def _closed(entry: FrontendRoute, rule: rules.HaproxyRule, *, is_exact: bool) -> FrontendRoute:
    """Return the entry behind a rule that refuses all its requests (`is_exact`), or that may refuse them."""
    if is_exact and rule.value is not None:
        refusal = rules.HaproxyRule(rule.line, "respond", AclCondition(), rule.value, rule.when.statements)
        return replace(entry, rule=refusal)
    return entry if rule in entry.laid else replace(entry, laid=(*entry.laid, rule))


def _matches(rule: rules.HaproxyRule) -> list[Match] | None:
    """Return the requests that a rule decides about; None if no match expresses them, or it only protects."""
    if rule.action == "metrics":
        regions = rule.when.regions()
        return [match for region in regions for match in region.includes if region.exact or match]
    return rule.when.matches() if rule.action in {"pool", "preferred", "respond", "unknown"} else None


def _default(section: HaproxySection) -> list[rules.HaproxyRule]:
    line = section.last("default_backend")
    if line is not None and line.args:
        return [rules.HaproxyRule(line, "pool", AclCondition(), line.args[0])]
    if section.block.name == "listen":
        return [rules.HaproxyRule(section.block, "pool", AclCondition(), section.name)]
    return []


def _add(context: HaproxyImport, section: HaproxySection, entry: FrontendRoute, listeners: Sequence[str]) -> Path:
    every = set(context.draft.fleet["listeners"])
    route: dict[str, Any] = {"match": dict(entry.match)}
    if set(listeners) != every:
        route = {"listeners": list(listeners)} | route
    path = context.draft.add("routes", _label(section, entry), entry.rule.line, route)
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
    """Close a route whose backend is not one for HTTP."""
    ledger, tcp = context.draft.ledger, context.tcp.get(str(rule.value))
    if tcp is None:
        reason = f"there is no backend {rule.value!r}" if "%" not in str(rule.value) else "a name with variables"
        ledger.omit(rule.line, f"{reason}: the route refuses its requests", path)
        context.draft.close(path, "its backend is not known")
        return
    reason = f"backend {rule.value!r} is in TCP mode, and HAProxy does not start with it behind a frontend for HTTP"
    if tcp.name not in context.pools:
        context.pools[tcp.name] = pool(context, tcp)
    context.draft.put((*path, "pool"), context.pools[tcp.name][1], rule.line)
    policy.times(context, path, tcp)
    ledger.omit(rule.line, f"{reason}: the route refuses its requests", path)
    ledger.advise(tcp.block, reason, "write `mode http` there or in `defaults`, and import again")
    context.draft.close(path, "its backend is in TCP mode")


def _refused_in_backend(context: HaproxyImport, path: Path, target: HaproxySection) -> None:
    """Close a route whose backend refuses requests by a condition: only those of a frontend become routes."""
    for rule in rules.rules(target):
        conditional = rule.action in {*_LAID, "limit"} - {"silent"} and rule.when.matches() != [{}]
        if rule.action in {"guard", "unknown", "respond"} or conditional:
            why = "its backend answers some requests by a rule that could not be carried over"
            context.draft.ledger.omit(rule.line, f"{why}: the route refuses its requests", path)
            context.draft.close(path, why)


def _answer(context: HaproxyImport, path: Path, rule: rules.HaproxyRule) -> None:
    """Set what the proxy itself answers; a refusal that cannot be read refuses everybody."""
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
    why = "its answer could not be carried over"
    for item in (rule.line, *rule.when.statements):
        context.draft.ledger.omit(item, f"{why}: the route refuses its requests", path)
    context.draft.close(path, why)


# ── Protection ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _protect(context: HaproxyImport, all_rules: Sequence[rules.HaproxyRule], paths: Sequence[Path]) -> None:
    """Lay what refuses clients into all routes, and close them where it cannot be carried over."""
    for rule in all_rules:
        for path in paths:
            if rule.action in {*_LAID, "guard", "limit"}:
                _lay(context, path, rule)


def _lay(context: HaproxyImport, path: Path, rule: rules.HaproxyRule) -> None:
    draft = context.draft
    if rule.action == "guard":
        why = _TOO_MANY if rule.line.is_block else _UNPROTECTED
        for item in (rule.line, *rule.when.statements):
            draft.ledger.omit(item, f"{why}: the route refuses its requests", path)
        draft.close(path, why, by_hand="" if rule.line.is_block else "auth")
    elif draft.answers(path):
        draft.ledger.carry(path, rule.line, *rule.statements)
    elif rule.action in {"allow", "deny"}:
        networks = [item if "/" in item else f"{item}/{128 if ':' in item else 32}" for item in rule.value]
        draft.put((*path, f"{rule.action}_from"), networks, rule.line, *rule.statements)
    elif rule.action == "keys":
        # An ACL on the path or the client is part of the condition, and holds no key.
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
    """Set the pool that serves while the route's own has no server, as `nbsrv` decides it."""
    for rule in (rule for rule in all_rules if rule.action == "fallback"):
        watched, spare = rule.value
        for path in paths:
            own = context.pools.get(watched)
            if own is not None and context.draft.get((*path, "pool")) == own[1]:
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
