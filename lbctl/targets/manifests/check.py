"""Errors that `kubectl apply --dry-run=server` reports about rendered objects."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from lbctl.targets.target import Bundle, Complaint

_INVALID = re.compile(r'^The (?P<kind>[A-Za-z]+) "(?P<name>[^"]+)" is invalid:(?P<rest>.*)', re.MULTILINE)
_OBJECT = re.compile(r'\b(?P<kind>[A-Za-z]+)(?:\.[a-z0-9.-]+)? "(?P<name>[a-z0-9.-]+)"', re.ASCII)
"""A kind or resource, optionally with its API group, followed by an object's name."""
_NO_MAPPING = re.compile(r'name: "(?P<name>[a-z0-9.-]+)".* no matches for kind "(?P<kind>[A-Za-z]+)"', re.ASCII)
_TYPED = re.compile(r"\((?:[a-z0-9-]+/)?(?P<name>[a-z0-9.-]+); [^,()]*, Kind=(?P<kind>[A-Za-z]+)\)", re.ASCII)
"""An object in an error about the types of its fields."""
_FIELD = re.compile(
    r"(?:^|[\s\[\"(])\.?(?P<field>(?:spec|data|metadata|endpoints|ports)(?:\.[\w-]+|\[[^\]]*\])*)", re.ASCII
)
"""A field of an object. The server writes keys that contain dots in brackets."""
_STEP = re.compile(r"\.?([\w-]+)|\[([^\]]*)\]", re.ASCII)
_UNREACHABLE = re.compile(
    r"connection to the server|unable to connect to the server|server API group list|failed to download openapi"
    r"|must be logged in to the server|please enter (?:username|password)|^error in configuration:"
    r"|^error: error loading config|^error: (?:context|cluster|auth info) \S+ does not exist"
    r"|^error: (?:invalid configuration|no configuration has been provided|unable to (?:read|load) )",
    re.IGNORECASE | re.MULTILINE,
)
_CONFLICT = re.compile(r"^(?:error: )?(?P<head>Apply failed with \d+ conflicts?: .*)", re.MULTILINE)
_ADVICE = re.compile(r"; if you choose to ignore these errors, turn validation off with --validate=false$")
_LOG = re.compile(r"[EIW]\d{4} \d\d:\d\d:\d\d")
"""Beginning of a line of kubectl's own log."""
_TAKE_OVER = "to take over these fields, apply once with `--force-conflicts`"
_KIND, _NAME = re.compile(r"^kind: (\w+)$", re.MULTILINE), re.compile(r'^  name: "?([a-z0-9.-]+)"?$', re.MULTILINE)


def unreachable(output: str) -> str:
    """Return the reason why kubectl did not find an API server to validate the objects; empty if a server responded."""
    if _UNREACHABLE.search(output) is None:
        return ""
    lines = (_ADVICE.sub("", line.strip()) for line in output.splitlines())
    return " / ".join(dict.fromkeys(line for line in lines if line and not _LOG.match(line)))


def complaints(output: str, bundle: Bundle) -> Iterator[Complaint]:
    """Yield each error with the line of its field in the file, or the line of its object if it names no field."""
    for line in dict.fromkeys(_lines(output)):  # a missing namespace is an error of each object
        match = _INVALID.search(line) or _NO_MAPPING.search(line) or _TYPED.search(line) or _OBJECT.search(line)
        field = _FIELD.search(line, match.start("rest") if match and match.re is _INVALID else 0)
        place = (
            _line_of(bundle.main.text, match["kind"], match["name"], field["field"] if field else "") if match else None
        )
        yield Complaint(line, bundle.main.name, place)


def _lines(output: str) -> Iterator[str]:
    """Yield the errors. An error in several fields has one line per field, beginning with an asterisk.

    A conflict with another field manager is one error. The field lines of a conflict begin with a dash, and kubectl
    appends advice.
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


def _line_of(text: str, kind: str, name: str, field: str) -> int | None:
    """Return the line of an object's field, or the first line of its metadata; None if the file has no such object.

    `kind` may also be a resource name, such as `httproutes`.
    """
    start = 1
    for document in re.split(r"^---\n", text, flags=re.MULTILINE):
        names, kinds = _NAME.search(document), _KIND.search(document)
        if names is not None and names[1] == name and kinds is not None and kind in (kinds[1], _resource(kinds[1])):
            return start + (_field_line(document, field) or document[: names.start()].count("\n"))
        start += document.count("\n") + 1
    return None


def _field_line(document: str, field: str) -> int:
    """Return the number of lines above a field or its nearest parent in the document; 0 if neither is present."""
    node: yaml.Node | None = yaml.compose(document, yaml.CSafeLoader) if field else None
    line = 0
    for key, index in _STEP.findall(field):
        found = _child(node, key or index)
        if found is None:
            break
        line, node = found
    return line


def _child(node: yaml.Node | None, step: str) -> tuple[int, yaml.Node] | None:
    """Return the line and value of a map's key or a list's item; None if it is missing."""
    if isinstance(node, yaml.MappingNode):
        pairs = ((key, value) for key, value in node.value if key.value == step)
        return next(((key.start_mark.line, value) for key, value in pairs), None)
    if isinstance(node, yaml.SequenceNode) and step.isdecimal() and int(step) < len(node.value):
        item: yaml.Node = node.value[int(step)]
        return item.start_mark.line, item
    return None


def _resource(kind: str) -> str:
    """Return the plural name of a kind that lbctl renders, as in RBAC."""
    lower = kind.lower()
    return f"{lower[:-1]}ies" if lower.endswith("y") and not lower.endswith("ay") else f"{lower}s"
