"""A frontend's rules in order, which reject, respond, redirect, or select a backend."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from lbctl.importer.haproxy.conditions import AclCondition, Term, condition, split
from lbctl.importer.haproxy.context import HaproxySection
from lbctl.importer.haproxy.values import milliseconds
from lbctl.importer.statement import Statement
from lbctl.importer.values import is_whole

_NBSRV = re.compile(r"nbsrv\((.+)\)")


@dataclass(frozen=True, slots=True)
class HaproxyRule:
    """A rule with its condition."""

    line: Statement
    action: str
    """One of: `pool`; `preferred` (a pool while it has servers); `respond`; `unknown` (a response that no route
    supports); `redirect`; `fallback`; `silent`; `metrics`; `lost` (a pool under a condition that cannot be expressed);
    or a protection: `users`, `keys`, `allow`, `deny`, `limit`, and `guard` for a protection without a key."""
    when: AclCondition
    value: Any = None
    """Backend, response, or another argument of the action."""
    statements: tuple[Statement, ...] = field(default=())
    """Other lines that belong to the rule."""

    @property
    def is_allow(self) -> bool:
        """Whether the rule is `http-request allow`, after which no further rules apply to its requests."""
        return self.line.tokens[:2] == ("http-request", "allow")


def acls(section: HaproxySection) -> dict[str, list[Statement]]:
    """Return the ACLs of a section by name."""
    lines_of_acls: dict[str, list[Statement]] = {}
    for item in section.rules("acl"):
        if len(item.args) > 1:
            lines_of_acls.setdefault(item.args[0], []).append(item)
    return lines_of_acls


def rules(section: HaproxySection) -> Iterator[HaproxyRule]:
    """Yield the rules of a section. `http-request` rules come before `use_backend`, as HAProxy evaluates them."""
    names = acls(section)
    for item in section.rules("http-request", "redirect", "block", "monitor-uri", "tcp-request"):
        rule = _request(item, section, names)
        if rule is not None:
            yield rule
    for item in section.own("use_backend"):
        args, when, negated = parted(item.args)
        yield _backend(item, args[0] if args else "", condition(when, names, negated=negated))


def parted(args: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Return the words before `if` or `unless`, the words after it, and whether the keyword was `unless`."""
    for index, word in enumerate(args):
        if word in {"if", "unless"} and index:
            return args[:index], args[index + 1 :], word == "unless"
    return args, (), False


def _backend(item: Statement, name: str, when: AclCondition) -> HaproxyRule:
    for terms in when.terms if len(when.terms) == 1 else ():
        others = tuple(term for term in terms if _pool_of(term) is None)
        watched = [watched for term in terms if (watched := _pool_of(term)) is not None]
        if watched:
            pool, empty = watched[0]
            rest = AclCondition((others,))
            if empty:
                return HaproxyRule(item, "fallback", rest, (pool, name), when.statements)
            return HaproxyRule(item, "preferred", rest, name, when.statements)
    return HaproxyRule(item, "pool", when, name)


def _pool_of(term: Term) -> tuple[str, bool] | None:
    """Return the backend in an ACL with `nbsrv`, and whether the ACL holds while the backend has no servers."""
    match = _NBSRV.fullmatch(term.tokens[0]) if term.tokens else None
    if match is None:
        return None
    operator = " ".join(term.tokens[1:])
    empty = operator in {"lt 1", "eq 0", "0", "le 0"}
    return match[1], empty != term.negated


def _request(item: Statement, section: HaproxySection, names: dict[str, list[Statement]]) -> HaproxyRule | None:
    if item.name == "monitor-uri" and item.args:
        criteria = AclCondition(((Term(("path", item.args[0]), False),),))
        return HaproxyRule(item, "respond", criteria, {"status": 200})
    args, when, negated = parted(item.tokens if item.name == "block" else item.args)
    rule = _rule(item, args, condition(when, names, negated=negated), section)
    if rule is not None and rule.action in {"respond", "unknown"} and rule.when.matches() is None:
        return replace(rule, action="guard")
    return rule


def _rule(item: Statement, args: tuple[str, ...], when: AclCondition, section: HaproxySection) -> HaproxyRule | None:
    if _is_script(item, args) or args[:1] == ("allow",):
        return HaproxyRule(item, "guard", when)
    if item.name == "tcp-request":
        return _deny(item, args, when, section) if args[1:2] in {("reject",), ("silent-drop",)} else None
    if item.name == "redirect" or args[:1] == ("redirect",):
        return _redirect(item, args, when)
    if args[:1] in {("deny",), ("reject",), ("tarpit",), ("silent-drop",)} or item.name == "block":
        return _deny(item, args, when, section)
    if args[:1] == ("return",):
        return HaproxyRule(item, "respond", when, _return(args))
    if args[:1] == ("auth",):
        return _users(item, args, when)
    if args == ("set-log-level", "silent"):
        return HaproxyRule(item, "silent", when, None, when.statements)
    if args == ("use-service", "prometheus-exporter"):
        return HaproxyRule(item, "metrics", when)
    return HaproxyRule(item, "unknown", when) if args[:1] == ("use-service",) else None


def _is_script(item: Statement, args: tuple[str, ...]) -> bool:
    """Return whether a rule runs a script, which may reject requests. The script is in a file that was not read."""
    return "".join(args[1:2] if item.name == "tcp-request" else args[:1]).startswith("lua.")


