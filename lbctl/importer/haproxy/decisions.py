"""Determines which requests each of a frontend's rules handles, in HAProxy's order.

If the requests that a rule handles cannot be expressed as a match, they are rejected, or the next rule handles them and
an error is reported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lbctl.importer.haproxy import rules
from lbctl.importer.haproxy.conditions import AclCondition, Region
from lbctl.importer.haproxy.context import HaproxyImport, HaproxySection
from lbctl.importer.matching import MAX_ADDED, Match, apart, carve, covers, hides, identity, merge, overlaps, within
from lbctl.importer.statement import Statement


@dataclass(frozen=True, slots=True)
class FrontendRoute:
    """How a frontend handles some requests."""

    match: Match
    rule: rules.HaproxyRule
    """The rule that applies."""
    laid: tuple[rules.HaproxyRule, ...] = ()
    """The frontend's rules that apply to all its requests: access control, disabled logging, and closing."""
    excludes: tuple[Match, ...] = ()
    """Requests in the match that later rules handle."""
    hidden: tuple[Statement, ...] = ()
    """Lines of later rules that handle requests meant for a closed route."""


def effective(all_rules: list[rules.HaproxyRule]) -> list[rules.HaproxyRule]:
    """Return the rules without trailing `allow` rules, because these have no effect."""
    last = max((index for index, rule in enumerate(all_rules) if _refuses(rule)), default=-1)
    return [rule for index, rule in enumerate(all_rules) if index < last or not rule.is_allow]


def _refuses(rule: rules.HaproxyRule) -> bool:
    return rule.line.name != "use_backend" and rule.action != "silent" and not rule.is_allow


def decided(
    context: HaproxyImport, section: HaproxySection, all_rules: Sequence[rules.HaproxyRule]
) -> list[FrontendRoute]:
    """Return the rules' decisions, each with its additional rules.

    The first decision that matches a request applies.
    """
    entries = _without_excluded(context, _entries(context, section, all_rules))
    for rule in all_rules:
        if rule.action in LAID:
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
    for entry, index in placed:
        _misroute_hidden(context, entry, entries[:index])
    return [_closed_if_unclear(entry, entries[:index]) for entry, index in placed]


def _closed_if_unclear(entry: FrontendRoute, earlier: Sequence[FrontendRoute]) -> FrontendRoute:
    """Return the entry, or close it if an earlier rule may reject some of its requests that no match can express."""
    for other in earlier:
        closing = {rule.action for rule in other.laid} & {"guard", "lost"}
        if (closing or other.rule.action not in {"pool", "preferred"}) and hides(entry.match, other.match):
            action = "lost" if closing == {"lost"} else "guard"
            return replace(entry, laid=(*entry.laid, replace(other.rule, action=action)))
    return entry


def _misroute_hidden(context: HaproxyImport, entry: FrontendRoute, earlier: Sequence[FrontendRoute]) -> None:
    """Report the earlier rules whose requests a fleet sends to this one because it prefers expressions."""
    if _is_closed(entry):
        return
    target = entry.rule.value if _serves(entry) else None
    for other in earlier:
        if _serves(other) and other.rule.value != target and hides(entry.match, other.match):
            what = f"go to {target}" if target else "get the proxy's response"
            message = (
                f"requests that match both this rule and an earlier one {what} instead of going to {other.rule.value}"
            )
            context.draft.ledger.misroute(entry.rule.line, message)


def _serves(entry: FrontendRoute) -> bool:
    return entry.rule.action in {"pool", "preferred"} and not _is_closed(entry)


def _is_closed(entry: FrontendRoute) -> bool:
    return bool({rule.action for rule in entry.laid} & {"guard", "lost"})


def _first(entries: Sequence[FrontendRoute]) -> list[FrontendRoute]:
    """Return the entries, omitting those whose requests are all handled by an earlier entry."""
    return [entry for index, entry in enumerate(entries) if not any(_takes(each, entry) for each in entries[:index])]


