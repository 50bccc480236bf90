"""Reads a fleet's key files, and keeps the last valid contents of each.

A key file that is truncated, removed or only half written would lock out all clients at once. Therefore, if a file is
unusable or would lose more keys than `max_shrink` allows, it is not published: the running fleet's contents stay in
use, and an error is reported until the file is valid again. Keys are counted, not compared, because a file in which all
keys are new is a rotation. The contents of these files are never displayed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Severity, show
from lbctl.base.diagnostics import Path as FieldPath
from lbctl.compile.files import file_of
from lbctl.compile.secrets import Content, KeyFile, key_count, key_files, read_key_file, secrets_of
from lbctl.ir.secrets import HeaderSecret, Secrets
from lbctl.model.fleet import FleetSource
from lbctl.serve.fleet.fingerprints import changed_at, signature
from lbctl.targets.load import Loaded

UNUSABLE = "LB530"
SHRUNK = "LB531"
_KEY_FILE_CODES = frozenset({"LB121", "LB150", "LB503", "LB507", "LB508", UNUSABLE, SHRUNK})
_REVOKE = "to revoke all keys, empty the file and run `lbctl reload --allow-shrink`"
_SETTLE_NS = 1_000_000_000
"""Time in ns for which a file that has lost a key must stay unchanged, because a slow writer may not have finished."""


@dataclass(frozen=True, slots=True)
class ServedKeyFile:
    """A published route's key file."""

    written: str
    """The path of the file as written in the fleet."""
    content: Content
    """The published keys."""


ServedKeyFiles = Mapping[FieldPath, ServedKeyFile]
"""Maps the field path of each YAML value that names a key file to the published contents."""


def served_key_files(fleet: Loaded) -> dict[FieldPath, ServedKeyFile]:
    """Return a published fleet's key files."""
    contents: dict[str, Content] = {**fleet.secrets.api_keys, **fleet.secrets.jwks, **fleet.secrets.headers}
    files = key_files(fleet.source)
    return {
        file.path: ServedKeyFile(file.written, contents[file.written]) for file in files if file.written in contents
    }


def read_new(source: FleetSource, before: ServedKeyFiles, diagnostics: Diagnostics) -> Secrets:
    """Read a new fleet's key files; every file must exist and be valid.

    Each file's diagnostics are added as errors, and LB530 is added if the contents published `before` stay in use.
    """
    contents: dict[KeyFile, Content | None] = {}
    for file in key_files(source):
        file_diagnostics = Diagnostics()
        content = contents[file] = read_key_file(source, file, True, file_diagnostics)
        previous = before.get(file.path)
        if content is None and previous is not None:
            diagnostics.extend(item for item in file_diagnostics if item.code != "LB503")
            diagnostics.add(_unusable(file, previous, "error"))
        else:
            diagnostics.extend(file_diagnostics)
    return secrets_of(contents)


def read_again(source: FleetSource, before: ServedKeyFiles, max_shrink: float, diagnostics: Diagnostics) -> Secrets:
    """Reread the running fleet's key files, and keep the contents in `before` for unusable files.

    The contents are also kept if a file has lost more than `max_shrink` percent of its keys, or has just lost a key.
    LB530 and LB531 are warnings here.
    """
    contents: dict[KeyFile, Content | None] = {}
    for file in key_files(source):
        previous = before.get(file.path)
        file_diagnostics = Diagnostics()
        content = read_key_file(source, file, True, file_diagnostics)
        if (
            previous
            and content
            and _has_lost_keys(previous, content)
            and _just_changed(file_of(source, file.node), time.time_ns())
        ):
            content = previous.content
        if previous is not None and (content is None or _loses_too_many(previous.content, content, max_shrink)):
            diagnostics.add(
                _unusable(file, previous, "warning")
                if content is None
                else _shrunk(file, previous, content, max_shrink, "warning")
            )
            content = previous.content
        else:
            diagnostics.extend(file_diagnostics)
        contents[file] = content
    return secrets_of(contents)


