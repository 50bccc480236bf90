"""Mends of one file as edits of its lines, each checked by reading the whole again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lbctl.base.diagnostics import Diagnostics, Path
from lbctl.lint.mend_place import places
from lbctl.lint.respell import added, removed, replaced, spelled
from lbctl.lint.rule import Value
from lbctl.lint.run import Mend
from lbctl.model.load import Text
from lbctl.model.node import Node, descend, plain
from lbctl.model.yaml import read

_LINE = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(frozen=True, slots=True)
class _Task:
    """`parent`: the map that is edited, at `path`; `old`: what it has under the key, if it has it."""

    path: Path
    parent: Node
    old: Node | None
    value: Value | None

    @property
    def at(self) -> tuple[int, int]:
        node = self.old or self.parent
        return node.line, node.column


def in_place(text: Text, mends: Sequence[Mend]) -> bytes | None:
    """The bytes with every mend that has a place in this file; None where an edit of lines cannot do it."""
    root = read(text.data, text.name, Diagnostics())
    if root is None:
        return None
    tasks = {task.path: task for item in mends if (task := _task(root, item))}
    lines: list[str] = _LINE.findall(text.data.decode())
    for task in sorted(tasks.values(), key=lambda item: item.at, reverse=True):
        if not _edited(lines, task):
            return None
    data = "".join(lines).encode()
    found = read(data, text.name, Diagnostics())
    return data if found is not None and plain(found) == _meant(root, list(tasks.values())) else None


def _task(root: Node, mend: Mend) -> _Task | None:
    for path in places(mend.edit.path):
        parent = descend(root, path[:-1])
        if parent is None or not isinstance(parent.value, dict):
            continue
        old = parent.value.get(str(path[-1]))
        if (old is not None and old.line == mend.at.line) if mend.written else old is None:
            return _Task(path, parent, old, mend.edit.value)
    return None


def _edited(lines: list[str], task: _Task) -> bool:
    """Whether the edit could be made in the lines; they are then changed."""
    if task.old is None:
        return _added(lines, task)
    if isinstance(task.old.value, dict | list):
        return False
    line = lines[task.old.line - 1]
    if task.value is not None:
        new = replaced(line, task.old.column - 1, task.value)
    elif task.old.key_line == task.old.line:
        new = removed(line, task.old.key_column - 1, task.old.column - 1)
    else:
        new = None
    lines[task.old.line - 1] = line if new is None else new
    return new is not None


def _added(lines: list[str], task: _Task) -> bool:
    """In a flow map at its end, in a block below the last of its scalars."""
    if task.value is None or not isinstance(task.parent.value, dict):
        return False
    key, at = str(task.path[-1]), task.parent.line - 1
    new = added(lines[at], task.parent.column - 1, key, task.value)
    if new is not None:
        lines[at] = new
        return True
    own = [node for node in task.parent.value.values() if node.key_line == node.line and not _holds(node)]
    if not own:
        return False
    last = max(own, key=lambda node: node.line)
    line = lines[last.line - 1]
    end = line[len(line.rstrip("\r\n")) :]
    lines.insert(last.line, f"{' ' * (last.key_column - 1)}{key}: {spelled(task.value)}{end}")
    return bool(end)


def _holds(node: Node) -> bool:
    return isinstance(node.value, dict | list)


def _meant(root: Node, tasks: Sequence[_Task]) -> Any:
    """What the file is to read as."""
    whole = plain(root)
    for task in tasks:
        here = whole
        for step in task.path[:-1]:
            here = here[step]
        if task.value is None:
            del here[task.path[-1]]
        else:
            here[task.path[-1]] = task.value
    return whole
