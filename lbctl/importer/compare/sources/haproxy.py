"""Rebuilds an HAProxy configuration for loopback from sections and keywords that are known to be harmless."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lbctl.apply.reserved_ports import LOOPBACK
from lbctl.base.diagnostics import Position
from lbctl.importer.compare.places import StandIns
from lbctl.importer.compare.sources import haproxy_keywords as keywords
from lbctl.importer.compare.sources import haproxy_rules as rules
from lbctl.importer.compare.sources.haproxy_values import accepts, first_refused, line, quoted, value_of
from lbctl.importer.compare.sources.removed import (
    CLOSED_HEADER,
    LOST_REPLICAS,
    ClosedError,
    Removals,
    Rewritten,
)
from lbctl.importer.draft import CLOSED_STATUS
from lbctl.importer.haproxy import values as haproxy_values
from lbctl.importer.haproxy.tokens import TokenError, split_line
from lbctl.importer.statement import Statement

_SECTIONS = frozenset({"defaults", "frontend", "backend", "listen", "userlist"})
_PROXIES = frozenset({"frontend", "backend", "listen"})
_SERVERS = frozenset({"server", "server-template"})
RULES = ("http-request", "http-response", "http-after-response", "tcp-request", "tcp-response")
_SERVER = {"weight": "number", "maxconn": "number", "backup": "", "disabled": "", "cookie": "text"}
_FORWARD_FOR = {"except": "network", "header": "header", "if-none": ""}
_TABLE = {
    "type": "name",
    "len": "number",
    "size": "size",
    "expire": "time",
    "store": "word",
    "nopurge": "",
    "srvkey": "name",
}
_TABLE_TYPE = "=binary|integer|ip|ipv6|string"
NOT_LISTED = "not a directive supported by the comparison"
NOT_RUN = "its arguments are not supported by the comparison"


def rewrite(statements: Sequence[Statement], places: StandIns) -> Rewritten:
    """Return the text of an HAProxy configuration for loopback."""
    removals = Removals()
    lines = ["global", "    maxconn 256"]
    inherited: dict[str, ClosedError | None] = {}
    latest = ""
    for section in statements:
        head = [value_of(word) for word in section.tokens]
        if reason := _skipped(section, head):
            removals.leave_out(section, reason)
            continue
        base = head[-1] if head[-2:-1] == ["from"] else latest
        writer = _Section(section.block, places, removals)
        body, closed = writer.body(inherited.get(base))
        if closed is not None and head[0] in _PROXIES:
            body = [line(answer("http-request", closed.number)), *body]
        if head[0] == "defaults":
            latest = head[1] if head[1:2] and head[1] != "from" else "*"
            inherited[latest] = closed
        lines += [line(head), *(f"    {each}" for each in body)]
    return Rewritten("\n".join(lines) + "\n", removals.items)


def own_lines(text: str, places: StandIns) -> str:
    """Return the fleet's own lines for loopback, limited to the lines that would also be run in the source."""
    items = []
    for number, each in enumerate(text.splitlines(), 1):
        try:
            tokens = split_line(each)
        except TokenError:
            continue
        if tokens:
            items.append(Statement(Position("own", number), tuple(item.text for item in tokens)))
    section = _Section(items, places, Removals())
    kept = []
    for item in items:
        try:
            kept += section.lines(item)
        except ClosedError:
            continue
    return "".join(f"{each}\n" for each in kept)


def _skipped(section: Statement, head: list[str]) -> str:
    """Return the reason why a section is omitted, or an empty string for a section that is rebuilt."""
    if section.name not in _SECTIONS:
        return keywords.LEFT_OUT.get(section.name, NOT_LISTED)
    if section.name != "defaults" and ("mode", "tcp") in {item.tokens for item in section.block}:
        return "TCP"
    if section.name == "listen" and not any(item.name == "server" for item in section.block):
        return "no server"
    return "" if any(accepts(kinds, head) for kinds in ("name name?", "name name? =from name")) else "its name"


def answer(kind: str, number: int) -> list[str]:
    """Return the words of a rule whose response states that the comparison closed the route."""
    return [kind, "return", "status", str(CLOSED_STATUS), "content-type", "text/plain", "string", "closed",
            "hdr", CLOSED_HEADER, str(number)]  # fmt: skip