def _redirect(item: Statement, args: tuple[str, ...], when: AclCondition) -> HaproxyRule:
    to_https = "scheme" in args and "https" in args
    encrypted = [term.negated for terms in when.terms for term in terms if term.tokens[:1] == ("ssl_fc",)]
    if to_https and all(encrypted):
        rest = AclCondition(tuple(tuple(t for t in terms if t.tokens[:1] != ("ssl_fc",)) for terms in when.terms))
        return HaproxyRule(item, "redirect", rest, None, when.statements)
    words = args[args.index("redirect") + 1 :] if "redirect" in args else args
    options = dict(zip(words[::2], words[1::2], strict=False))
    code = options.get("code", "302")
    if len(words) % 2 == 0 and options.keys() <= {"location", "code"} and is_whole(code) and "location" in options:
        return HaproxyRule(item, "respond", when, {"status": int(code), "location": options["location"]})
    return HaproxyRule(item, "unknown", when)


def _return(args: tuple[str, ...]) -> dict[str, Any] | None:
    status = args[args.index("status") + 1] if "status" in args[:-1] else "200"
    body = next((args[args.index(word) + 1] for word in ("string", "lf-string") if word in args[:-1]), "")
    if not is_whole(status) or "file" in args or ("lf-string" in args and "%" in body):
        return None
    return {"status": int(status)} | ({"body": body} if body else {})


# ── Refusals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _users(item: Statement, args: tuple[str, ...], when: AclCondition) -> HaproxyRule:
    """Return the rule for a list of users: `http-request auth [realm R] unless { http_auth(LIST) }`."""
    term, rest = _picked(when, lambda each: each.tokens[:1] != () and each.tokens[0].startswith("http_auth("))
    realm = args[args.index("realm") + 1] if "realm" in args[:-1] else ""
    if term is None or not term.negated or rest.matches() is None:
        return HaproxyRule(item, "guard", when)
    return HaproxyRule(item, "users", rest, (realm, term.tokens[0][10:-1]), when.statements)


def _picked(when: AclCondition, wanted: Callable[[Term], bool]) -> tuple[Term | None, AclCondition]:
    """Return a condition's only matching term, and the rest of the condition."""
    terms = when.terms[0] if len(when.terms) == 1 else ()
    chosen = [term for term in terms if wanted(term)]
    if len(chosen) != 1:
        return None, when
    return chosen[0], AclCondition((tuple(each for each in terms if each is not chosen[0]),))


def _deny(item: Statement, args: tuple[str, ...], when: AclCondition, section: HaproxySection) -> HaproxyRule:
    status = args[args.index("deny_status") + 1] if "deny_status" in args[:-1] else "403"
    term, rest = _picked(when, lambda each: _special(item, each, when, section) is not None)
    if term is not None and rest.matches() is not None:
        special = _special(item, term, when, section)
        if special is not None and (special.action != "limit" or rest == AclCondition()):
            return replace(special, when=rest)
    if not is_whole(status):
        return HaproxyRule(item, "guard", when)
    return HaproxyRule(item, "respond", when, {"status": int(status)})


def _special(item: Statement, term: Term, when: AclCondition, section: HaproxySection) -> HaproxyRule | None:
    """Return the rule for a rejection by address, by key or by rate."""
    fetch, kind, values = split(term.tokens)
    if fetch == "src" and values and kind in {"str", "ip"}:
        return HaproxyRule(item, "allow" if term.negated else "deny", AclCondition(), values, when.statements)
    header = re.fullmatch(r"(?:req\.)?f?hdr\((authorization|x-api-key|api-key)\)", fetch.lower())
    if header is not None or fetch.startswith("http_auth_bearer"):
        if not term.negated:
            return HaproxyRule(item, "guard", AclCondition(), None, when.statements)
        name = header[1] if header else "authorization"
        return HaproxyRule(item, "keys", AclCondition(), name, when.statements)
    if fetch == "http_auth" or fetch.startswith("http_auth("):
        return HaproxyRule(item, "guard", AclCondition(), None, when.statements)
    rate = re.fullmatch(r"sc(?:_http_req_rate\(0\)|0_http_req_rate)", fetch)
    if rate is not None and len(values) > 1 and values[0] in {"gt", "ge"} and is_whole(values[1]):
        return _limit(item, int(values[1]), when, section)
    return None


def _limit(item: Statement, count: int, when: AclCondition, section: HaproxySection) -> HaproxyRule | None:
    table = next(section.own("stick-table"), None)
    track = next((each for each in section.rules("http-request") if each.args[0].startswith("track-sc0")), None)
    period = re.search(r"http_req_rate\((\d+(?:ms|s|m|h)?)\)", table.text) if table is not None else None
    if table is None or track is None or period is None or len(track.args) < 2:
        return None
    header = re.fullmatch(r"(?:req\.)?f?hdr\(([A-Za-z0-9_-]+)\)", track.args[1])
    by: object = "client_ip" if track.args[1] == "src" else {"header": header[1].lower()} if header else None
    seconds = (milliseconds(period[1]) or 0) / 1000
    if by is None or seconds <= 0:
        return None
    per = next(((unit, size) for unit, size in (("s", 1), ("m", 60), ("h", 3600)) if count * size % seconds == 0), None)
    if per is None:
        return None
    limit = {"by": by, "rate": f"{int(count * per[1] / seconds)}/{per[0]}", "burst": count}
    return HaproxyRule(item, "limit", AclCondition(), limit, (table, track, *when.statements))
