"""The OpenAPI 3.1 document of the API, generated from the route table and the types of the schema.

Descriptions are the docstrings of the types and of their fields, read from the source of the schema. Objects are open,
because a later version of lbctl may add fields.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from msgspec import NODEFAULT, Struct

from lbctl import __version__
from lbctl.api import schema
from lbctl.api.codec import fields, json_name, type_hints
from lbctl.api.fields import json_schema
from lbctl.api.routes import ROUTES, ApiRoute, Parameter
from lbctl.base import ports

_SCALARS = {str: "string", bool: "boolean", int: "integer", float: "number", NoneType: "null"}
_ABOUT = (
    "The HTTP API of `lbctl serve`. If the API listens on loopback, only writes need a token. Otherwise, everything "
    "except the probes and the dashboard's files needs a token. Clients must ignore fields and enum values that they "
    "do not recognise. Any operation can return status 500 with an `Error`. An unknown path returns 404, and an "
    "unknown method returns 405."
)


@cache
def document() -> dict[str, Any]:
    """Return the document as plain JSON types."""
    types: dict[str, dict[str, Any]] = {}
    for kind in (schema.Error, *_types_of_routes(), schema.Live, *schema.EVENTS.values()):
        _add(kind, types)
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "lbctl serve", "version": __version__, "description": _ABOUT},
        "servers": [{"url": f"http://127.0.0.1:{ports.API}", "description": "The default value of `control.api.bind`"}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(types.items())),
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The content of `control.api.token_file`, or of `api-token` in the state directory",
                }
            },
        },
    }


def _types_of_routes() -> list[type]:
    return [kind for route in ROUTES for kind in (route.body, route.answer) if isinstance(kind, type)]


# ── Paths ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _operation(route: ApiRoute) -> dict[str, Any]:
    answers = {"200": {"description": "OK", "content": _content(route.answer)}}
    if route.unready:
        answers["503"] = {"description": "the control plane is not ready", "content": _content(route.answer)}
    for status, when in route.errors:
        answers[str(status)] = {"description": when, "content": _content(schema.Error)}
    operation: dict[str, Any] = {"operationId": route.operation, "summary": route.summary}
    if route.parameters:
        operation["parameters"] = [_parameter(item) for item in route.parameters]
    if route.operation in _STREAMS:
        operation |= _STREAMS[route.operation]()
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _content(route.body)}
    security = {"public": [{}], "read": [{}, {"token": []}], "write": [{"token": []}]}
    return operation | {"responses": answers, "security": security[route.access]}


def _content(kind: type | str) -> dict[str, Any]:
    if isinstance(kind, type):
        return {"application/json": {"schema": _reference(kind)}}
    return {kind: {"schema": {"type": "object" if kind == "application/json" else "string"}}}


def _parameter(item: Parameter) -> dict[str, Any]:
    return {
        "name": item.name,
        "in": item.place,
        "required": item.required,
        "description": item.about,
        "schema": {"type": "string"},
    }


def _live() -> dict[str, Any]:
    """Return the properties of the dashboard's stream that OpenAPI 3.1 cannot express."""
    return {
        "description": (
            "The stream begins with a complete `live` event. After that, the server sends a `live` event with the "
            "changes at most once per second. If the client does not keep up, the server sends a complete event again. "
            "The stream also contains the events of `/api/v1/events`, beginning with the last 100 past events. After 5 "
            "seconds without an event, the server sends a comment."
        ),
        "x-events": {"live": _reference(schema.Live), **_events()},
    }


def _events() -> dict[str, Any]:
    return {name: _reference(kind) for name, kind in schema.EVENTS.items()}


def _stream() -> dict[str, Any]:
    """Return the properties of the event stream that OpenAPI 3.1 cannot express, as prose and as an extension."""
    return {
        "description": (
            "The stream continues until the client or the server ends it. In each event, `event` is one of the names "
            "in `x-events`, `data` is a single line of JSON of the corresponding type, and `id` is higher than in the "
            "previous event. If the client sends the header `Last-Event-ID`, the stream begins after that event. If "
            "that event is no longer stored, the stream begins with a `missed` event. The server sends a comment "
            "after 15 seconds without an event. A client that does not keep up receives `closed` as its last event."
        ),
        "parameters": [
            {
                "name": "Last-Event-ID",
                "in": "header",
                "required": False,
                "description": "The `id` of the last event that the client received",
                "schema": {"type": "string"},
            }
        ],
        "x-events": _events(),
    }


_STREAMS: Mapping[str, Callable[[], dict[str, Any]]] = {"events": _stream, "live": _live}


# ── Types ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _reference(kind: type) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def _add(kind: type, types: dict[str, dict[str, Any]]) -> None:
    """Add the type and the types of its fields."""
    if kind.__name__ in types:
        return
    properties: dict[str, Any] = {}
    types[kind.__name__] = {"type": "object", "description": _about(kind), "properties": properties}
    hints, docstrings = type_hints(kind), _docstrings(kind)
    for item in fields(kind):
        properties[json_name(item)] = {"description": docstrings[item.name], **_schema(hints[item.name], types)}
        if not item.required:
            factory = item.default_factory
            properties[json_name(item)]["default"] = item.default if factory is NODEFAULT else factory()
    required = [json_name(item) for item in fields(kind) if item.required]
    if required:
        types[kind.__name__]["required"] = required


def _schema(hint: Any, types: dict[str, dict[str, Any]]) -> dict[str, Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return {**_schema(arguments[0], types), **json_schema(hint)}
    if origin is tuple:
        return {"type": "array", "items": _schema(arguments[0], types)}
    if origin is not None and inspect.isclass(origin) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(arguments[1], types)}
    if len(members := _alternatives(hint)) > 1:
        return _union(members, types)
    if isinstance(hint, type) and issubclass(hint, Struct):
        _add(hint, types)
        return _reference(hint)
    return {"type": _SCALARS[members[0]]}


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """Return a union's members, without `int` if it contains `float`; the type itself if it is not a union."""
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else getattr(hint, "members", (hint,))
    return tuple(item for item in members if item is not int or float not in members)


def _union(members: tuple[Any, ...], types: dict[str, dict[str, Any]]) -> dict[str, Any]:
    schemas = [_schema(member, types) for member in members]
    if len(schemas) == 2 and schemas[1] == {"type": "null"} and isinstance(schemas[0].get("type"), str):
        return {**schemas[0], "type": [schemas[0]["type"], "null"]}
    return {"anyOf": schemas}


def _about(kind: type) -> str:
    return " ".join(inspect.cleandoc(kind.__doc__ or "").split())


def _docstrings(kind: type) -> dict[str, str]:
    """Map each attribute of the class and its base classes to the string that follows it in the source."""
    docstrings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        docstrings |= _attributes().get(base.__name__, {})
    return docstrings


@cache
def _attributes() -> dict[str, dict[str, str]]:
    """Map each class of the schema to its attributes, with the string that follows each attribute in the source."""
    classes = [item for item in ast.parse(inspect.getsource(schema)).body if isinstance(item, ast.ClassDef)]
    return {item.name: dict(_attributes_of(item)) for item in classes}


def _attributes_of(kind: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for item, after in pairwise(kind.body):
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            assert isinstance(after, ast.Expr), item.target.id
            assert isinstance(after.value, ast.Constant), item.target.id
            yield item.target.id, re.sub(r"\s+", " ", str(after.value.value))
