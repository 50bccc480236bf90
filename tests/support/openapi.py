"""Checks responses of the API against its OpenAPI document."""

from __future__ import annotations

from typing import Any

import jsonschema

from lbctl.api.openapi import document


def validate(name: str, value: Any) -> None:
    """Assert that the JSON value has this type in the document, and that no object has undocumented fields."""
    types = document()["components"]["schemas"]
    schemas = {key: {**each, "additionalProperties": False} for key, each in types.items()}
    whole = {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}}
    jsonschema.Draft202012Validator(whole).validate(value)


def answer_type(path: str, method: str = "get", status: int = 200) -> str:
    """Return the type name of an operation's response."""
    content = document()["paths"][path][method]["responses"][str(status)]["content"]
    return str(content["application/json"]["schema"]["$ref"].rpartition("/")[2])
