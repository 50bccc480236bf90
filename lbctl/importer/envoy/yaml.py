"""Reads YAML the way Envoy does, within limits.

Envoy follows aliases, does not merge `<<`, uses the last of repeated keys and the first of several documents, and skips
a key that has the `!ignore` tag. A plain scalar is a YAML 1.1 boolean, an integer, null, or a string.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from yaml import CSafeLoader, MarkedYAMLError, YAMLError
from yaml.events import (
    AliasEvent,
    DocumentEndEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.model.node import Node, Scalar
from lbctl.model.syntax import explain
from lbctl.model.text import PRIVATE_KEY

MAX_DEPTH = 64
MAX_NODES = 200_000
"""Maximum number of values in a file. An alias counts as all the values to which it refers."""
_IGNORE = "!ignore"
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {"y": True, "yes": True, "true": True, "on": True, "n": False, "no": False, "false": False, "off": False}
_NUMBER = re.compile(r"([-+]?)(?:(0x[0-9A-Fa-f]{1,16})|0([0-7]{1,20})|(0|[1-9][0-9]{0,18}))")


class _InvalidYamlError(Exception):
    """The rest of the file cannot be read. The reason has been reported."""


@dataclass(slots=True)
class _Anchored:
    """A value to which aliases refer."""

    node: Node
    size: int
    """Number of values in the anchored value, with aliases expanded."""
    height: int
    """Nesting depth of the maps and lists in it."""
    is_open: bool = False
    """Whether the value is still incomplete."""


@dataclass(slots=True)
class _Open:
    """A map or list that is still incomplete."""

    content: _Anchored
    key: str | None = None
    """The key whose value comes next."""
    key_line: int = 0
    key_column: int = 0
    is_ignored: bool = False
    """Whether this key is skipped."""


def read(text: str, file: str, diagnostics: Diagnostics) -> Node | None:
    """Return the tree of a file's first document, or None if a diagnostic was added."""
    try:
        root = _Reader(text.removeprefix("\ufeff"), file, diagnostics).read()
    except _InvalidYamlError:
        return None
    if root is None or not isinstance(root.value, dict):
        at = root.position if root is not None else Position(file, 1, 1)
        diagnostics.add(Diagnostic("LB004", "the file is not a map of keys and values", at))
        return None
    return root


