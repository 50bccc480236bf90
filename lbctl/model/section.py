"""The base class of all sections: strict, frozen, no unknown keys, with choices between keys."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError


class Choice(NamedTuple):
    """Keys of which at most one may be present; with `required`, exactly one."""

    keys: tuple[str, ...]
    """The keys."""
    required: bool = True

    def json_schema(self) -> dict[str, Any]:
        """Return the constraint as JSON Schema."""
        alternatives = [{"required": [key]} for key in self.keys]
        return {"oneOf": alternatives if self.required else [*alternatives, {"not": {"anyOf": alternatives}}]}


class Section(BaseModel):
    """A map of the fleet file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    CHOICES: ClassVar[tuple[Choice, ...]] = ()
    """Its alternatives; an object's own choice replaces that of `defaults`."""

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return the section itself: it is immutable, so a default value need not be copied for every object."""
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        schema = handler(core_schema)
        if cls.CHOICES:
            handler.resolve_ref_schema(schema)["allOf"] = [choice.json_schema() for choice in cls.CHOICES]
        return schema

    @model_validator(mode="after")
    def _one_of_each_choice(self) -> Self:
        for keys, required in self.CHOICES:
            chosen = [key for key in keys if key in self.model_fields_set]
            if len(chosen) > 1:
                raise refuse("LB015", f"{' and '.join(chosen)} exclude each other", f"keep one of {_listed(keys)}")
            if required and not chosen:
                raise refuse("LB014", "nothing is chosen here", f"one of {_listed(keys)} is needed")
        return self


class Nothing(Section):
    """An empty map: `tcp: {}`, `source_ip: {}`."""


def refuse(code: str, message: str, hint: str = "", at: tuple[str | int, ...] = ()) -> PydanticCustomError:
    """Return the error for a validator to raise; `at` is the path below the section that the message is about."""
    return PydanticCustomError("lbctl", "{message}", {"code": code, "message": message, "hint": hint, "at": at})


def _listed(keys: tuple[str, ...]) -> str:
    return f"{', '.join(keys[:-1])} or {keys[-1]}"
