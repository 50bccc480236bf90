"""A configuration of HAProxy rewritten for loopback."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from lbctl.apply.reserved_ports import LOOPBACK
from lbctl.importer.compare.places import StandIns
from lbctl.importer.compare.sources.removed import Rewritten
from lbctl.importer.haproxy import values as haproxy_values
from lbctl.importer.statement import Statement

_HAPROXY_SECTIONS = frozenset({"defaults", "frontend", "backend", "listen", "userlist"})
_HAPROXY_WITHOUT = frozenset(
    {
        "log", "log-format", "log-format-sd", "log-tag", "errorfile", "errorfiles", "http-check", "email-alert",
        "filter", "source", "external-check", "server-state-file-name", "load-server-state-from-file", "monitor",
        "dispatch", "use-fcgi-app"
    }
)  # fmt: skip
_HAPROXY_OPTIONS = frozenset({"httpchk", "external-check", "tcp-check", "log-health-checks", "httplog", "socket-stats"})
_HAPROXY_RULES = ("lua", "set-dst", "do-resolve", "use-service", "send-spoe-group", "set-src", "normalize-uri")
_HAPROXY_SERVER = {"weight": 1, "maxconn": 1, "backup": 0, "disabled": 0, "cookie": 1}


def rewrite(statements: Sequence[Statement], places: StandIns) -> Rewritten:
    """Return the text of a configuration of HAProxy for loopback."""
    lines = ["global", "    maxconn 256"]
    for section in statements:
        if section.name not in _HAPROXY_SECTIONS or ("mode", "tcp") in {item.tokens for item in section.block}:
            continue
        if section.name == "listen" and not any(item.name == "server" for item in section.block):
            continue
        lines.append(" ".join(map(_quoted, section.tokens)))
        lines += [f"    {line}" for item in section.block for line in _haproxy(item, places)]
    return Rewritten("\n".join(lines) + "\n")


def _haproxy(item: Statement, places: StandIns) -> Iterator[str]:
    if item.name in _HAPROXY_WITHOUT or (item.name == "option" and item.args[:1] and item.args[0] in _HAPROXY_OPTIONS):
        return
    if item.name in {"default-server", "stats"} or any(word.startswith(_HAPROXY_RULES) for word in item.args[:2]):
        return
    if item.name == "bind":
        yield from _binds(item, places)
    elif item.name in {"server", "server-template"}:
        yield from _server(item, places)
    else:
        yield " ".join(map(_quoted, item.tokens))


def _binds(item: Statement, places: StandIns) -> Iterator[str]:
    for bind in haproxy_values.binds(item.args[0]):
        if bind is not None and bind in places.binds:
            yield f"bind {LOOPBACK}:{places.binds[bind]}" + (f" ssl crt {places.pem}" if "ssl" in item.args else "")


def _server(item: Statement, places: StandIns) -> Iterator[str]:
    template = item.name == "server-template"
    name, rest = (f"{item.args[0]}1", item.args[2:]) if template else (item.args[0], item.args[1:])
    address = haproxy_values.server_address(rest[0]) or ""
    kept: list[str] = []
    for index, word in enumerate(rest[1:], 1):
        if word in _HAPROXY_SERVER:
            kept += rest[index : index + 1 + _HAPROXY_SERVER[word]]
    yield " ".join(["server", _quoted(name), places.replica(address), *map(_quoted, kept)])


def _quoted(word: str) -> str:
    """Return a word that HAProxy takes as it is."""
    return "'" + word.replace("'", "'\"'\"'") + "'" if not re.fullmatch(r"[A-Za-z0-9_./:%{}()!=-]+", word) else word