class _Section:
    """Writes a section."""

    def __init__(self, block: Sequence[Statement], places: StandIns, removals: Removals) -> None:
        self._block = block
        self._places = places
        self._removals = removals
        self._words = {item: [value_of(word) for word in item.tokens] for item in block}
        self._known = rules.usable_acls(self._words.values())
        self._has_replicas = any(self._is_replica(words) for words in self._words.values())
        self._writers: dict[str, Callable[[list[str]], list[str] | None]] = {
            "acl": self._acl,
            "balance": self._balance,
            "bind": self._binds,
            "default_backend": self._backend,
            "force-persist": self._conditional,
            "ignore-persist": self._conditional,
            "redirect": self._redirect,
            "server": self._server,
            "server-template": self._server,
            "stick": self._stick,
            "stick-table": self._table,
            "use-server": self._backend,
            "use_backend": self._backend,
            **dict.fromkeys(RULES, self._rule),
        }

    def body(self, closed: ClosedError | None) -> tuple[list[str], ClosedError | None]:
        """Return the lines, and the error that causes the section to be closed."""
        lines = list[str]()
        for item in self._block:
            try:
                lines += self.lines(item)
            except ClosedError as error:
                if item.name in {"http-request", "http-response"}:
                    lines.append(self._instead(item, error))
                else:
                    lines += self._empty_table(item)
                    closed = closed or error
        return lines, closed

    def _empty_table(self, item: Statement) -> list[str]:
        """Return an empty table for a table that must not be run, because rules in other sections may refer to it."""
        words = self._words[item]
        kind = words[words.index("type") + 1 :][:1] if item.name == "stick-table" and "type" in words else []
        return [line(["stick-table", "type", *kind, "size", "1k"])] if accepts(_TABLE_TYPE, kind) else []

    def _instead(self, item: Statement, error: ClosedError) -> str:
        """Return the rule that responds instead of a rule that must not be run.

        The returned rule has the same condition, provided that the condition can be run.
        """
        when = rules.condition(rules.parted(self._words[item][1:])[1], self._known)
        return line([*answer(item.name, error.number), *(when or [])])

    def lines(self, item: Statement) -> list[str]:
        """Return a keyword's lines, or none if it is omitted. Raises ClosedError if it must not be run."""
        words = self._words[item]
        if words[0] in RULES and (reason := rules.left_out(words)):
            return self._leave_out(item, reason)
        if words[0] in self._writers:
            lines = self._writers[words[0]](words)
            if lines is None:
                raise self._not_run(item)
            if words[0] in _SERVERS and self._has_replicas and not self._is_replica(words):
                self._removals.leave_out(item, LOST_REPLICAS, " ".join(words[:2]))
                lines = [f"{each} disabled" for each in lines]
            return lines
        if words[:2] == ["no", "option"] or words[0] == "option":
            return self._option(item, words)
        kinds = keywords.KEYWORDS.get(words[0])
        if kinds is not None and accepts(kinds, words[1:]):
            return [line(rules.plain(words))]
        if kinds is not None:
            raise self._not_run(item)
        return self._leave_out(item, keywords.reason(words))

    def _not_run(self, item: Statement) -> ClosedError:
        """Return the error that causes the section to be closed, or a response to be sent instead of the rule's.

        The error contains the word that must not be run.
        """
        words = self._words[item]
        name = words[0]
        if name == "option":
            word = rules.refused_option(words[2:], _FORWARD_FOR)
        elif name == "stick-table":
            word = rules.refused_option(words[1:], _TABLE)
        elif name == "balance":
            word = (
                first_refused("expression", words[2:]) if words[1:2] == ["hash"] else first_refused("word", words[1:])
            )
        elif name in keywords.KEYWORDS:
            word = first_refused(keywords.KEYWORDS[name], words[1:])
        elif name in _SERVERS or name == "bind":
            word = first_refused("name", words[1:2])
        else:
            word = rules.refused(words, self._known)
        return self._removals.close(item, NOT_LISTED if word else NOT_RUN, word)

    def _leave_out(self, item: Statement, reason: str) -> list[str]:
        if not reason:
            raise self._removals.close(item, NOT_LISTED)
        self._removals.leave_out(item, reason)
        return []

    def _option(self, item: Statement, words: list[str]) -> list[str]:
        at = words.index("option")
        name, args = words[at + 1] if len(words) > at + 1 else "", words[at + 2 :]
        if name in {"forwardfor", "originalto"}:
            if rules.with_options(args, _FORWARD_FOR):
                return [line(words)]
            raise self._not_run(item)
        if name in keywords.OPTIONS and accepts(keywords.OPTIONS[name], args):
            return [line(words)]
        return self._leave_out(item, keywords.OPTIONS_LEFT_OUT.get(name, ""))

    # ── Converted keywords: None for keywords that must not run ──────────────────────────────────────────────────────

    def _acl(self, words: list[str]) -> list[str] | None:
        """Return an ACL. If an ACL must not be run, it is omitted, and the rules that use it are closed."""
        checked = rules.criterion(words[2:])
        usable = checked is not None and words[1] in self._known
        return [line(["acl", words[1], *checked])] if checked is not None and usable else []

    def _rule(self, words: list[str]) -> list[str] | None:
        """Return a rule for requests or responses."""
        rule, when = rules.parted(words[1:])
        checked = rules.condition(when, self._known)
        at = rules.start(words) - 1
        if rule[:1] == ["inspect-delay"] and words[0].startswith("tcp"):
            return [line(words)] if accepts("time", rule[1:]) and not when else None
        action = rules.action(rule[at:])
        return [line([words[0], *rule[:at], *action, *checked])] if action is not None and checked is not None else None

    def _redirect(self, words: list[str]) -> list[str] | None:
        rule, when = rules.parted(words)
        action, checked = rules.action(rule), rules.condition(when, self._known)
        return [line([*action, *checked])] if action is not None and checked is not None else None

    def _conditional(self, words: list[str]) -> list[str] | None:
        checked = rules.condition(words[1:], self._known)
        return [line([words[0], *checked])] if checked else None

    def _backend(self, words: list[str]) -> list[str] | None:
        """Return a line that selects a backend or server, which is always defined in this file."""
        rule, when = rules.parted(words)
        checked = rules.condition(when, self._known)
        if checked is None or not (accepts("name name", rule) or accepts("name format", rule)):
            return None
        return [line([*rules.plain(rule), *checked])]

    def _balance(self, words: list[str]) -> list[str] | None:
        if words[1:2] == ["hash"]:
            return [line(rules.plain(words))] if accepts("expression", words[2:]) else None
        return [line(words)] if accepts("word+", words[1:]) else None

    def _table(self, words: list[str]) -> list[str] | None:
        """Return a table without peers."""
        if "peers" in words[:-1]:
            at = words.index("peers")
            words = words[:at] + words[at + 2 :]
        return [line(words)] if rules.with_options(words[1:], _TABLE) else None

    def _stick(self, words: list[str]) -> list[str] | None:
        rule, when = rules.parted(words)
        checked = rules.condition(when, self._known)
        if checked is None or not accepts("name =on|match|store-request|store-response expression =table? name?", rule):
            return None
        return [line([*rules.plain(rule), *checked])]

    def _binds(self, words: list[str]) -> list[str]:
        found = haproxy_values.binds(words[1]) if len(words) > 1 else []
        ports = [self._places.binds[bind] for bind in found if bind is not None and bind in self._places.binds]
        tls = f" ssl crt {quoted(self._places.pem)}" if "ssl" in words else ""
        return [f"bind {LOOPBACK}:{port}{tls}" for port in ports]

    def _is_replica(self, words: list[str]) -> bool:
        """Return whether a line defines a server that is a replica in the fleet."""
        return words[0] in _SERVERS and self._places.replica_port(_address(words)) is not None

    def _server(self, words: list[str]) -> list[str] | None:
        """Return a server, which is a replica's replacement or an address without a listener."""
        template = words[0] == "server-template"
        names, rest = words[1:2], words[3 if template else 2 :]
        if not rest or not accepts("name", names):
            return None
        name = f"{names[0]}1" if template else names[0]
        options, at = list[str](), 1
        while at < len(rest):
            kinds = _SERVER.get(rest[at])
            count = 1 + (1 if kinds else 0)
            if kinds is not None and accepts(kinds, rest[at + 1 : at + count]):
                options += rest[at : at + count]
            at += count if kinds is not None else 1
        return [line(["server", name, self._places.replica(_address(words)), *options])]


def _address(words: list[str]) -> str:
    """Return a server's address in fleet-file form, or an empty string if it has none."""
    at = 3 if words[0] == "server-template" else 2
    return haproxy_values.server_address(words[at]) or "" if len(words) > at else ""
