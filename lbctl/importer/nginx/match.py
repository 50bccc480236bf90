"""Converts a `location`'s requests to a route's match."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from lbctl.importer.statement import Statement

_HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")
_LITERAL = re.compile(r"/[A-Za-z0-9._~!&',;=:@/-]*")


def hosts_of(names: Sequence[Statement]) -> tuple[list[str], list[str]]:
    """Return the host patterns in `server_name`, and the words that are not host patterns."""
    hosts, others = list[str](), list[str]()
    for word in (word for item in names for word in item.args):
        if word in {"_", "", "localhost_default"}:
            continue
        if word.startswith(".") and _HOST.fullmatch(word[1:]):
            hosts += [word[1:], f"*{word}"]
        elif _HOST.fullmatch(word):
            hosts.append(word.lower())
        else:
            others.append(word)
    return list(dict.fromkeys(hosts)), others


def path_of(location: Statement) -> dict[str, Any] | None:
    """Return the path in a location's match, which is empty for all paths, or None for a named location."""
    modifier, pattern = ("", location.args[0]) if len(location.args) == 1 else (location.args[0], location.args[-1])
    if modifier == "" and pattern[:1] in {"=", "~"}:
        modifier, pattern = _split(pattern)
    if modifier == "=":
        return {"path": pattern}
    if modifier in {"~", "~*"}:
        return _regex(pattern, ignore_case=modifier == "~*")
    if pattern.startswith("@"):
        return None
    return {} if pattern == "/" else {"path_prefix": pattern}


def _split(pattern: str) -> tuple[str, str]:
    """Split off a modifier without a space before the pattern, for example in `location =/health`."""
    match = re.fullmatch(r"(=|~\*|~)(.*)", pattern)
    return (match[1], match[2]) if match else ("", pattern)


def _regex(pattern: str, *, ignore_case: bool) -> dict[str, Any]:
    """Return the match for a regular expression, which in nginx can match any part of the path."""
    inner = pattern[1:] if pattern.startswith("^") else None
    if inner is not None and not ignore_case:
        if inner.endswith("$") and _LITERAL.fullmatch(inner[:-1].replace("\\.", ".")):
            return {"path": inner[:-1].replace("\\.", ".")}
        literal = re.sub(r"(?:\(\.\*\)|\.\*)?\$?$", "", inner) if inner.endswith((".*", ".*)", "*$", ")$")) else ""
        if (
            literal.endswith("/")
            and _LITERAL.fullmatch(literal)
            and inner[len(literal) :] in {".*", "(.*)", ".*$", "(.*)$"}
        ):
            return {"path_prefix": literal} if literal != "/" else {}
    whole = inner if inner is not None else f".*{pattern}"
    whole = whole[:-1] if whole.endswith("$") and not whole.endswith("\\$") else f"{whole}.*"
    return {"path_regex": _either_case(whole) if ignore_case else whole}


def _either_case(pattern: str) -> str:
    """Return the expression with each letter outside classes and escapes expanded to both cases.

    Expressions in a fleet have no flags.
    """
    return re.sub(
        r"\\.|\[[^\]]*\]|[A-Za-z]",
        lambda match: f"[{match[0].upper()}{match[0].lower()}]" if len(match[0]) == 1 else match[0],
        pattern,
    )


def label(location: Statement, hosts: Sequence[str]) -> str:
    """Return a name for a location's route."""
    text = re.sub(r"[^A-Za-z0-9]+", "-", location.args[-1] if location.args else "").strip("-")
    host = hosts[0].removeprefix("*.").split(".")[0] if hosts else ""
    return "-".join(filter(None, (host, text))) or "default"
