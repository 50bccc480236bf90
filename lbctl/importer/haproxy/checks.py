"""Converts `option httpchk`, `http-check` and the timing of `check` to active health checks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lbctl.base.diagnostics import Path
from lbctl.importer.haproxy import values
from lbctl.importer.haproxy.context import HaproxyImport, HaproxySection
from lbctl.importer.haproxy.servers import ServerLine
from lbctl.importer.statement import Statement
from lbctl.importer.values import is_whole

_TIMES = {"inter": "interval"}
_COUNTS = {"rise": "healthy_threshold", "fall": "unhealthy_threshold", "port": "port"}


def active(context: HaproxyImport, path: Path, section: HaproxySection, servers: Sequence[ServerLine]) -> None:
    """Set the active check of a pool whose servers have `check`."""
    checked = next((server for server in servers if server.has("check")), None)
    lines = _lines(section)
    if checked is None:
        for item in lines:
            context.draft.ledger.omit(item, "no server in this section has `check`", path)
        if servers:
            message = "servers without `check` receive requests even after they have failed"
            context.draft.ledger.advise(servers[0].line, message, "add `health.active` to the pool")
        return
    check: dict[str, Any] = {"interval": "2s", "unhealthy_threshold": 3, "healthy_threshold": 2}
    check |= {"http": _http(context, path, lines)} if section.last("option", "httpchk") else {"tcp": {}}
    check |= _timing(checked)
    timeout = section.last("timeout", "check")
    if timeout is not None and len(timeout.args) > 1 and (limit := values.time(timeout.args[1])):
        check["timeout"] = limit
        context.draft.ledger.carry((*path, "health", "active", "timeout"), timeout)
    context.draft.put((*path, "health", "active"), check, checked.line)
    for word in ("fastinter", "downinter"):
        if checked.has(word):
            part = f"server {checked.name} {word} {checked.get(word, '')}"
            context.draft.ledger.omit(checked.line, "lbctl uses one check interval for all states", path, part=part)


def _timing(server: ServerLine) -> dict[str, Any]:
    times = {key: value for word, key in _TIMES.items() if (value := values.time(server.get(word, "")))}
    return times | {key: int(server.get(word, "")) for word, key in _COUNTS.items() if is_whole(server.get(word, ""))}


def _lines(section: HaproxySection) -> list[Statement]:
    own = [item for item in section.block.block if item.name == "http-check"]
    inherited = [item for level in section.defaults for item in level.block if item.name == "http-check"]
    option = section.last("option", "httpchk")
    return [*([option] if option else []), *(own or inherited)]


def _http(context: HaproxyImport, path: Path, lines: Sequence[Statement]) -> dict[str, Any]:
    http: dict[str, Any] = {}
    for item in lines:
        args = item.args[1:]
        if item.name == "option":
            http |= _request([word for word in args if not word.startswith("HTTP/")])
        elif item.args[:1] == ("send",):
            http |= _send(args)
        elif item.args[:1] == ("expect",):
            expected = _expect(args)
            if expected is None:
                context.draft.ledger.omit(item, "a health check can expect only status codes or text in the body", path)
                continue
            http |= expected
        else:
            context.draft.ledger.omit(item, "a health check is a single GET request", path)
            continue
        context.draft.ledger.carry((*path, "health", "active", "http"), item)
    http.setdefault("path", "/")
    return http


def _request(args: Sequence[str]) -> dict[str, Any]:
    if not args:
        return {}
    return {"path": args[0] if len(args) == 1 else args[1]}


def _send(args: Sequence[str]) -> dict[str, Any]:
    request: dict[str, Any] = {}
    for index, word in enumerate(args):
        following = args[index + 1 :]
        if word == "uri" and following:
            request["path"] = following[0]
        if word == "hdr" and len(following) > 1 and following[0].lower() == "host":
            request["host"] = following[1]
    return request


def _expect(args: Sequence[str]) -> dict[str, Any] | None:
    if len(args) < 2:
        return None
    if args[0] == "status":
        statuses: list[int] = []
        for part in args[1].split(","):
            match = re.fullmatch(r"(\d{3})(?:-(\d{3}))?", part)
            if match is None:
                return None
            statuses += range(int(match[1]), int(match[2] or match[1]) + 1)
        return {"statuses": statuses}
    if args[0] == "rstatus" and re.fullmatch(r"\^?2\.\.\$?|2\[0-9\]\[0-9\]|2\.\*?|\(2\|3\)\[0-9\]\[0-9\]", args[1]):
        return {"statuses": list(range(200, 300 if "3" not in args[1] else 400))}
    return {"body_contains": " ".join(args[1:])} if args[0] == "string" else None
