"""Files that were saved here or by another member, compared with those on this machine."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from lbctl.base.diagnostics import Diagnostics
from lbctl.compile.files import read_regular
from lbctl.model.load import SourceText, texts
from lbctl.model.text import MAX_BYTES
from lbctl.store.records import SavedFleet


def relocated(files: tuple[SourceText, ...], paths: tuple[str, ...]) -> tuple[SourceText, ...]:
    """Return files of a shared store as if they were in the directories of this member's files."""
    own = {Path(text.name).name: text for text in texts(paths, Diagnostics())}
    first = next(iter(own.values()), None)
    if first is None:
        path = Path(paths[0])
        directory = path if path.is_dir() else path.parent
        first = SourceText(str(directory / "fleet.yaml"), b"", str(directory))
    moved = []
    for text in files:
        beside = own.get(Path(text.name).name, first)
        moved.append(SourceText(str(Path(beside.name).with_name(Path(text.name).name)), text.data, beside.root))
    return tuple(moved)


def is_unchanged(saved: SavedFleet, paths: tuple[str, ...]) -> bool:
    """Whether the files are the saved ones, so that the fleet need not be compared with the saved one."""
    if tuple(texts(paths, Diagnostics())) != saved.texts:
        return False
    with suppress(OSError):
        return all(read_regular(Path(path), MAX_BYTES) == content for path, content in saved.targets.items())
    return False
