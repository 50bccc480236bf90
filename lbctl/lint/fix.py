"""Applies certain fixes to the files: values change, comments and everything else are kept.

A fix edits the text at the value's own position. If the edited text would not parse as intended, the file is fixed by
ruamel.yaml instead; if that fails too, the file is left unchanged, and its findings remain.
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
from lbctl.lint.run import Fix
from lbctl.lint.text_fix import text_fix
from lbctl.model.load import SourceText

_CODES = re.compile(r"LB[0-9]{3}", re.IGNORECASE)


def apply_fixes(texts: Sequence[SourceText], fixes: Iterable[Fix]) -> list[SourceText]:
    """Return the texts with every fix that could be applied."""
    by_file: dict[str, list[Fix]] = {}
    for fix in fixes:
        by_file.setdefault(fix.at.file, []).append(fix)
    return [_apply_to_text(text, by_file[text.name]) if text.name in by_file else text for text in texts]


def remove_comments(texts: Sequence[SourceText], unused: Iterable[Ignore]) -> list[SourceText]:
    """Return the texts without codes of ignore comments that silence nothing; a comment without codes is removed."""
    by_file: dict[str, dict[int, tuple[int, set[str]]]] = {}
    for comment in unused:
        position = comment.position
        by_file.setdefault(position.file, {}).setdefault(position.line, (position.column, set()))[1].add(comment.code)
    return [_without_comments(text, by_file[text.name]) if text.name in by_file else text for text in texts]


def replace_file(file: File, data: bytes) -> None:
    """Replace the content of the file atomically; symbolic links and the mode are kept. Raises OSError."""
    target = file.resolve(strict=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(data)
            out.flush()
            os.fchmod(out.fileno(), stat.S_IMODE(target.stat().st_mode))
            os.fsync(out.fileno())
        File(temporary).replace(target)
    except OSError:
        File(temporary).unlink(missing_ok=True)
        raise


def _apply_to_text(text: SourceText, fixes: Sequence[Fix]) -> SourceText:
    data = text_fix(text, fixes)
    if data is None:
        from lbctl.lint.roundtrip import through_ruamel  # slow to import, and seldom needed

        data = through_ruamel(text, fixes)
    return replace(text, data=data)


def _without_comments(text: SourceText, by_line: dict[int, tuple[int, set[str]]]) -> SourceText:
    lines = text.data.decode().splitlines(keepends=True)
    for number, (column, removed) in by_line.items():
        line = lines[number - 1]
        before, comment = line[: column - 1], line[column - 1 :]
        remaining = [code for code in _CODES.findall(comment.partition("(")[0]) if code.upper() not in removed]
        end = "\n" if line.endswith("\n") else ""
        if remaining:
            codes, reason = ", ".join(remaining), comment.partition("(")[2]
            lines[number - 1] = f"{before}# lbctl: ignore {codes} ({reason}"
        else:
            lines[number - 1] = before.rstrip() + end if before.strip() else ""
    return replace(text, data="".join(lines).encode())
