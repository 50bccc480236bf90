"""Make docs/reference/http-api.md: every endpoint and type of the HTTP API, from its OpenAPI document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lbctl.api.openapi import document

_INTRODUCTION = """\
<!-- Generated from lbctl/api by `python -m tests.docs.regenerate`; edit the descriptions there. -->

# The HTTP API

`lbctl serve` answers these requests on `control.api.bind`, by default `http://127.0.0.1:18080`. `GET
/api/v1/openapi.json` describes them in OpenAPI 3.1, for generators of clients. [Access to xDS and the
API](../concepts/security-model.md#access-to-xds-and-the-api) lists the rights of each client.

- Every field is always present; `null` where its description states None. Lists keep their order.
- A time is ISO 8601 in UTC with milliseconds. Durations and ages are seconds.
- A client ignores fields and values of enumerations that it does not know: a later version may add both.
- An answer of 400 or above contains an [Error](#error), except an answer of `/readyz`. Any endpoint may answer 500. An
  unknown path is 404, an unknown method 405.
- A write needs the header `Authorization: Bearer TOKEN` and `Content-Type: application/json`.

"""
_ACCESS = {(): "public", ("", "token"): "read", ("token",): "write"}
_TOKENS = {
    "public": "never needs a token",
    "read": "needs the token beyond loopback",
    "write": "always needs the token",
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
    head = ["## Endpoints", "", "| | | access |", "|---|---|---|", *rows, ""]
    head += [f"- {name}: {words}" for name, words in _TOKENS.items()]
    sections = [line for method, path, operation in operations for line in _endpoint(method, path, operation)]
    types = [line for name, kind in openapi["components"]["schemas"].items() for line in _type(name, kind)]
    return _INTRODUCTION + "\n".join([*head, "", *sections, "## Types", "", *types]).rstrip() + "\n"


def _endpoint(method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"### {method} {path}", "", f"{operation['summary']}. It {_TOKENS[_access(operation)]}.", "")
    if "description" in operation:
        yield from (operation["description"], "")
    if "x-events" in operation:
        yield from ("| event | data |", "|---|---|")
        yield from (f"| `{name}` | {_kind(kind)} |" for name, kind in operation["x-events"].items())
        yield ""
    if places := [item for item in operation.get("parameters", ()) if item["in"] != "header"]:
        yield from ("| parameter | where | |", "|---|---|---|")
        yield from (f"| `{item['name']}` | {item['in']} | {item['description']} |" for item in places)
        yield ""
    yield from ("| | when | content |", "|---|---|---|")
    if "requestBody" in operation:
        yield f"| body | | {_content(operation['requestBody'])} |"
    for status, answer in operation["responses"].items():
        yield f"| {status} | {answer['description']} | {_content(answer)} |"
    yield ""


def _type(name: str, kind: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"### {name}", "", kind["description"], "", "| field | type | meaning |", "|---|---|---|")
    for field, value in kind["properties"].items():
        meaning = value["description"].replace("|", "\\|")
        default = "" if field in kind.get("required", ()) else " (may be left out)"
        yield f"| `{field}` | {_kind(value)} | {meaning}{default} |"
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
        return " or ".join(f"`{each}`" for each in value["enum"])
    kinds = value["type"] if isinstance(value["type"], list) else [value["type"]]
    return " or ".join(_one_kind(kind, value) for kind in kinds)


def _one_kind(kind: str, value: Mapping[str, Any]) -> str:
    if kind == "array":
        return f"list of {_kind(value['items'])}"
    if kind == "object":
        return f"object of {_kind(value['additionalProperties'])}" if "additionalProperties" in value else "object"
    return "time" if kind == "string" and value.get("format") == "date-time" else kind


def _anchor(title: str) -> str:
    """Return the anchor of a heading as GitHub makes it."""
    return "".join(char for char in title.lower().replace(" ", "-") if char.isalnum() or char in "-_")
