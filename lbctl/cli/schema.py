"""`lbctl schema`: the JSON Schema of a fleet file, in draft 7, which editors understand.

Put together here, above the model, because only here the registries are known whose names are choices in it.
"""

from __future__ import annotations

import json
from typing import Any

import click
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import core_schema

from lbctl.base.quantities import Duration, Endpoint, Percent, Size, Temperature
from lbctl.cli.schema_defaults import laid, partial
from lbctl.model.fleet import Fleet
from lbctl.targets import KINDS

_ID = "https://lbctl.dev/schemas/lbctl.schema.json"
_DROPPED = "\x00none"


@click.command("schema")
def command() -> None:
    """Print the JSON Schema (draft 7) of a fleet file."""
    click.echo(page(), nl=False)


def page() -> str:
    """Return the text of schemas/lbctl.schema.json."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema() -> dict[str, Any]:
    """The schema as a dict; its verdict on a fleet is the model's, less what needs two places of it to see."""
    made: dict[str, Any] = _worded(laid(described()))
    return made


def described() -> dict[str, Any]:
    """The schema before its words are put together: `description` is what a key means, `grammar` how to write it."""
    made: dict[str, Any] = _tidy(
        Fleet.model_json_schema(schema_generator=_Draft7, ref_template="#/definitions/{model}")
    )
    definitions = made.pop("$defs")
    kind, defaults = definitions["Proxy"]["properties"]["kind"], definitions["Defaults"]["properties"]
    definitions["Proxy"]["properties"]["kind"] = {"description": kind["description"], "enum": list(KINDS)}
    for name, told in defaults.items():
        defaults[name] = {"description": told["description"]} | partial(name.title(), definitions)
    head = {"$schema": "http://json-schema.org/draft-07/schema#", "$id": _ID, "title": "lbctl fleet"}
    return head | {key: value for key, value in made.items() if key != "title"} | {"definitions": definitions}


class _Draft7(GenerateJsonSchema):
    """Defaults in the contract's grammar; a section's own defaults stand at its keys."""

    def nullable_schema(self, schema: core_schema.NullableSchema) -> dict[str, Any]:
        """A key without a value is refused."""
        return self.generate_inner(schema["schema"])

    def dict_schema(self, schema: core_schema.DictSchema) -> dict[str, Any]:
        """A map of names: every key is one."""
        made = super().dict_schema(schema)
        for pattern, values in made.pop("patternProperties", {}).items():
            made |= {"propertyNames": {"pattern": pattern}, "additionalProperties": values}
        return made

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


def _worded(node: Any) -> Any:
    """With `grammar` as the end of `description`, which is what editors show."""
    if isinstance(node, list):
        return [_worded(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {key: _worded(value) for key, value in node.items() if key != "grammar"}
    if isinstance(grammar := node.get("grammar"), str):
        words = (node.get("description"), f"{grammar[:1].upper()}{grammar[1:]}.")
        made["description"] = " ".join(filter(None, words))
    return made