def _takes(earlier: FrontendRoute, entry: FrontendRoute) -> bool:
    """Return whether an earlier rule handles all of an entry's requests."""
    if earlier.rule.action in {"preferred", "guard"} and not _is_lost(earlier):
        return False
    return covers(earlier.match, entry.match) and all(apart([item, entry.match]) for item in earlier.excludes)


def _entries(
    context: HaproxyImport, section: HaproxySection, all_rules: Sequence[rules.HaproxyRule]
) -> list[FrontendRoute]:
    """Return the rules' decisions in order, excluding requests that an earlier rule handles."""
    entries = list[FrontendRoute]()
    for rule in (*all_rules, *_default(section)):
        for entry in _decisions(context, rule):
            if any(_takes(earlier, entry) and not _is_lost(earlier) for earlier in entries):
                context.draft.ledger.omit(rule.line, _TAKEN)
            else:
                entries.append(entry)
    return entries


def _decisions(context: HaproxyImport, rule: rules.HaproxyRule) -> Iterator[FrontendRoute]:
    """Yield a rule's decisions."""
    matches = _matches(rule)
    if matches is not None or rule.action not in {"pool", "preferred"}:
        yield from (FrontendRoute(match, rule) for match in matches or [])
        return
    # Requests that the rule is certain to handle come first and are not closed.
    regions = zip(rule.when.regions(), rule.when.terms, strict=True)
    for region, terms in sorted(regions, key=lambda pair: not pair[0].exact):
        # An expression would take requests from earlier rules with a prefix, so it gets no route for exclusions.
        excludes = tuple(match for match in region.excludes if "path_regex" not in match)
        if region.exact and len(excludes) == len(region.excludes):
            yield from (FrontendRoute(match, rule, excludes=excludes) for match in region.includes)
        elif {} not in region.includes:
            lost = (replace(rule, action="lost"),)
            yield from (FrontendRoute(match, rule, lost, excludes) for match in region.includes)
        elif _protects(context.sections.get(str(rule.value))):
            yield FrontendRoute({}, rules.HaproxyRule(rule.line, "guard", AclCondition((terms,))))
        else:
            _misroute(context, rule)


def _misroute(context: HaproxyImport, rule: rules.HaproxyRule) -> None:
    """Report a rule whose requests the next rule handles.

    A closed route for this rule would handle all of the frontend's requests.
    """
    context.draft.ledger.omit(rule.line, _UNREADABLE)
    message = f"requests for {rule.value} use the next rule: `match` cannot express the condition"
    context.draft.ledger.misroute(rule.line, message)


def _protects(target: HaproxySection | None) -> bool:
    """Return whether a backend rejects requests, so that other backends must not serve them."""
    if target is None:
        return False
    has_servers = any(item.name in {"server", "server-template"} for item in target.block.block)
    return not has_servers or any(map(_refuses, rules.rules(target)))


def _is_lost(entry: FrontendRoute) -> bool:
    """Return whether no match can express an entry's whole condition."""
    return any(rule.action == "lost" for rule in entry.laid)


def _without_excluded(context: HaproxyImport, entries: Sequence[FrontendRoute]) -> list[FrontendRoute]:
    """Return the entries, each preceded by routes for the requests that its condition excludes.

    The first match applies.
    """
    result = list[FrontendRoute]()
    for entry in reversed(entries):
        if entry.rule.action == "guard":
            result = _guarded(context, result, entry.rule)
        else:
            part = _closed_part if _is_lost(entry) else _excluded
            result = _reached([*part(context, entry, result), *result])
    return _first(result)


