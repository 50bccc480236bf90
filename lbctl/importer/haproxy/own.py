"""Converts lines without a matching key to own lines in `global`, frontends and backends."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lbctl.importer import own
from lbctl.importer.haproxy.context import HaproxyImport, HaproxySection
from lbctl.importer.haproxy.rules import acls, parted
from lbctl.importer.statement import Statement

_GLOBAL = re.compile(
    r"tune\.(?!bufsize|maxrewrite|lua)|ssl-default-(?:bind|server)-cipher|ssl-dh-param-file|cpu-map|nbthread|numa-cpu-mapping"
    r"|hard-stop-after|spread-checks|ulimit-n|busy-polling|h1-case-adjust|ssl-engine|ssl-mode-async"
)
_FRONT = frozenset({"capture", "compression", "declare"})
_OPTIONS = frozenset(
    {"contstats", "http-ignore-probes", "nolinger", "socket-stats", "tcp-smart-accept", "tcpka", "clitcpka", "srvtcpka",
     "tcp-smart-connect", "splice-auto", "splice-response"}
)  # fmt: skip
_RULES = frozenset({"set-header", "add-header", "set-var", "unset-var", "capture", "set-tos", "set-mark", "set-nice"})
_BACK = frozenset({"http-send-name-header", "source", "compression"})


def keep(context: HaproxyImport, section: HaproxySection, item: Statement) -> bool:
    """Keep a rule for requests or responses as an own line in its section. Returns whether this was possible."""
    args, when, _ = parted(item.args)
    if item.name not in {"http-request", "http-response"} or args[:1] == () or args[0].split("(")[0] not in _RULES:
        return False
    names = acls(section)
    used = [word.lstrip("!") for word in when]
    return _keep(context, section, item, [line for word in dict.fromkeys(used) for line in names.get(word, [])])


def collect(context: HaproxyImport, sections: list[HaproxySection]) -> None:
    """Keep the remaining lines that `include` supports."""
    unclaimed = set(context.draft.ledger.unclaimed())
    for item in context.globals:
        if item in unclaimed and _GLOBAL.match(item.name) and (line := _line(item)):
            own.keep(context.draft, "haproxy", "global", "", line, item)
    for section in sections:
        for item in section.block.block:
            if item in unclaimed and not keep(context, section, item) and _is_own(section, item):
                _keep(context, section, item, [])


def _is_own(section: HaproxySection, item: Statement) -> bool:
    if item.name == "option":
        return item.args[:1] != () and item.args[0] in _OPTIONS
    return item.name in (_BACK if section.block.name == "backend" else _FRONT)


def _keep(context: HaproxyImport, section: HaproxySection, item: Statement, conditions: list[Statement]) -> bool:
    places = list(_places(context, section))
    lines = [_line(each) for each in (*conditions, item)]
    if not places or not all(lines):
        return False
    for place, owner in places:
        for line in lines[:-1]:
            own.keep(context.draft, "haproxy", place, owner, line)
        if not own.keep(context.draft, "haproxy", place, owner, lines[-1], item):
            return False
    return True


def _places(context: HaproxyImport, section: HaproxySection) -> Iterator[tuple[str, str]]:
    if section.block.name == "backend":
        if section.name in context.pools:
            yield "backend", str(context.pools[section.name][1])
        return
    for path, origin in context.draft.origins.items():
        if path[0] == "listeners" and origin in section.block.block:
            yield "frontend", str(path[1])


def _line(item: Statement) -> str:
    """Return the line with its position, or "" if it contains an environment variable or a line break in a word."""
    if any("${" in word or not word.isprintable() for word in item.tokens):
        return ""
    text = " ".join(map(_quoted, item.tokens))
    return f"{text}  # {item.position.file.rpartition('/')[2]}:{item.position.line}"


def _quoted(word: str) -> str:
    """Return a word quoted for HAProxy."""
    plain = re.fullmatch(r"[A-Za-z0-9_./:%{}()\[\]!=+,@*?$^|-]+", word)
    return word if plain else "'" + word.replace("'", "'\"'\"'") + "'"
