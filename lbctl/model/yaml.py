"""Safely parses a YAML text into a tree of `Node`s.

YAML can exhaust memory (aliases), crash a parser (nesting), and mean something other than it appears to (`no`, `010`, a
repeated key). This module processes the parser's events, so that limits apply before anything is built. It rejects
features that a fleet does not need: anchors, aliases, merge keys, tags, additional documents, repeated keys, invisible
characters, and private keys. Plain scalars follow YAML 1.2's core schema: `true` and `false`, decimal numbers, and
`null`; everything else is text. The meaning of keys is not checked here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from yaml import CSafeLoader, MarkedYAMLError
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from lbctl.base.diagnostics import Diagnostics, Path, show
from lbctl.model.node import Node, Scalar
from lbctl.model.syntax import explain
from lbctl.model.text import (
    FORBIDDEN,
    KEY_HINT,
    PRIVATE_KEY,
    TextFaults,
    UnreadableTextError,
    decode,
    forbidden_message,
    screen,
)

MAX_DEPTH = 32
_OBJECT_DEPTH = 2
"""Number of maps that enclose an object in a section: the file and the section."""
MAX_NODES = 200_000

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_LITERALS: dict[str, Scalar] = {"": None, "~": None, "null": None, "true": True, "false": False}
_NOT_TEXT = frozenset("0123456789+-.~nftNFT")
_MAX_INT_DIGITS = 20
_MAX_FLOAT_CHARACTERS = 40
_DEFAULTS = "use `defaults` for common values"
_ONCE = "keep one of them"
_REFUSED = "(refused key)"
"""Represents a rejected key (compared by identity), whose value is read and discarded."""


def read(data: bytes, file: str, diagnostics: Diagnostics) -> Node | None:
    """Read the map in `data`; return None if it does not contain a map.

    Faults are added to `diagnostics` under the name `file`.
    """
    findings = TextFaults(file, diagnostics)
    try:
        return _Reader(screen(decode(data, findings), findings), findings).read()
    except UnreadableTextError:
        return None


class _Reader:
    """Builds a tree from the parser's events, with a few operations per scalar and without recursion.

    `_holder` is the innermost open map or list, `_fields` or `_items` its content, `_key` the key whose value comes
    next. `_outer` stores, for every open map or list, its holder and that holder's key (None: the map itself is used as
    a key).
    """

    def __init__(self, text: str, findings: TextFaults) -> None:
        self._text = text
        self._findings = findings
        self._file = findings.file
        self._root: Node | None = None
        self._outer: list[tuple[Node | None, str | None]] = []
        self._holder: Node | None = None
        self._fields: dict[str, Node] | None = None
        self._items: list[Node] | None = None
        self._key: str | None = None
        self._key_line = self._key_column = 0
        self._object_start = 0
        self.count = self._documents = 0

    def read(self) -> Node:
        """Parse the text. Raises UnreadableTextError."""
        try:
            self._events(CSafeLoader(self._text))
        except MarkedYAMLError as error:
            opened = (self._holder.line, self._holder.column) if self._holder else (0, 0)
            code, message, hint, line, column = explain(error, self._text, opened)
            raise self._findings.stop(code, message, line, column, hint) from None
        root = self._root
        if root is None or root.value is None:
            raise self._findings.stop("LB004", "the file is empty", 1, 1, "write at least `version: 1`")
        if not isinstance(root.value, dict):
            hint = "start with `version: 1`, `listeners:`, `routes:`, `pools:`"
            raise self._findings.stop("LB004", "the file is not a map of keys and values", root.line, root.column, hint)
        return root

    def _events(self, parser: CSafeLoader) -> None:
        steps: dict[type, Callable[[Any], None]] = {
            ScalarEvent: self._scalar,
            MappingStartEvent: self._open,
            SequenceStartEvent: self._open,
            MappingEndEvent: self._close,
            SequenceEndEvent: self._close,
            AliasEvent: self._alias,
            DocumentStartEvent: self._document,
        }
        for event in iter(parser.get_event, None):
            if step := steps.get(type(event)):
                step(event)

    def _document(self, event: DocumentStartEvent) -> None:
        self._documents += 1
        if self._documents > 1:
            raise self._findings.stop("LB004", "a second document begins here", *_at(event), "use one map per file")

    def _scalar(self, event: Any) -> None:
        mark = event.start_mark
        line, column = mark.line + 1, mark.column + 1
        text: str = event.value
        if event.anchor or event.tag or not text.isprintable() or "PRIVATE" in text:
            text = self._checked(event, text)
        if self._key is None and self._fields is not None:
            self._name(event, text, line, column)
            return
        value: Scalar = text
        if not event.style and (not text or text[0] in _NOT_TEXT):
            value = self._resolved(text, line, column)
        self._attach(Node(value, self._file, line, column, self._key_line, self._key_column))
        self._key = None

    def _name(self, event: ScalarEvent, text: str, line: int, column: int) -> None:
        """Handle a scalar where a key is expected."""
        self._counted(line, column)
        self._key, self._key_line, self._key_column = text, line, column
        if text == "<<" and not event.style:
            self._report("LB006", "merge keys are not supported", event, _DEFAULTS)
            self._key = _REFUSED
        elif self._fields is not None and text in self._fields:
            first = self._fields[text].key_position
            self._report("LB008", f"the key {show(text)} occurs twice in this map, first at {first}", event, _ONCE)
            self._key = _REFUSED

    def _open(self, event: Any) -> None:
        """Handle the start of a map or a list."""
        line, column = _at(event)
        if event.anchor or event.tag:
            self._decorated(event)
        if len(self._outer) >= MAX_DEPTH:
            raise self._findings.stop(
                "LB005", f"nested more than {MAX_DEPTH} levels deep", line, column, path=self._path()
            )
        if self._key is None and self._fields is not None:
            self._report("LB004", "a map or a list cannot be a key", event, "use a string as the key")
        fields: dict[str, Node] | None = {} if type(event) is MappingStartEvent else None
        items: list[Node] | None = [] if fields is None else None
        node = Node(items if fields is None else fields, self._file, line, column, self._key_line, self._key_column)
        self._attach(node)
        if len(self._outer) == _OBJECT_DEPTH:
            self._object_start = event.start_mark.index
        self._outer.append((self._holder, self._key))
        self._holder, self._fields, self._items = node, fields, items
        self._key, self._key_line, self._key_column = None, 0, 0

    def _close(self, event: Any) -> None:
        """Handle the end of a map or a list."""
        closed = self._holder
        self._holder, key = self._outer.pop()
        if len(self._outer) == _OBJECT_DEPTH and closed is not None:
            closed.text = self._text[self._object_start : event.end_mark.index]
        value = self._holder.value if self._holder else None
        self._fields = value if isinstance(value, dict) else None
        self._items = value if isinstance(value, list) else None
        self._key = _REFUSED if key is None and self._fields is not None else None
        self._key_line = self._key_column = 0

    def _alias(self, event: AliasEvent) -> None:
        self._counted(*_at(event))
        self._decorated(event)
        self._key = _REFUSED if self._key is None and self._fields is not None else None

    def _attach(self, node: Node) -> None:
        self._counted(node.line, node.column)
        if self._items is not None:
            self._items.append(node)
        elif self._fields is None:
            self._root = node
        elif self._key is not None and self._key is not _REFUSED:
            self._fields[self._key] = node

    def _counted(self, line: int, column: int) -> None:
        self.count += 1
        if self.count > MAX_NODES:
            hint = "split the fleet into several files"
            raise self._findings.stop("LB005", f"more than {MAX_NODES} values in one file", line, column, hint)

    # ── Rare cases ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _checked(self, event: Any, text: str) -> str:
        """Return the text without forbidden content, which is reported."""
        if event.anchor or event.tag:
            self._decorated(event)
        if PRIVATE_KEY.search(text):
            if not PRIVATE_KEY.search(self._text, event.start_mark.index, event.end_mark.index):
                self._report("LB501", "this value contains a private key", event, KEY_HINT)
            return "(private key)"
        if match := FORBIDDEN.search(text):
            self._report("LB012", forbidden_message(match[0]), event, "remove its escape")
        return FORBIDDEN.sub("\ufffd", text)

    def _resolved(self, text: str, line: int, column: int) -> Scalar:
        """Resolve a plain scalar according to the core schema."""
        if text in _LITERALS:
            return _LITERALS[text]
        if _INT.fullmatch(text):
            if len(text.lstrip("+-")) <= _MAX_INT_DIGITS:
                return int(text)
        elif not _FLOAT.fullmatch(text):
            return text
        elif len(text) <= _MAX_FLOAT_CHARACTERS and math.isfinite(number := float(text)):
            return number
        hint = "if it is text, put it in quotes"
        self._findings.add("LB005", "this number is too large or too long", line, column, hint, self._path())
        return 0

    def _decorated(self, event: Any) -> None:
        """Report an anchor, an alias or a tag."""
        if event.anchor:
            noun, mark = ("aliases", "*") if type(event) is AliasEvent else ("anchors", "&")
            hint = f"{_DEFAULTS}; put a value that begins with `{mark}` in quotes"
            self._report("LB006", f"{noun} are not supported", event, hint)
        if getattr(event, "tag", None):
            self._report(
                "LB007",
                "tags are not supported",
                event,
                "remove the tag, or put a value that begins with `!` in quotes",
            )

    def _report(self, code: str, message: str, event: Any, hint: str) -> None:
        self._findings.add(code, message, *_at(event), hint, self._path())

    def _path(self) -> Path:
        """Return the path of the current value, up to the first rejected key."""
        levels = [*self._outer, (self._holder, self._key)]
        inner = [holder for holder, _ in levels[1:]]
        steps: list[str | int] = []
        for (holder, key), child in zip(levels, [*inner, None], strict=True):
            if key is _REFUSED:
                break
            if holder and isinstance(holder.value, list):
                steps.append(len(holder.value) - (child is not None))
            elif key is not None:
                steps.append(key)
        return tuple(steps)


def _at(event: Any) -> tuple[int, int]:
    mark = event.start_mark
    return mark.line + 1, mark.column + 1
