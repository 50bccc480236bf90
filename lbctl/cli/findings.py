"""Formats findings for pipelines as text, JSON, GitHub annotations, SARIF 2.1.0 or GitLab's Code Quality report.

Standard output contains only the formatted findings, ordered by file and line. GitHub shows only ten annotations of
each kind, so the most severe findings come first.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import quote

from lbctl import __version__
from lbctl.base.diagnostics import Diagnostic, Severity, as_json, dotted

FORMS = ("text", "json", "github", "sarif", "codequality")
_MAX_ANNOTATIONS = 10
"""Maximum number of annotations per step that GitHub shows."""
_RANK: dict[Severity, int] = {"error": 0, "warning": 1, "note": 2}
_COMMANDS: dict[Severity, str] = {"error": "error", "warning": "warning", "note": "notice"}
_CODE_QUALITY: dict[Severity, str] = {"error": "critical", "warning": "major", "note": "info"}
_LINE_AND_COLUMN = re.compile(r":[0-9]+:[0-9]+\b")
"""Matches the line and column of a position within a message."""
_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"


def written(findings: Iterable[Diagnostic], form: str) -> str:
    """Return the complete standard output, with a final newline. The `text` format has one finding per line."""
    diagnostics = list(findings)
    match form:
        case "json":
            return _json(diagnostics)
        case "github":
            return "".join(f"{line}\n" for line in _github(diagnostics))
        case "sarif":
            return json.dumps(_sarif(diagnostics), indent=2, ensure_ascii=False) + "\n"
        case "codequality":
            return json.dumps(_code_quality(diagnostics), indent=2, ensure_ascii=False) + "\n"
        case _:
            return "".join(f"{item}\n" for item in diagnostics)


def counted(findings: Sequence[Diagnostic]) -> str:
    """Return a summary, for example `3 findings: 1 error, 2 warnings`."""
    counts = Counter(item.severity for item in findings)
    parts = [_number(counts[severity], severity) for severity in _RANK if counts[severity]]
    return f"{_number(len(findings), 'finding')}: {', '.join(parts)}" if findings else "no findings"


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _json(findings: Sequence[Diagnostic]) -> str:
    counts = Counter(item.severity for item in findings)
    whole = {
        "findings": [as_json(item) for item in findings],
        "counts": {severity: counts[severity] for severity in _RANK},
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _github(findings: Sequence[Diagnostic]) -> list[str]:
    worst = sorted(findings, key=lambda item: _RANK[item.severity])
    shown = f", {_MAX_ANNOTATIONS} of them annotated" if len(worst) > _MAX_ANNOTATIONS else ""
    return [*map(_annotation, worst[:_MAX_ANNOTATIONS]), f"lbctl: {counted(findings)}{shown}"]


def _annotation(item: Diagnostic) -> str:
    place = item.position
    parts = []
    if place is not None and place.file != "-":
        parts.append(f"file={_property(place.file)}")
        if place.line:
            parts += [f"line={place.line}", f"col={place.column}"]
    parts.append(f"title={_property(item.code)}")
    return f"::{_COMMANDS[item.severity]} {','.join(parts)}::{_data(_sentence(item))}"


def _sentence(item: Diagnostic) -> str:
    path = f"{dotted(item.path)}: " if item.path else ""
    return f"{path}{item.message}{f' ({item.hint})' if item.hint else ''}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _sarif(findings: Sequence[Diagnostic]) -> dict[str, Any]:
    codes = sorted({item.code for item in findings})
    driver = {
        "name": "lbctl",
        "version": __version__,
        "semanticVersion": __version__,
        "rules": _rules(codes),
    }
    results = [_result(item, codes.index(item.code)) for item in findings]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _rules(codes: Sequence[str]) -> list[dict[str, Any]]:
    from lbctl.lint.pages import markdown, pages, terminal_text

    by_code = pages()
    return [
        {
            "id": code,
            "shortDescription": {"text": by_code[code].title},
            "fullDescription": {"text": by_code[code].what},
            "help": {"text": terminal_text(by_code[code]), "markdown": markdown(by_code[code])},
            "defaultConfiguration": {"level": by_code[code].severity},
        }
        for code in codes
    ]


def _result(item: Diagnostic, index: int) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": item.code,
        "ruleIndex": index,
        "level": item.severity,
        "message": {"text": _sentence(item)},
    }
    place = item.position
    if place is not None and place.file != "-":
        physical: dict[str, Any] = {"artifactLocation": {"uri": _uri(place.file)}}
        if place.line:
            physical["region"] = {"startLine": place.line, "startColumn": max(1, place.column)}
        result["locations"] = [{"physicalLocation": physical}]
    return result


def _uri(file: str) -> str:
    """Return a relative URI for a relative path, or an absolute URI otherwise."""
    return f"file://{quote(file)}" if file.startswith("/") else quote(file.removeprefix("./"))


def _code_quality(findings: Sequence[Diagnostic]) -> list[dict[str, Any]]:
    """Return a Code Quality report. A fingerprint stays the same if the finding only moves to another line."""
    issues, counts = [], Counter[tuple[str, ...]]()
    for item in findings:
        file = _relative(item)
        message = _LINE_AND_COLUMN.sub("", item.message)
        identity = (item.code, file, dotted(item.path), message)
        # GitLab shows only one finding per fingerprint, so identical findings are numbered.
        counts[identity] += 1
        fingerprint = hashlib.sha256("\0".join((*identity, str(counts[identity]))).encode()).hexdigest()
        issues.append(
            {
                "description": f"{item.code} {_sentence(item)}",
                "check_name": item.code,
                "fingerprint": fingerprint,
                "severity": _CODE_QUALITY[item.severity],
                "location": {"path": file, "lines": {"begin": max(1, item.position.line if item.position else 1)}},
            }
        )
    return issues


def _relative(item: Diagnostic) -> str:
    """Return the file relative to the working directory (the job's checkout), or `.` for a finding without a file."""
    place = item.position
    return os.path.relpath(place.file) if place is not None and place.file != "-" else "."
