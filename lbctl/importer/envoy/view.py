"""A value in an Envoy configuration, with its position and its statement, accessed by field names.

Field names can be written in protobuf's text form (`connect_timeout`) or its JSON form (`connectTimeout`). A view of a
missing field is empty, so that chained access needs no checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lbctl.base.diagnostics import Position
from lbctl.importer.statement import Statement, walk
from lbctl.model.node import Node, Scalar

_NOWHERE = Statement(Position(""), ())


class ConfigView:
    """A value, or the absence of one."""

    __slots__ = ("_children", "_items", "scalar", "statement")
    statement: Statement

    def __init__(self, node: Node | None, key: str) -> None:
        value = node.value if node is not None else None
        self._children = (
            {name: ConfigView(child, name) for name, child in value.items()} if isinstance(value, dict) else {}
        )
        self._items = [ConfigView(child, "-") for child in value] if isinstance(value, list) else []
        self.scalar: Scalar = None if isinstance(value, dict | list) else value
        inner: tuple[Statement, ...] = tuple(item.statement for item in (*self._children.values(), *self._items))
        if node is None:
            self.statement = _NOWHERE
            return
        tokens = (key,) if isinstance(value, dict | list) else (key, _text(self.scalar))
        self.statement = Statement(node.key_position, tokens, inner, isinstance(value, dict | list))

    def __bool__(self) -> bool:
        return self.statement is not _NOWHERE

    def __iter__(self) -> Iterator[ConfigView]:
        return iter(self._items)

    def get(self, *path: str) -> ConfigView:
        """Return the view of a nested field."""
        view: ConfigView = self
        for name in path:
            view = view._field(name)
        return view

    def _field(self, name: str) -> ConfigView:
        camel = re.sub(r"_([a-z0-9])", lambda match: match[1].upper(), name)
        return self._children.get(name) or self._children.get(camel) or EMPTY

    def fields(self) -> Iterator[tuple[str, ConfigView]]:
        """Yield a map's fields, by their text names."""
        for name, child in self._children.items():
            yield re.sub(r"([A-Z])", lambda match: f"_{match[1].lower()}", name), child

    def items(self) -> Iterator[tuple[str, ConfigView]]:
        """Yield a map's entries, with their keys as written."""
        yield from self._children.items()

    @property
    def plain(self) -> Any:
        """The value as plain data, with field names as written."""
        if self._children:
            return {name: child.plain for name, child in self._children.items()}
        if self._items:
            return [item.plain for item in self._items]
        return ({} if self.statement.is_block else None) if self.scalar is None else self.scalar

    @property
    def text(self) -> str:
        """The value as a string, or an empty string if there is none."""
        return "" if self.scalar is None else _text(self.scalar)

    @property
    def number(self) -> int | None:
        """The value as an integer, or None. 64-bit numbers are strings in protobuf's JSON form."""
        return int(self.text) if re.fullmatch(r"\d{1,15}", self.text) else None

    @property
    def milliseconds(self) -> int | None:
        """The value as a protobuf duration in milliseconds, or None."""
        match = re.fullmatch(r"(\d{1,12})(?:\.(\d{1,9}))?s", self.text)
        return int(match[1]) * 1000 + int((match[2] or "0").ljust(3, "0")[:3]) if match else None

    @property
    def type(self) -> str:
        """Name of the message in a `typed_config`, which may be empty."""
        return self.get("@type").text.rpartition("/")[2]

    @property
    def all(self) -> tuple[Statement, ...]:
        """The statement and all statements nested in it."""
        return tuple(walk([self.statement])) if self else ()


def _text(value: Scalar) -> str:
    return (
        {True: "true", False: "false", None: "null"}[value] if value is None or isinstance(value, bool) else str(value)
    )


EMPTY = ConfigView(None, "")
"""View of a missing field."""
