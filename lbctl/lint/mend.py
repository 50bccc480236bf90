"""Mends that are certain, made in the files: values change, comments and everything else stay as they are.

ruamel.yaml knows which lines an edit touches; only those are taken from it. A file whose mended text would not read as
what was meant is left alone, and its findings stay.
"""

from __future__ import annotations

import difflib
import io
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path as File
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import ScalarString

from lbctl.base.diagnostics import Diagnostics, Path
from lbctl.lint.ignores import Ignore
from lbctl.lint.rule import Edit
from lbctl.lint.run import Mend
from lbctl.model.load import Text
from lbctl.model.node import plain
from lbctl.model.yaml import read

_INDENTS = ((2, 4, 2), (2, 2, 0), (4, 6, 4), (4, 4, 0), (4, 4, 2))
"""Of maps, of lists, and of the dash within those: the usual ones."""
_DEFAULTS = {"pools": "pool", "routes": "route"}
_CODES = re.compile(r"LB[0-9]{3}")


def mended(texts: Sequence[Text], mends: Iterable[Mend]) -> list[Text]:
    """The same texts with every mend that could be made."""
    by_file: dict[str, list[Mend]] = {}
    for item in mends:
        by_file.setdefault(item.at.file, []).append(item)
    return [_mended(text, by_file[text.name]) if text.name in by_file else text for text in texts]


def uncommented(texts: Sequence[Text], unused: Iterable[Ignore]) -> list[Text]:
    """The same texts without the codes of ignore comments that silence nothing; a comment without code goes away."""
    places: dict[str, dict[int, tuple[int, set[str]]]] = {}
    for item in unused:
        at = item.position
        places.setdefault(at.file, {}).setdefault(at.line, (at.column, set()))[1].add(item.code)
    return [_uncommented(text, places[text.name]) if text.name in places else text for text in texts]


def replaced(file: File, data: bytes) -> None:
    """The file holds `data`, or, where an OSError is raised, what it held; a link stays one, and the mode stays."""
    place = file.resolve(strict=True)
    handle, beside = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fchmod(out.fileno(), stat.S_IMODE(place.stat().st_mode))
            os.fsync(out.fileno())
        File(beside).replace(place)
    except OSError:
        File(beside).unlink(missing_ok=True)
        raise


def _mended(text: Text, mends: Sequence[Mend]) -> Text:
    before = text.data.decode()
    try:
        yaml, base = _closest(before)
        document = yaml.load(before)
    except YAMLError:
        return text
    done = [item for item in mends if _edit(document, item)]
    if not done:
        return text
    after = _transplanted(before, base, _dumped(yaml, document)).encode()
    found = read(after, text.name, Diagnostics())
    return replace(text, data=after) if found is not None and plain(found) == document else text


def _closest(text: str) -> tuple[YAML, str]:
    """The settings with which the text comes out most like itself, and how it does."""
    best: tuple[int, YAML, str] | None = None
    for mapping, sequence, offset in _INDENTS:
        yaml = YAML()
        yaml.preserve_quotes = True
        yaml.width = 100_000
        yaml.indent(mapping=mapping, sequence=sequence, offset=offset)
        dumped = _dumped(yaml, yaml.load(text))
        off = sum(a != b for a, b in zip(text.splitlines(), dumped.splitlines(), strict=False))
        if best is None or off < best[0]:
            best = (off, yaml, dumped)
        if not off:
            break
    assert best is not None
    return best[1], best[2]


def _dumped(yaml: YAML, document: Any) -> str:
    out = io.StringIO()
    yaml.dump(document, out)
    return out.getvalue()


def _transplanted(text: str, base: str, edited: str) -> str:
    """`text` with the lines that differ between `base`, which is the same in ruamel's form, and `edited`."""
    own, plainly, wanted = text.splitlines(keepends=True), base.splitlines(), edited.splitlines()
    if len(own) != len(plainly):
        return text
    newline = "\r\n" if own[0].endswith("\r\n") else "\n"
    out: list[str] = []
    for tag, first, last, start, stop in difflib.SequenceMatcher(None, plainly, wanted, autojunk=False).get_opcodes():
        if tag == "equal":
            out += own[first:last]
        elif last - first == stop - start:
            out += map(_like, own[first:last], wanted[start:stop])
        else:
            out += [line + newline for line in wanted[start:stop]]
    return "".join(out)


def _like(old: str, new: str) -> str:
    """The new line with the indent and the line end of the old one."""
    return old[: len(old) - len(old.lstrip())] + new.lstrip() + old[len(old.rstrip("\r\n")) :]


def _edit(document: Any, mend: Mend) -> bool:
    """Whether the edit was made: at its own place, or in the defaults from which the value came."""
    for path in _places(mend.edit.path):
        parent = _dig(document, path[:-1])
        if isinstance(parent, CommentedMap) and _stands(parent, path[-1], mend):
            return _set(parent, path[-1], mend.edit)
    return False


def _places(path: Path) -> list[Path]:
    kind = _DEFAULTS.get(str(path[0]))
    return [path, ("defaults", kind, *path[2:])] if kind else [path]


def _dig(document: Any, path: Path) -> Any:
    here = document
    for step in path:
        try:
            here = here[step]
        except (KeyError, IndexError, TypeError):
            return None
    return here


def _stands(parent: CommentedMap, key: str | int, mend: Mend) -> bool:
    """Whether this is the map that the finding is about: it holds the value that was judged, or lacks it likewise."""
    if not mend.written:
        return key not in parent
    return key in parent and int(parent.lc.value(key)[0]) + 1 == mend.at.line


def _set(parent: CommentedMap, key: str | int, edit: Edit) -> bool:
    if edit.value is None:
        return _removed(parent, key)
    old = parent.get(key)
    parent[key] = type(old)(edit.value) if isinstance(old, ScalarString) else edit.value
    return True


def _removed(parent: CommentedMap, key: str | int) -> bool:
    """Not where comments hang on it that are about what follows."""
    if str(parent.ca.items.get(key, "")).count("#") > 1:
        return False
    del parent[key]
    return True


def _uncommented(text: Text, places: dict[int, tuple[int, set[str]]]) -> Text:
    lines = text.data.decode().splitlines(keepends=True)
    for number, (column, gone) in places.items():
        line = lines[number - 1]
        before, comment = line[: column - 1], line[column - 1 :]
        kept = [code for code in _CODES.findall(comment.partition("(")[0]) if code not in gone]
        end = "\n" if line.endswith("\n") else ""
        if kept:
            codes, reason = ", ".join(kept), comment.partition("(")[2]
            lines[number - 1] = f"{before}# lbctl: ignore {codes} ({reason}"
        else:
            lines[number - 1] = before.rstrip() + end if before.strip() else ""
    return replace(text, data="".join(lines).encode())
