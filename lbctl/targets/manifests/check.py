"""Errors of `kubectl apply --dry-run=server` about rendered objects."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lbctl.targets.target import Bundle, Complaint

_INVALID = re.compile(r'^The (?P<kind>[A-Za-z]+) "(?P<name>[^"]+)" is invalid:(?P<rest>.*)', re.MULTILINE)
_OBJECT = re.compile(r'\b(?P<kind>[A-Za-z]+)(?:\.[a-z0-9.-]+)? "(?P<name>[a-z0-9.-]+)"', re.ASCII)
"""A kind or resource, perhaps with its API group, and the name of an object."""
_NO_MAPPING = re.compile(r'name: "(?P<name>[a-z0-9.-]+)".* no matches for kind "(?P<kind>[A-Za-z]+)"', re.ASCII)
_UNREACHABLE = re.compile(
    r"connection to the server|unable to connect to the server|server API group list|failed to download openapi"
    r"|must be logged in to the server|please enter (?:username|password)|^error in configuration:"
    r"|^error: error loading config",
    re.IGNORECASE | re.MULTILINE,
)
_CONFLICT = re.compile(r"^(?:error: )?(?P<head>Apply failed with \d+ conflicts?: .*)", re.MULTILINE)
_ADVICE = re.compile(r"; if you choose to ignore these errors, turn validation off with --validate=false$")
_LOG = re.compile(r"[EIW]\d{4} \d\d:\d\d:\d\d")
"""Beginning of a line of kubectl's own log."""
_TAKE_OVER = "to take over these fields, apply once with `--force-conflicts`"
_KIND, _NAME = re.compile(r"^kind: (\w+)$", re.MULTILINE), re.compile(r'^  name: "?([a-z0-9.-]+)"?$', re.MULTILINE)


def unreachable(output: str) -> str:
    """Return why kubectl found no API server that validates; empty if a server answered."""
    if _UNREACHABLE.search(output) is None:
        return ""
    lines = (_ADVICE.sub("", line.strip()) for line in output.splitlines())
    return " / ".join(dict.fromkeys(line for line in lines if line and not _LOG.match(line)))


def complaints(output: str, bundle: Bundle) -> Iterator[Complaint]:
    """Yield each error with the line of its object in the file."""
    for line in dict.fromkeys(_lines(output)):  # a missing namespace is an error of each object
        match = _INVALID.search(line) or _NO_MAPPING.search(line) or _OBJECT.search(line)
        place = _line_of(bundle.main.text, match["kind"], match["name"]) if match else None
        yield Complaint(line, bundle.main.name, place)


def _lines(output: str) -> Iterator[str]:
    """Yield the errors. An error in several fields has a line for each of them, which begins with a star.

    A conflict with another field manager is one error. Its fields begin with a dash, and kubectl adds advice.
    """
    head, conflict, advice = "", "", False
    for line in filter(None, map(str.strip, output.splitlines())):
        match = _CONFLICT.match(line)
        if conflict and not match and line.startswith(("- ", "conflict with ", "conflicts with ")):
            conflict += (" " if conflict.endswith(":") else ", ") + line.removeprefix("- ")
            continue
        if conflict:
            yield f"{conflict} ({_TAKE_OVER})"
        conflict = match["head"] if match else ""
        if match or line.startswith("Please review the fields above"):
            advice = True
        elif line.startswith("* ") and not advice:
            yield f"{head} {line[2:]}"
        elif _INVALID.fullmatch(line) and line.endswith(":"):
            head, advice = line, False
        elif line.startswith(("The ", "Error ", "error: ", "Error:")):
            advice = False
            yield line
    if conflict:
        yield f"{conflict} ({_TAKE_OVER})"


def _line_of(text: str, kind: str, name: str) -> int | None:
    """Return the first line of an object's metadata; None if the file has no such object.

    `kind` is also accepted as the name of the resource, for example `httproutes`.
    """
    start = 1
    for document in text.split("---\n"):
        names, kinds = _NAME.search(document), _KIND.search(document)
        if names is not None and names[1] == name and kinds is not None and kind in (kinds[1], _resource(kinds[1])):
            return start + document[: names.start()].count("\n")
        start += document.count("\n") + 1
    return None


def _resource(kind: str) -> str:
    """Return the plural name of a kind that lbctl renders, as in RBAC."""
    lower = kind.lower()
    return f"{lower[:-1]}ies" if lower.endswith("y") and not lower.endswith("ay") else f"{lower}s"