def shrinks(source: FleetSource, before: ServedKeyFiles, secrets: Secrets, max_shrink: float) -> list[Diagnostic]:
    """Return LB531 for each file that would lose more than `max_shrink` percent of its keys, or its last key."""
    return [
        _shrunk(file, previous, content, max_shrink, "error")
        for file, previous, content in _read_again_files(source, before, secrets)
        if _loses_too_many(previous.content, content, max_shrink)
    ]


def unsettled_file(source: FleetSource, before: ServedKeyFiles, now: int) -> Path | None:
    """Return one of the running fleet's key files that may be half written, or None.

    Such a file has lost a key or is invalid, and was changed less than a second before `now` (in ns since the epoch).
    """
    for file in key_files(source):
        path, previous = file_of(source, file.node), before.get(file.path)
        if previous is not None and _just_changed(path, now):
            content = read_key_file(source, file, True, Diagnostics())
            if content is None or _has_lost_keys(previous, content):
                return path
    return None


def refusal_reason(diagnostics: tuple[Diagnostic, ...]) -> str:
    """Return the reason why the fleet is not published if only its key files prevent it; otherwise an empty string."""
    errors = [item for item in diagnostics if item.severity == "error"]
    if not errors or any(item.code not in _KEY_FILE_CODES for item in errors):
        return ""
    return next((item for item in errors if item.code in (UNUSABLE, SHRUNK)), errors[0]).message


def _read_again_files(
    source: FleetSource, before: ServedKeyFiles, secrets: Secrets
) -> Iterator[tuple[KeyFile, ServedKeyFile, Content]]:
    """Yield every file that was published before and has been reread, with its published and its new contents."""
    for file in key_files(source):
        content = _content(secrets, file)
        if content is not None and file.path in before:
            yield file, before[file.path], content


def _content(secrets: Secrets, file: KeyFile) -> Content | None:
    if file.is_sent:
        return secrets.headers.get(file.written)
    return (secrets.jwks if file.is_jwks else secrets.api_keys).get(file.written)


def _loses_too_many(before: Content, after: Content, max_shrink: float) -> bool:
    count, remaining = key_count(before), key_count(after)
    return count > 0 and (remaining == 0 or (count - remaining) * 100 > max_shrink * count)


def _has_lost_keys(previous: ServedKeyFile, content: Content) -> bool:
    return bool(_keys(previous.content) - _keys(content))


def _just_changed(path: Path, now: int) -> bool:
    """Return whether the file was changed very recently.

    Times in the future come from another clock and are ignored.
    """
    changed = changed_at(signature(path))
    return changed is not None and now - _SETTLE_NS < changed <= now


def _keys(content: Content) -> set[object]:
    if isinstance(content, HeaderSecret):
        return {content.value}
    if isinstance(content, str):
        return {json.dumps(key, sort_keys=True) for key in json.loads(content)["keys"]}
    return set(content)


def _unusable(file: KeyFile, previous: ServedKeyFile, severity: Severity) -> Diagnostic:
    message = f"key file {show(file.written)} cannot be used: {_in_use(file, previous)}"
    hint = "put the new secret in the file, on one line" if file.is_sent else _REVOKE
    return Diagnostic(UNUSABLE, message, file.node.position, file.path, hint, severity)


def _shrunk(
    file: KeyFile, previous: ServedKeyFile, content: Content, max_shrink: float, severity: Severity
) -> Diagnostic:
    before, after = key_count(previous.content), key_count(content)
    message = (
        f"key file {show(file.written)} would go from {before} to {after} keys, which is more than max_shrink "
        f"({max_shrink:g}%) allows: {_in_use(file, previous)}"
        if after
        else f"key file {show(file.written)} contains no keys: {_in_use(file, previous)}"
    )
    hint = "to confirm the removal, run `lbctl reload --allow-shrink`"
    return Diagnostic(SHRUNK, message, file.node.position, file.path, hint, severity)


def _in_use(file: KeyFile, previous: ServedKeyFile) -> str:
    count = key_count(previous.content)
    which = "it contained before" if previous.written == file.written else f"{show(previous.written)} contained"
    return f"the {count} keys that {which} stay in use" if count != 1 else f"the key that {which} stays in use"
