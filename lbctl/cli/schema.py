"""`lbctl schema`, which prints the JSON Schema for a fleet file, in draft 7, which editors support.

The schema is assembled here, above the model, because only this layer can access the registries that define its
choices.
"""

from __future__ import annotations

import json
from typing import Any

import click
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from lbctl.base.quantities import Duration, Endpoint, Percent, Size, Temperature
from lbctl.cli.command import Command
from lbctl.cli.schema_defaults import partial, with_defaults
from lbctl.model.fleet import Fleet
from lbctl.model.section import Section
from lbctl.targets import TARGETS

_ID = "https://lbctl.dev/schemas/lbctl.schema.json"
_DROPPED = "\x00none"


@click.command("schema", cls=Command, examples="lbctl schema > lbctl.schema.json")
def command() -> None:
    """Print the JSON Schema of a fleet file.

    The schema uses draft 7, which editors support.
    """
    click.echo(page(), nl=False)


def page() -> str:
    """Return the text of schemas/lbctl.schema.json."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema() -> dict[str, Any]:
    """Return the schema as a dict.

    The schema accepts the same fleets as the model, but cannot check rules that involve several places.
    """
    document: dict[str, Any] = _with_grammar(with_defaults(described()))
    return document


def described() -> dict[str, Any]:
    """Return the schema before descriptions are joined.

    In this form, `description` explains a key's meaning, and `grammar` its syntax.
    """
    document: dict[str, Any] = _tidy(
        Fleet.model_json_schema(schema_generator=_Draft7, ref_template="#/definitions/{model}")
    )
    definitions = document.pop("$defs")
    kind, defaults = definitions["Proxy"]["properties"]["kind"], definitions["Defaults"]["properties"]
    definitions["Proxy"]["properties"]["kind"] = {"description": kind["description"], "enum": list(TARGETS)}
    for name, section in defaults.items():
        defaults[name] = {"description": section["description"]} | partial(name.title(), definitions)
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "$id": _ID, "title": "lbctl fleet"}
    return head | {key: value for key, value in document.items() if key != "title"} | {"definitions": definitions}


class _Draft7(GenerateJsonSchema):
    """Writes defaults in the fleet file's syntax. A section's defaults are attached to its keys."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> dict[str, Any]:
        """Return the schema of the value alone, because a key without a value is rejected."""
        return self.generate_inner(schema["schema"])

    def generate_inner(self, schema: Any) -> dict[str, Any]:
        """Return a section's schema, even if it is referenced by the function that builds it."""
        function = schema["function"]["function"] if schema["type"] == "function-plain" else None
        section = getattr(function, "__self__", None)
        if isinstance(section, type) and issubclass(section, Section):
            return super().generate_inner(section.whole_schema())
        return super().generate_inner(schema)

    def model_schema(self, schema: core_schema.ModelSchema) -> dict[str, Any]:
        """Return a section's schema, including the choices between its keys."""
        document = super().model_schema(schema)
        if issubclass(schema["cls"], Section) and schema["cls"].CHOICES:
            document["allOf"] = [choice.json_schema() for choice in schema["cls"].CHOICES]
        return document

    def dict_schema(self, schema: core_schema.DictSchema) -> dict[str, Any]:
        """Return the schema of a map whose keys are names."""
        document = super().dict_schema(schema)
        for pattern, values in document.pop("patternProperties", {}).items():
            document |= {"propertyNames": {"pattern": pattern}, "additionalProperties": values}
        return document

    def encode_default(self, dft: Any) -> Any:
        if isinstance(dft, Duration | Size | Percent | Temperature):
            return str(dft)
        if isinstance(dft, Endpoint):
            return dft.path or f"{dft.host}:{dft.port}"
        return _DROPPED if isinstance(dft, BaseModel) or dft in (None, {}, []) else super().encode_default(dft)


def _tidy(node: Any) -> Any:
    if isinstance(node, dict):
        return {
            key: _tidy(value)
            for key, value in node.items()
            if not (key == "default" and value == _DROPPED) and not (key == "title" and isinstance(value, str))
        }
    return [_tidy(item) for item in node] if isinstance(node, list) else node


def _with_grammar(node: Any) -> Any:
    """Return the schema with each `grammar` appended to its `description`, which editors display."""
    if isinstance(node, list):
        return [_with_grammar(item) for item in node]
    if not isinstance(node, dict):
        return node
    document = {key: _with_grammar(value) for key, value in node.items() if key != "grammar"}
    if isinstance(grammar := node.get("grammar"), str):
        sentences = (node.get("description"), f"{grammar[:1].upper()}{grammar[1:]}.")
        document["description"] = " ".join(filter(None, sentences))
    return document
