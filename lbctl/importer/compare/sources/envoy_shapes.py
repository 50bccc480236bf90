"""Reads values from an Envoy configuration for a comparison, using a list of harmless fields for each message.

A shape is a function that returns a new value from a view, or raises RefusedError for anything that it does not list.
Strings are the only free-form values, and a command in a string, such as `%FILE_CONTENT(…)%`, must also be on a list.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from lbctl.importer.compare.sources.removed import Removals
from lbctl.importer.envoy.view import ConfigView

Shape = Callable[[ConfigView, Removals], Any]

_PREFIX = "type.googleapis.com/"
_DURATION = re.compile(r"\d{1,9}(?:\.\d{1,9})?s")
_WORD = re.compile(r"[A-Za-z0-9_]{1,64}")
_NUMBER = re.compile(r"-?\d{1,18}(?:\.\d{1,9})?")
_MAX_TEXT = 1 << 16
_COMMAND = re.compile(r"%(?![0-9A-F]{2}%)([A-Z0-9_]+)(?=[(:%])")
"""Start of a command. URL escapes are not commands, and arguments can contain anything."""
_COMMANDS = re.compile(
    r"REQ|RESP|TRAILER|PROTOCOL|PATH|QUERY_PARAMS?|START_TIME(_LOCAL)?|EMIT_TIME(_LOCAL)?|(COMMON_|REQUEST_|RESPONSE_)?DURATION"
    r"|STREAM_ID|TRACE_ID|CONNECTION_ID|ROUTE_NAME|VIRTUAL_CLUSTER_NAME|FILTER_CHAIN_NAME|HOSTNAME|REQUESTED_SERVER_NAME"
    r"|LOCAL_REPLY_BODY|RESPONSE_CODE(_DETAILS)?|RESPONSE_FLAGS(_LONG)?|GRPC_STATUS(_NUMBER)?|BYTES_(RECEIVED|SENT)"
    r"|CONNECTION_TERMINATION_DETAILS|DYNAMIC_METADATA|UPSTREAM_(HOST|CLUSTER|METADATA|PROTOCOL|REQUEST_ATTEMPT_COUNT)"
    r"|UPSTREAM_TRANSPORT_FAILURE_REASON|UPSTREAM_(LOCAL|REMOTE)_[A-Z_]+|DOWNSTREAM_((DIRECT_)?REMOTE|LOCAL|TLS|PEER)_[A-Z0-9_]+"
)
"""Commands that read only a request, its connection or its response, and no files or environment variables."""

NOT_LISTED = "not a field supported by the comparison"
_NOT_A_VALUE = "not a supported type of value"


class RefusedError(Exception):
    """A value is not known to be harmless."""

    def __init__(self, view: ConfigView, reason: str = NOT_LISTED, word: str = "") -> None:
        super().__init__(reason)
        self.view = view
        self.reason = reason
        self.word = word
        """Part of the value that must not be run, or an empty string for the whole value."""


# ── Values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def text(view: ConfigView, _: Removals) -> str:
    """Return a string that contains only listed commands."""
    if view.statement.is_block or len(view.text) > _MAX_TEXT:
        raise RefusedError(view, _NOT_A_VALUE)
    for command in _COMMAND.finditer(view.text):
        if not _COMMANDS.fullmatch(command[1]):
            raise RefusedError(view, "a command that may read files or variables", f"%{command[1]}%")
    return view.text


def _matching(pattern: re.Pattern[str]) -> Shape:
    def read(view: ConfigView, _: Removals) -> str:
        if view.statement.is_block or not pattern.fullmatch(view.text):
            raise RefusedError(view, _NOT_A_VALUE)
        return view.text

    return read


duration, word = _matching(_DURATION), _matching(_WORD)


def number(view: ConfigView, _: Removals) -> int | float:
    """Return a number, which can also be written as a string."""
    if view.statement.is_block or not _NUMBER.fullmatch(view.text):
        raise RefusedError(view, _NOT_A_VALUE)
    return float(view.text) if "." in view.text else int(view.text)


def boolean(view: ConfigView, _: Removals) -> bool:
    """Return true or false."""
    if view.statement.is_block or view.text not in {"true", "false"}:
        raise RefusedError(view, _NOT_A_VALUE)
    return view.text == "true"


def struct(view: ConfigView, removals: Removals) -> Any:
    """Return a JSON value whose strings have been checked."""
    if not view.statement.is_block:
        return text(view, removals)
    fields = {key: struct(child, removals) for key, child in view.items()}
    return fields or [struct(child, removals) for child in view]


def ignored(view: ConfigView, _: Removals) -> dict[str, Any]:
    """Return an empty message, because only its presence matters."""
    if not view.statement.is_block:
        raise RefusedError(view, _NOT_A_VALUE)
    return {}


# ── Messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def message(fields: Mapping[str, Shape], left_out: Mapping[str, str] | None = None) -> Shape:
    """Return the shape of a message.

    `left_out` maps each field that is omitted from the result to its subject, because responses do not depend on it.
    The subject is empty if the field is read elsewhere.
    """

    def read(view: ConfigView, removals: Removals) -> dict[str, Any]:
        if not view.statement.is_block:
            raise RefusedError(view, _NOT_A_VALUE)
        result = {}
        for name, child in view.fields():
            if name == "@type" or (not child.statement.is_block and child.scalar is None):
                continue
            if left_out is not None and name in left_out:
                if left_out[name]:
                    removals.leave_out(child.statement, left_out[name])
            elif name in fields:
                result[name] = fields[name](child, removals)
            else:
                raise RefusedError(child)
        return result

    return read


def items(shape: Shape) -> Shape:
    """Return the shape of a list."""

    def read(view: ConfigView, removals: Removals) -> list[Any]:
        return [shape(item, removals) for item in view]

    return read


def mapping(shape: Shape) -> Shape:
    """Return the shape of a map with string keys."""

    def read(view: ConfigView, removals: Removals) -> dict[str, Any]:
        return {key: shape(child, removals) for key, child in view.items()}

    return read


def named(shapes: Mapping[str, Shape]) -> Shape:
    """Return the shape of a map that has only these keys."""

    def read(view: ConfigView, removals: Removals) -> dict[str, Any]:
        result = {}
        for key, child in view.items():
            if key not in shapes:
                raise RefusedError(child)
            result[key] = shapes[key](child, removals)
        return result

    return read


def typed(types: Mapping[str, Shape]) -> Shape:
    """Return the shape of a `typed_config` of one of these types."""

    def read(view: ConfigView, removals: Removals) -> dict[str, Any]:
        if view.type not in types:
            raise RefusedError(view, "not a type supported by the comparison", view.type)
        return {"@type": _PREFIX + view.type, **types[view.type](view, removals)}

    return read
