"""Mends that are certain, made in the files: values change, comments and everything else stay as they are.

Each is an edit of the text at the value's own place. A file whose mended text would not read as what was meant is
mended through ruamel.yaml instead, and where that fails too it is left alone, and its findings stay.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path as File

from lbctl.lint.ignores import Ignore
from lbctl.lint.in_place import in_place
from lbctl.lint.run import Mend
from lbctl.model.load import Text

_CODES = re.compile(r"LB[0-9]{3}", re.IGNORECASE)


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
    data = in_place(text, mends)
    if data is None:
        from lbctl.lint.roundtrip import through_ruamel  # slow, and seldom needed

        data = through_ruamel(text, mends)
    return replace(text, data=data)


def _uncommented(text: Text, places: dict[int, tuple[int, set[str]]]) -> Text:
    lines = text.data.decode().splitlines(keepends=True)
    for number, (column, gone) in places.items():
        line = lines[number - 1]
        before, comment = line[: column - 1], line[column - 1 :]
        kept = [code for code in _CODES.findall(comment.partition("(")[0]) if code.upper() not in gone]
        end = "\n" if line.endswith("\n") else ""
        if kept:
            codes, reason = ", ".join(kept), comment.partition("(")[2]
            lines[number - 1] = f"{before}# lbctl: ignore {codes} ({reason}"
        else:
            lines[number - 1] = before.rstrip() + end if before.strip() else ""
    return replace(text, data="".join(lines).encode())
