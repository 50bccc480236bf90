"""Edits through ruamel.yaml, for what `respell` cannot do in place: it knows which lines an edit touches, and only
those are taken from it. It reads and writes the whole several times, which takes a minute for ten thousand replicas.
"""

from __future__ import annotations

import difflib
import io
from collections.abc import Sequence
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import ScalarString

from lbctl.base.diagnostics import Diagnostics, Path
from lbctl.lint.mend_place import places
from lbctl.lint.rule import Edit
from lbctl.lint.run import Mend
from lbctl.model.load import Text
from lbctl.model.node import plain
from lbctl.model.yaml import read

_INDENTS = ((2, 4, 2), (2, 2, 0), (4, 6, 4), (4, 4, 0), (4, 4, 2))
"""Of maps, of lists, and of the dash within those: the usual ones."""


def through_ruamel(text: Text, mends: Sequence[Mend]) -> bytes:
    """The text with those mends that could be made; as it was, where the result would not read as what was meant."""
    before = text.data.decode()
    try:
        yaml, base = _closest(before)
        document = yaml.load(before)
    except YAMLError:
        return text.data
    done = [item for item in mends if _edit(document, item)]
    if not done:
        return text.data
    after = _transplanted(before, base, _dumped(yaml, document)).encode()
    found = read(after, text.name, Diagnostics())
    return after if found is not None and plain(found) == document else text.data


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
    for path in places(mend.edit.path):
        parent = _dig(document, path[:-1])
        if isinstance(parent, CommentedMap) and _stands(parent, path[-1], mend):
            return _set(parent, path[-1], mend.edit)
    return False


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