class _Reader:
    def __init__(self, text: str, file: str, diagnostics: Diagnostics) -> None:
        self._text = text
        self._file = file
        self._diagnostics = diagnostics
        self._open: list[_Open] = []
        self._anchors: dict[str, _Anchored] = {}
        self._root: Node | None = None
        self._count = 0

    def read(self) -> Node | None:
        """Return the root, or None for a file without a document. Raises _InvalidYamlError."""
        try:
            parser = CSafeLoader(self._text)
            while (event := parser.get_event()) is not None and type(event) is not DocumentEndEvent:
                self._step(event)
        except MarkedYAMLError as error:
            opened = self._open[-1].content.node if self._open else None
            place = (opened.line, opened.column) if opened is not None else (0, 0)
            code, message, hint, line, column = explain(error, self._text, place)
            raise self._stop(message, line, column, code=code, hint=hint) from None
        except YAMLError:
            raise self._stop("the file contains a character that YAML does not allow", 1, 1) from None
        return self._root

    def _step(self, event: Any) -> None:
        kind = type(event)
        if kind is ScalarEvent:
            self._scalar(event)
        elif kind is MappingStartEvent or kind is SequenceStartEvent:
            self._begin(event, {} if kind is MappingStartEvent else [])
        elif kind is MappingEndEvent or kind is SequenceEndEvent:
            self._end()
        elif kind is AliasEvent:
            self._alias(event)

    def _scalar(self, event: Any) -> None:
        if self._expects_key:
            self._name(event, event.value)
            return
        text = "(private key)" if PRIVATE_KEY.search(event.value) else event.value
        is_text = event.style or event.tag == "!"
        content = _Anchored(self._node(text if is_text else _resolved(text), event), 1, 0)
        self._remember(event, content)
        self._attach(content, event)

    def _name(self, event: Any, text: str) -> None:
        frame, mark = self._open[-1], event.start_mark
        frame.key, frame.key_line, frame.key_column = text, mark.line + 1, mark.column + 1
        frame.is_ignored = getattr(event, "tag", None) == _IGNORE

    def _begin(self, event: Any, value: dict[str, Node] | list[Node]) -> None:
        if self._expects_key:
            raise self._at(event, "a map or a list cannot be a key")
        if len(self._open) >= MAX_DEPTH:
            raise self._at(event, f"the file is nested more than {MAX_DEPTH} levels deep")
        content = _Anchored(self._node(value, event), 1, 0, is_open=True)
        self._remember(event, content)
        self._open.append(_Open(content))

    def _end(self) -> None:
        content = self._open.pop().content
        content.is_open = False
        content.height += 1
        self._attach(content, None)

    def _alias(self, event: Any) -> None:
        anchored = self._anchors.get(event.anchor)
        if anchored is None or anchored.is_open:
            problem = "an alias has no anchor" if anchored is None else "an alias refers to its own anchor"
            raise self._at(event, problem)
        if self._expects_key:
            if isinstance(anchored.node.value, dict | list):
                raise self._at(event, "a map or a list cannot be a key")
            self._name(event, str(anchored.node.value))
            return
        node = self._node(anchored.node.value, event)
        self._attach(_Anchored(node, anchored.size, anchored.height), event)

    def _attach(self, content: _Anchored, event: Any | None) -> None:
        """Attach a value to its parent. `event` is a scalar or an alias, whose values are counted here."""
        frame = self._open[-1] if self._open else None
        self._count += content.size if event is not None else 1
        if self._count > MAX_NODES:
            at = (content.node.line, content.node.column)
            raise self._stop(f"the file has more than {MAX_NODES} values, including values from aliases", *at)
        if frame is None:
            self._root = content.node
            return
        outer = frame.content
        outer.size += content.size
        outer.height = max(outer.height, content.height)
        if len(self._open) + content.height > MAX_DEPTH:
            at = (content.node.line, content.node.column)
            raise self._stop(f"the file is nested more than {MAX_DEPTH} levels deep", *at)
        if isinstance(outer.node.value, list):
            outer.node.value.append(content.node)
        elif isinstance(outer.node.value, dict) and frame.key is not None:
            if not frame.is_ignored:
                outer.node.value[frame.key] = content.node
            frame.key = None

    @property
    def _expects_key(self) -> bool:
        return bool(self._open) and self._open[-1].key is None and isinstance(self._open[-1].content.node.value, dict)

    def _remember(self, event: Any, content: _Anchored) -> None:
        if event.anchor:
            self._anchors[event.anchor] = content

    def _node(self, value: Any, event: Any) -> Node:
        frame, mark = self._open[-1] if self._open else None, event.start_mark
        key = (frame.key_line, frame.key_column) if frame is not None and frame.key is not None else (0, 0)
        return Node(value, self._file, mark.line + 1, mark.column + 1, *key)

    def _at(self, event: Any, problem: str) -> _InvalidYamlError:
        return self._stop(problem, event.start_mark.line + 1, event.start_mark.column + 1)

    def _stop(self, problem: str, line: int, column: int, *, code: str = "LB980", hint: str = "") -> _InvalidYamlError:
        message = problem if code != "LB980" else f"cannot import this file: {problem}"
        self._diagnostics.add(Diagnostic(code, message, Position(self._file, line, column), hint=hint))
        return _InvalidYamlError()


def _resolved(text: str) -> Scalar:
    """Return the value of a plain scalar."""
    if text in _NULLS:
        return None
    if text in {text.lower(), text.upper(), text.capitalize()} and text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    number = _NUMBER.fullmatch(text)
    if number is None:
        return text
    sign, hexadecimal, octal, decimal = number.groups()
    value = int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else int(decimal)
    return -value if sign == "-" else value