def _excluded(context: HaproxyImport, entry: FrontendRoute, later: Sequence[FrontendRoute]) -> list[FrontendRoute]:
    """Return an entry, preceded by routes for the requests that it excludes.

    If these cannot be expressed, the entry is closed.
    """
    parts, is_clear = carve(entry.match, entry.excludes, [item.match for item in later])
    if is_clear:
        return [*_parts(entry, parts, later), replace(entry, excludes=())]
    if not entry.match:
        _misroute(context, entry.rule)
        return []
    return [replace(entry, excludes=(), laid=(*entry.laid, replace(entry.rule, action="lost")))]


def _closed_part(context: HaproxyImport, entry: FrontendRoute, later: Sequence[FrontendRoute]) -> list[FrontendRoute]:
    """Return a closed entry after later ones that are more specific, so that it does not affect them."""
    matches = [item.match for item in later]
    protects = _protects(context.sections.get(str(entry.rule.value)))
    specific = [] if protects else within(entry.match, matches)
    parts, is_clear = carve(entry.match, [*entry.excludes, *specific], matches)
    kept = _parts(entry, parts, later) if is_clear else []
    covered = [item for item in later if covers(entry.match, item.match) and not (kept and item.match in specific)]
    hidden = dict.fromkeys(item.rule.line for item in covered if item.rule.line is not entry.rule.line)
    if kept and specific:
        message = f"requests for {entry.rule.value} may use more specific routes: `match` cannot express the condition"
        context.draft.ledger.misroute(entry.rule.line, message)
    return [*kept, replace(entry, excludes=(), hidden=tuple(hidden))]


def _parts(
    entry: FrontendRoute, parts: Sequence[tuple[Match, int]], later: Sequence[FrontendRoute]
) -> list[FrontendRoute]:
    """Return the later rules' entries for parts of an entry. Parts without a later rule have no backend."""
    nobody = rules.HaproxyRule(entry.rule.line, "respond", AclCondition(), {"status": 503})
    return [
        replace(later[index], match=match) if index >= 0 else FrontendRoute(match, nobody) for match, index in parts
    ]


def _reached(entries: Sequence[FrontendRoute]) -> list[FrontendRoute]:
    """Return the entries, omitting those whose match equals an earlier match, which handles the requests."""
    reached, taken = dict[tuple[str, int], FrontendRoute](), set[str]()
    for entry in entries:
        name = identity(entry.match)
        if name not in taken:
            reached.setdefault((name, id(entry.rule)), entry)
            if _takes(entry, entry):
                taken.add(name)
    return [*reached.values()]


_TAKEN = "an earlier rule handles these requests"
_UNREADABLE = "`match` cannot express this condition: matching requests use the next rule"


LAID = frozenset({"allow", "deny", "keys", "users", "silent"})
"""Actions that apply to the requests that match a condition, regardless of their destination."""


def _laid(context: HaproxyImport, entries: Sequence[FrontendRoute], rule: rules.HaproxyRule) -> list[FrontendRoute]:
    """Add a rule to the entries to which it applies, and return all entries.

    If the rule applies to only part of an entry, that part is split off.
    """
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
    """Return the entry protected by a rule. If its own response must also be protected, the entry is closed."""
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
"""Number of routes in a frontend above which a protection causes whole routes to be closed instead of parts."""


def _guarded(context: HaproxyImport, entries: Sequence[FrontendRoute], rule: rules.HaproxyRule) -> list[FrontendRoute]:
    """Return the entries, closing those whose requests the rule may reject.

    If the rule rejects only part of an entry, the rest remains open.
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
    """Return the entry with a rule that rejects all its requests (`is_exact`), or that may reject them."""
    if is_exact and rule.value is not None:
        refusal = rules.HaproxyRule(rule.line, "respond", AclCondition(), rule.value, rule.when.statements)
        return replace(entry, rule=refusal)
    return entry if rule in entry.laid else replace(entry, laid=(*entry.laid, rule))


def _matches(rule: rules.HaproxyRule) -> list[Match] | None:
    """Return the requests to which a rule applies, or None if they cannot be expressed or the rule only protects."""
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
