"""The base class of all sections: strict, frozen, without unknown keys, and with choices between keys.

A section's validator is built when the first section of its type is checked. A small fleet uses a tenth of all
sections, and building the others accounted for a third of the time taken by `lbctl validate` (decision 0057). For this
reason, sections refer to other sections through functions. If a default value is a section, it is created by `default`,
which does not build a validator.

Section modules do not use `from __future__ import annotations`, because pydantic would then compile each annotation
from its text, which takes 5 % of the time of `lbctl validate`.
"""

from collections.abc import Callable
from contextvars import ContextVar
from threading import RLock
from typing import Any, ClassVar, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema


class Choice(NamedTuple):
    """Keys of which at most one may be present; with `required`, exactly one."""

    keys: tuple[str, ...]
    required: bool = True

    def json_schema(self) -> dict[str, Any]:
        """Return the constraint as JSON Schema."""
        alternatives = [{"required": [key]} for key in self.keys]
        return {"oneOf": alternatives if self.required else [*alternatives, {"not": {"anyOf": alternatives}}]}


_rebuilding = RLock()
_inside = ContextVar("_inside", default=False)
"""True while a section's schema is being built; the sections it contains are not built then."""


class Section(BaseModel):
    """A map in the fleet file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)
    CHOICES: ClassVar[tuple[Choice, ...]] = ()
    """Groups of alternative keys in this section. An object's own choice replaces the one in `defaults`."""

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Return the section itself: it is immutable, so a default value need not be copied for every object."""
        return self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        if _inside.get():
            return core_schema.no_info_plain_validator_function(cls.model_validate)
        token = _inside.set(True)
        try:
            return handler(source)
        finally:
            _inside.reset(token)

    @classmethod
    def model_rebuild(cls, **options: Any) -> bool | None:
        """Build the section's validator, in only one thread at a time, because older pydantic versions have no lock."""
        with _rebuilding:
            return super().model_rebuild(**options)

    @classmethod
    def whole_schema(cls) -> CoreSchema:
        """Return the schema of the section itself.

        The schema contains a reference, so that the JSON Schema includes the section only once, by name.
        """
        cls.model_rebuild()
        schema = cls.__pydantic_core_schema__
        if schema["type"] != "definitions":
            return schema
        named: Any = {**schema["schema"], "ref": f"{cls.__module__}.{cls.__qualname__}"}
        return core_schema.definitions_schema(named, schema["definitions"])

    @classmethod
    def default(cls) -> Self:
        """Return the section with all keys at their defaults. The section must not have required keys."""
        return cls.model_construct()  # type: ignore[return-value]

    @model_validator(mode="after")
    def _one_of_each_choice(self) -> Self:
        for keys, required in self.CHOICES:
            chosen = [key for key in keys if key in self.model_fields_set]
            if len(chosen) > 1:
                raise refuse("LB015", f"{' and '.join(chosen)} cannot be set together", f"keep one of {_listed(keys)}")
            if required and not chosen:
                raise refuse("LB014", "a required key is missing", f"set one of {_listed(keys)}")
        return self


class Nothing(Section):
    """An empty map: `tcp: {}`, `source_ip: {}`."""


def refuse(code: str, message: str, hint: str = "", at: tuple[str | int, ...] = ()) -> PydanticCustomError:
    """Return the error that a validator should raise.

    `at` is the path of the message's subject, relative to the section.
    """
    return PydanticCustomError("lbctl", "{message}", {"code": code, "message": message, "hint": hint, "at": at})


def _listed(keys: tuple[str, ...]) -> str:
    return f"{', '.join(keys[:-1])} or {keys[-1]}"


class OneOf:
    """JSON Schema of a value with alternatives, each of which is a schema, a function returning one, or a section."""

    def __init__(self, *alternatives: dict[str, Any] | Callable[[], dict[str, Any]] | type[Section]) -> None:
        self._alternatives = alternatives

    def __get_pydantic_json_schema__(self, _: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"oneOf": [_alternative(item, handler) for item in self._alternatives]}


def _alternative(item: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
    if isinstance(item, dict):
        return item
    if isinstance(item, type) and issubclass(item, Section):
        return handler(item.whole_schema())
    schema: dict[str, Any] = item()
    return schema
