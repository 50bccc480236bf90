"""Make docs/reference/http-api.md: every endpoint and type of the HTTP API, from its OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lbctl.api.openapi import document

_INTRODUCTION = """\
<!-- Generated from lbctl/api by `python -m tests.docs.regenerate`; edit the descriptions there. -->

# The HTTP API

`lbctl serve` provides this API on the address `control.api.bind`, by default `http://127.0.0.1:18080`. To generate a
client, use the OpenAPI 3.1 document at `/api/v1/openapi.json`. [Access to xDS and the
API](../concepts/security-model.md#access-to-xds-and-the-api) lists the permissions of each client.

- Every field of a response is always present. A field may be `null` if its description says so. The order of
  list items is preserved.
- Times are in ISO 8601 format, in UTC with milliseconds. Durations and ages are in seconds.
- Clients must ignore fields and enum values that they do not recognise, because a later version may add new ones.
- Responses with a status of 400 or above contain an [Error](#error), except responses of `/readyz`. Any endpoint can
  return status 500. An unknown path returns 404, and an unknown method returns 405.
- Write requests need a bearer token in the `Authorization` header, and the content type `application/json`.

"""
_ACCESS = {(): "public", ("", "token"): "read", ("token",): "write"}
_TOKENS = {
    "public": "This endpoint never needs a token.",
    "read": "This endpoint needs a token unless the API listens on loopback.",
    "write": "This endpoint always needs a token.",
}


def page() -> str:
    """Return the text of docs/reference/http-api.md."""
    openapi = document()
    operations = [
        (method.upper(), path, operation)
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    ]
    rows = (f"| [`{m} {p}`](#{_anchor(f'{m} {p}')}) | {o['summary']} | {_access(o)} |" for m, p, o in operations)
    head = ["## Endpoints", "", "| endpoint | description | access |", "|---|---|---|", *rows, ""]
    head += [f"- **{name}**: {words}" for name, words in _TOKENS.items()]
    sections = [line for method, path, operation in operations for line in _endpoint(method, path, operation)]
    types = [line for name, kind in openapi["components"]["schemas"].items() for line in _type(name, kind)]
    return _INTRODUCTION + "\n".join([*head, "", *sections, "## Types", "", *types]).rstrip() + "\n"


def _endpoint(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"### {method} {path}", "", f"{operation['summary']}. {_TOKENS[_access(operation)]}", "")
    if "description" in operation:
        yield from (operation["description"], "")
    if "x-events" in operation:
        yield from ("| event | data |", "|---|---|")
        yield from (f"| `{name}` | {_kind(kind)} |" for name, kind in operation["x-events"].items())
        yield ""
    if places := [item for item in operation.get("parameters", ()) if item["in"] != "header"]:
        yield from ("| parameter | location | description |", "|---|---|---|")
        yield from (f"| `{item['name']}` | {item['in']} | {item['description']} |" for item in places)
        yield ""
    yield from ("| status | condition | content |", "|---|---|---|")
    if "requestBody" in operation:
        yield f"| request body | | {_content(operation['requestBody'])} |"
    for status, answer in operation["responses"].items():
        yield f"| {status} | {answer['description']} | {_content(answer)} |"
    yield ""


def _type(name: str, kind: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"### {name}", "", kind["description"], "", "| field | type | description |", "|---|---|---|")
    for field, value in kind["properties"].items():
        meaning = value["description"].replace("|", "\\|")
        optional = "" if field in kind.get("required", ()) else "Optional. "
        yield f"| `{field}` | {_kind(value)} | {optional}{meaning} |"
    yield ""


def _access(operation: Mapping[str, Any]) -> str:
    ways = [next(iter(way), "") for way in operation["security"]]
    return _ACCESS[() if ways == [""] else tuple(ways)]


def _content(holder: Mapping[str, Any]) -> str:
    ((content, value),) = holder["content"].items()
    return _kind(value["schema"]) if "$ref" in value["schema"] else f"`{content}`"


def _kind(value: Mapping[str, Any]) -> str:
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{_anchor(name)})"
    if "anyOf" in value:
        return " or ".join(_kind(each) for each in value["anyOf"])
    if "enum" in value:
        return ", ".join(f"`{each}`" for each in value["enum"])
    kinds = value["type"] if isinstance(value["type"], list) else [value["type"]]
    return " or ".join(_one_kind(kind, value) for kind in kinds)


def _one_kind(kind: str, value: Mapping[str, Any]) -> str:
    if kind == "array":
        return f"list of {_kind(value['items'])}"
    if kind == "object":
        return (
            f"map of string to {_kind(value['additionalProperties'])}" if "additionalProperties" in value else "object"
        )
    return "time" if kind == "string" and value.get("format") == "date-time" else kind


def _anchor(title: str) -> str:
    """Return the anchor of a heading as GitHub makes it."""
    return "".join(char for char in title.lower().replace(" ", "-") if char.isalnum() or char in "-_")
