"""`dataclass` of the standard library with methods that are compiled when they are first called.

The standard library compiles up to six methods of each class where the class is defined. lbctl has six hundred such
classes, a process uses some tenths of them, and compiling the methods of all took a third of its start. The fields and
the slots are those of the standard library, as are the results of the methods; an object is also made faster, since
its fields are written through their slots. Only classes with slots are supported, and none with `order` or `kw_only`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass
else:

    def dataclass(*, slots: bool, frozen: bool = False, eq: bool = True) -> Callable[[type], type]:
        """Return a decorator that makes a class a dataclass, as that of the standard library does."""
        assert slots, "fields are written through their slots"
        return lambda cls: _with_methods(_fields_of(cls), frozen, eq)


__all__ = ["dataclass"]

_T = TypeVar("_T")
_fields_of = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)


def _with_methods(cls: type[_T], frozen: bool, eq: bool) -> type[_T]:
    """Add the methods that the class does not define itself."""
    own = cls.__dict__
    methods: dict[str, Any] = {"__init__": _compiled_later(cls, "__init__", _init), "__repr__": _repr}
    if eq:
        methods["__eq__"] = _compiled_later(cls, "__eq__", _eq)
        # Python sets __hash__ to None in a class that defines __eq__
        methods["__hash__"] = _compiled_later(cls, "__hash__", _hash) if frozen else None
    if frozen:
        methods |= {
            "__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete,
            "__getstate__": _state, "__setstate__": _restore,
        }  # fmt: skip
    for name, method in methods.items():
        if own.get(name) is None:
            setattr(cls, name, method)
    return cls


def _compiled_later(cls: type, name: str, compiled: Callable[[type], Any]) -> Callable[..., Any]:
    """Return a method that replaces itself in the class by a compiled one when it is first called."""

    def first(*arguments: Any, **named: Any) -> Any:
        method = compiled(cls)
        method.__qualname__ = f"{cls.__qualname__}.{name}"
        setattr(cls, name, method)
        return method(*arguments, **named)

    return first


def _init(cls: Any) -> Any:
    names: dict[str, Any] = {"_MISSING": dataclasses.MISSING}
    parameters, lines = ["_record"], []  # there is a field `self`
    for field in dataclasses.fields(cls):
        name = field.name
        names[f"_set_{name}"] = getattr(cls, name).__set__
        value = name
        if field.default_factory is not dataclasses.MISSING:
            names[f"_default_{name}"] = field.default_factory
            value = f"_default_{name}() if {name} is _MISSING else {name}"
            parameters.append(f"{name}=_MISSING")
        elif field.default is not dataclasses.MISSING:
            names[f"_default_{name}"] = field.default
            parameters.append(f"{name}=_default_{name}")
        elif field.init:
            parameters.append(name)
        else:
            continue
        lines.append(f"_set_{name}(_record, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("_record.__post_init__()")
    return _compiled("__init__", ", ".join(parameters), "; ".join(lines) or "pass", names)


def _eq(cls: Any) -> Any:
    def values(of: str) -> str:
        return "".join(f"{of}.{field.name}, " for field in dataclasses.fields(cls) if field.compare)

    same = f"({values('self')}) == ({values('other')})"
    return _compiled("__eq__", "self, other", f"return {same} if other.__class__ is self.__class__ else NotImplemented")


def _hash(cls: Any) -> Any:
    values = "".join(f"self.{field.name}, " for field in dataclasses.fields(cls) if _is_hashed(field))
    return _compiled("__hash__", "self", f"return hash(({values}))")


def _is_hashed(field: dataclasses.Field[Any]) -> bool:
    return field.compare if field.hash is None else field.hash


def _compiled(name: str, parameters: str, body: str, names: dict[str, Any] | None = None) -> Any:
    names = names or {}
    exec(f"def {name}({parameters}): {body}", names)
    return names[name]


def _repr(self: Any) -> str:
    values = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(values)})"


def _refuse_to_set(self: Any, name: str, value: Any) -> None:
    del self, value
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    del self
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _restore(self: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)
