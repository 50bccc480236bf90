"""The files of API keys and the JWKS that routes name, each as it was last good.

A key file that is truncated, removed or half written would refuse every client at once. So what cannot be used, and
what would lose more keys than `max_shrink` allows, is not served: the content that the running fleet has stays in use,
and that is an error until the file is good again. Keys are counted, not compared: a file in which all are other ones
is a rotation. Nothing of these files is ever shown.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Severity, show
from lbctl.base.diagnostics import Path as Place
from lbctl.compile.files import file_of
from lbctl.compile.secrets import Content, KeyFile, key_count, key_files, read_key_file, secrets_of
from lbctl.ir.secrets import Secrets
from lbctl.model.fleet import FleetSource
from lbctl.serve.fleet.fingerprints import changed_at, signature
from lbctl.targets.load import Loaded

UNUSABLE = "LB530"
SHRUNK = "LB531"
_OF_KEY_FILES = frozenset({"LB121", "LB503", "LB507", "LB508", UNUSABLE, SHRUNK})
_REST = 1_000_000_000
"""ns for which a file that has lost a key must have been left alone: a slow writer may not be at its end."""


@dataclass(frozen=True, slots=True)
class Good:
    """What a route was served with: the file as it was written then, and what it held."""

    written: str
    content: Content


Goods = Mapping[Place, Good]
"""By the place in the YAML that names the file."""


def goods(fleet: Loaded) -> dict[Place, Good]:
    """Of a fleet that is served."""
    held: dict[str, Content] = {**fleet.secrets.api_keys, **fleet.secrets.jwks}
    files = key_files(fleet.source)
    return {file.path: Good(file.written, held[file.written]) for file in files if file.written in held}


def read_new(source: FleetSource, before: Goods, diagnostics: Diagnostics) -> Secrets:
    """Of a fleet that is to be served: every file must be there and sound. What `read_secrets` says as errors, and
    LB530 where what was good `before` stays in use."""
    contents: dict[KeyFile, Content | None] = {}
    for file in key_files(source):
        found = Diagnostics()
        content = contents[file] = read_key_file(source, file, True, found)
        good = before.get(file.path)
        if content is None and good is not None:
            diagnostics.extend(item for item in found if item.code != "LB503")
            diagnostics.add(_unusable(file, good, "error"))
        else:
            diagnostics.extend(found)
    return secrets_of(contents)


def read_again(source: FleetSource, before: Goods, most: float, diagnostics: Diagnostics) -> Secrets:
    """Of the fleet that runs: what is unusable, has lost more than `most` percent, or has lost a key a moment ago,
    stays as it was `before`. LB530 and LB531 are warnings here."""
    contents: dict[KeyFile, Content | None] = {}
    for file in key_files(source):
        good = before.get(file.path)
        found = Diagnostics()
        content = read_key_file(source, file, True, found)
        if good and content and _has_lost(good, content) and _just_changed(file_of(source, file.node), time.time_ns()):
            content = good.content
        if good is not None and (content is None or _too_many(good.content, content, most)):
            diagnostics.add(
                _unusable(file, good, "warning") if content is None else _shrunk(file, good, content, most, "warning")
            )
            content = good.content
        else:
            diagnostics.extend(found)
        contents[file] = content
    return secrets_of(contents)


def shrinks(source: FleetSource, before: Goods, secrets: Secrets, most: float) -> list[Diagnostic]:
    """LB531 for each file that would lose more than `most` percent of its keys, or the last one."""
    return [
        _shrunk(file, good, content, most, "error")
        for file, good, content in _both(source, before, secrets)
        if _too_many(good.content, content, most)
    ]


def unrested(source: FleetSource, before: Goods, now: int) -> Path | None:
    """A file of the fleet that runs which has lost a key, or is unsound, and was not left alone for a second since.
    `now`: in ns since the epoch."""
    for file in key_files(source):
        place, good = file_of(source, file.node), before.get(file.path)
        if good is not None and _just_changed(place, now):
            content = read_key_file(source, file, True, Diagnostics())
            if content is None or _has_lost(good, content):
                return place
    return None


def reason(findings: tuple[Diagnostic, ...]) -> str:
    """Why the fleet is not served, where that is because of its key files alone; else nothing."""
    errors = [item for item in findings if item.severity == "error"]
    if not errors or any(item.code not in _OF_KEY_FILES for item in errors):
        return ""
    return next((item for item in errors if item.code in (UNUSABLE, SHRUNK)), errors[0]).message


def _both(source: FleetSource, before: Goods, secrets: Secrets) -> Iterator[tuple[KeyFile, Good, Content]]:
    """Every file that was good before and is read now."""
    for file in key_files(source):
        content = (secrets.jwks if file.is_jwks else secrets.api_keys).get(file.written)
        if content is not None and file.path in before:
            yield file, before[file.path], content


def _too_many(before: Content, after: Content, most: float) -> bool:
    count, left = key_count(before), key_count(after)
    return count > 0 and (left == 0 or (count - left) * 100 > most * count)


def _has_lost(good: Good, content: Content) -> bool:
    return bool(_known(good.content) - _known(content))


def _just_changed(place: Path, now: int) -> bool:
    """A time of change that is yet to come is another machine's clock, and tells nothing."""
    changed = changed_at(signature(place))
    return changed is not None and now - _REST < changed <= now


def _known(content: Content) -> set[object]:
    if isinstance(content, str):
        return {json.dumps(key, sort_keys=True) for key in json.loads(content)["keys"]}
    return set(content)


def _unusable(file: KeyFile, good: Good, severity: Severity) -> Diagnostic:
    message = f"key file {show(file.written)} cannot be used: {_stays(file, good)}"
    hint = "an empty file and `lbctl reload --allow-shrink` revoke all keys"
    return Diagnostic(UNUSABLE, message, file.node.position, file.path, hint, severity)


def _shrunk(file: KeyFile, good: Good, content: Content, most: float, severity: Severity) -> Diagnostic:
    before, after = key_count(good.content), key_count(content)
    message = (
        f"key file {show(file.written)} would go from {before} to {after} keys, which is more than max_shrink "
        f"({most:g}%) allows: {_stays(file, good)}"
        if after
        else f"key file {show(file.written)} holds no key: {_stays(file, good)}"
    )
    hint = "`lbctl reload --allow-shrink` confirms it"
    return Diagnostic(SHRUNK, message, file.node.position, file.path, hint, severity)


def _stays(file: KeyFile, good: Good) -> str:
    count = key_count(good.content)
    which = "it held before" if good.written == file.written else f"{show(good.written)} held"
    return f"the {count} keys that {which} stay in use" if count != 1 else f"the key that {which} stays in use"
