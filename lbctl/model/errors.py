"""Converts pydantic's errors to diagnostics with a code, the position in the YAML, the problem, and a fix."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from lbctl.base.diagnostics import Diagnostic, Path, did_you_mean, dotted, quoting_hint, show
from lbctl.ir.secrets import cookie_may_hold_credential, looks_like_secret, may_hold_credential
from lbctl.model.node import Node, descend, position_of
from lbctl.model.section import Section
from lbctl.model.shape import is_named_map, section_at, section_below

_CODES_ABOUT_KEYS = frozenset({"LB008", "LB014", "LB015"})
"""Codes that refer to a key or to missing content below it rather than to its value."""
_MAX_PLACES = 3
"""Maximum number of maps suggested in a hint for a misplaced key."""
_YAML_1_1 = re.compile(r"(?i:yes|no|on|off|true|false)")
_FOREIGN_KEYS = {
    "backup": "priority: 1 (used when no priority 0 replica is left)",
    "max_fails": "the pool's health.passive.consecutive_connect_failures",
    "fail_timeout": "the pool's health.passive.ejection_time",
    "server": "address",
    "servers": "replicas",
    "upstream": "pool",
    "upstreams": "pools",
    "backend": "pool",
    "backends": "pools",
    "retries": "retry: {attempts: …}",
    "port": "address: HOST:PORT",
    "host": "address: HOST:PORT",
    "gpus": "gpu_count",
    "canary": "split: {POOL: 95, OTHER: 5}, and `rollout` for steps",
}
"""Maps a key from other proxies' configurations to its replacement, which starts with a key."""
_FOREIGN_KEYS_IN = {
    ("http", "headers"): "put the servers' key in the pool's `credentials`; checks also send it",
}
"""Maps a section and an unknown key in it to a hint."""
_FOREIGN_VALUES = {
    "least_conn": "least_request",
    "leastconn": "least_request",
    "least_connections": "least_request",
    "roundrobin": "round_robin",
    "rr": "round_robin",
    "weighted_round_robin": "round_robin",
    "p2c": "least_request",
    "ip_hash": "hash",
    "ring_hash": "hash",
    "consistent_hash": "hash",
    "maglev": "hash",
}
"""Maps a value from other proxies' configurations to the equivalent value."""


def diagnostics_of(error: ValidationError, root: Node, shape: type[Section], at: Path = ()) -> Iterator[Diagnostic]:
    """Yield one Diagnostic for each error.

    `at` is the path of the validated value in the file; `shape` is its section.
    """
    for detail in error.errors(include_url=False):
        yield _diagnostic(detail, root, shape, at)


def messages_of(error: ValidationError, shape: type[Section]) -> Iterator[tuple[str, str, str]]:
    """Yield the path, message and hint for each error, for values that do not come from a YAML file."""
    for detail in error.errors(include_url=False):
        inner = tuple(step for step in detail["loc"] if step != "[key]")
        _code, message, hint = _message(detail, shape, inner)
        yield dotted(inner) or "it", message, hint


def _diagnostic(detail: ErrorDetails, root: Node, shape: type[Section], at: Path) -> Diagnostic:
    about_name = detail["loc"][-1:] == ("[key]",) and detail["type"] != "extra_forbidden"
    inner = detail["loc"][:-1] if about_name else detail["loc"]
    code, message, hint = _message(detail, shape, inner)
    below: Path = tuple(detail.get("ctx", {}).get("at", ()))
    node = descend(root, (*at, *inner, *below))
    if node is not None and (_is_credential(root, (*at, *inner, *below)) or looks_like_secret(str(node.value))):
        message = message.replace(show(node.value), "the value")
    if detail["type"] == "missing":
        position = position_of(root, (*at, *inner[:-1]), key=True)
    else:
        about_key = about_name or detail["type"] == "extra_forbidden" or code in _CODES_ABOUT_KEYS
        position = position_of(root, (*at, *inner, *below), key=about_key)
    return Diagnostic(code, message, position, (*at, *inner, *below), hint)


def _is_credential(root: Node, path: Path) -> bool:
    """Return whether the value at the path may be a credential, which messages must not repeat."""
    *above, name = path or ("",)
    if name == "equals" and "pin" in above:
        pin = descend(root, tuple(above))
        named = pin.value if pin is not None and isinstance(pin.value, dict) else {}
        cookie = named.get("cookie")
        return cookie is None or cookie_may_hold_credential(str(cookie.value))
    return bool(above) and above[-1] in {"headers", "set"} and may_hold_credential(str(name))


def _message(detail: ErrorDetails, shape: type[Section], inner: Path) -> tuple[str, str, str]:
    kind, ctx = detail["type"], detail.get("ctx", {})
    if kind == "lbctl":
        return ctx["code"], ctx["message"], ctx["hint"] or _as_one(inner, detail["input"])
    if kind == "extra_forbidden":
        section = section_at(shape, inner[:-1])
        keys = [field.alias or name for name, field in section.model_fields.items()] if section else []
        key = str(inner[-1])
        hint = _FOREIGN_KEYS_IN.get((str(inner[-2]) if inner[1:] else "", key)) or _instead_of_key(key, keys)
        hint = hint or (section and _further_in(key, section)) or did_you_mean(key, keys)
        return "LB011", f"unknown key {show(key)}", hint or f"known keys: {', '.join(keys)}"
    if kind == "missing":
        return "LB014", f"{inner[-1]} is missing", f"write {inner[-1]}"
    nested = section_at(shape, inner) if kind == "model_type" else None
    if nested is not None and not nested.model_fields:
        return "LB013", f"{show(detail['input'])} is not an empty map", f"write {inner[-1]}: {{}}"
    if nested is not None and isinstance(detail["input"], str | int):
        return "LB013", f"{show(detail['input'])} is not a map", _as_map(nested, detail["input"])
    code, describe = _KINDS.get(kind, ("LB013", _plain))
    message, hint = describe(detail["input"], ctx, detail["msg"])
    return code, message, hint


def _instead_of_key(key: str, keys: list[str]) -> str:
    """Return a hint for a key from other proxies' configurations, or an empty string."""
    other = _FOREIGN_KEYS.get(key, "")
    return f"write {other}" if re.split(r"\W", other)[0] in keys else ""


def _further_in(key: str, section: type[Section]) -> str:
    """Return a hint for a key that belongs in a map of this section, or an empty string."""
    places = []
    for name, field in section.model_fields.items():
        inner = None if is_named_map(section, name) else section_below(section, name)
        if inner is not None and key in inner.model_fields:
            entry = f"{{{key}: …}}"
            places.append(f"{name}: {f'[{entry}]' if _is_list(field.annotation) else entry}")
    return f"write {' or '.join(places)}" if 0 < len(places) <= _MAX_PLACES else ""


def _is_list(annotation: Any) -> bool:
    return get_origin(annotation) is list or any(map(_is_list, get_args(annotation)))


def _as_one(inner: Path, value: Any) -> str:
    """Return a hint for a list of strings given where a single string is expected, or an empty string."""
    first = value[0] if isinstance(value, list) and value else None
    if not isinstance(first, str) or not re.fullmatch(r"[\w./:*-]+", first):
        return ""
    one = "write one pool name" if inner[-1] in {"fallback", "pool"} else "write one value"
    return (
        f"{one}, for example `{inner[-1]}: {first}`" if isinstance(inner[-1], str) else f"{one}, for example `{first}`"
    )


def _as_map(section: type[Section], value: str | int) -> str:
    """Return a hint for a single value given where a section is expected: a map with the key that accepts the value."""
    if not isinstance(value, str):
        keys = [name for name, field in section.model_fields.items() if _takes(field.annotation, value)]
        return f"write {{{keys[0]}: {value}}}" if len(keys) == 1 else "write key: value"
    keys = [name for name, field in section.model_fields.items() if field.is_required()]
    if not keys and value.startswith("/"):
        keys = [name for name in section.model_fields if name in ("path_prefix", "path")][-1:]
    if len(keys) == 1 and value.isprintable():
        return f'write {{{keys[0]}: "{value}"}}'
    choice = _FOREIGN_VALUES.get(value.lower(), value)
    keys = [name for name, field in section.model_fields.items() if _takes(field.annotation, choice)]
    return f"write {{{keys[0]}: {choice}}}" if len(keys) == 1 else "write key: value"


def _takes(annotation: Any, value: str | int) -> bool:
    """Return whether a key with this annotation accepts the value: one of its choices, or any integer."""
    if get_origin(annotation) in (list, dict):
        return False
    if get_origin(annotation) is Literal:
        return value in get_args(annotation)
    if annotation is int:
        return type(value) is int
    return any(_takes(part, value) for part in get_args(annotation))


_Describe = Callable[[Any, dict[str, Any], str], tuple[str, str]]


def _plain(value: Any, _ctx: dict[str, Any], message: str) -> tuple[str, str]:
    return f"{show(value)}: {message[:1].lower()}{message[1:]}", ""


def _not_a(noun: str, hint: str = "") -> _Describe:
    return lambda value, _ctx, _message: (f"{show(value)} is not {noun}", hint)


def _literal(value: Any, ctx: dict[str, Any], _message: str) -> tuple[str, str]:
    allowed = re.findall(r"'([^']*)'", ctx["expected"]) or [ctx["expected"]]
    suggestion = _instead_of_value(value, allowed) if isinstance(value, str) else ""
    if not suggestion and isinstance(value, bool | int | float) and str(value).lower() in allowed:
        suggestion = f'quote it: "{str(value).lower()}"'
    return f"{show(value)} is not an allowed value", suggestion or f"one of {', '.join(allowed)}"


def _instead_of_value(value: str, allowed: list[str]) -> str:
    other = _FOREIGN_VALUES.get(value.lower())
    return f"write {other}" if other in allowed else did_you_mean(value, allowed)


def _boolean(value: Any, _ctx: dict[str, Any], _message: str) -> tuple[str, str]:
    is_yaml_1_1 = isinstance(value, str) and _YAML_1_1.fullmatch(value)
    return f"{show(value)} is not true or false", "use true or false, without quotes" if is_yaml_1_1 else ""


def _whole(value: Any, _ctx: dict[str, Any], _message: str) -> tuple[str, str]:
    number = value.removesuffix("%").lstrip("+0") if isinstance(value, str) else ""
    if not number.lstrip("-").isdigit():
        return f"{show(value)} is not a whole number", ""
    return f"{show(value)} is not a whole number", f"write {number}, unquoted{', without %' if '%' in value else ''}"


def _string(value: Any, _ctx: dict[str, Any], _message: str) -> tuple[str, str]:
    return f"{show(value)} is not a string", quoting_hint(value)


def _empty(value: Any, _ctx: dict[str, Any], _message: str) -> tuple[str, str]:
    return f"this {'map' if isinstance(value, dict) else 'list'} is empty", "add at least one entry"


def _bound(relation: str, key: str) -> _Describe:
    return lambda value, ctx, _message: (f"{show(value)} is out of range", f"{relation} {ctx[key]}")


_KINDS: dict[str, tuple[str, _Describe]] = {
    "literal_error": ("LB013", _literal),
    "bool_type": ("LB013", _boolean),
    "int_type": ("LB013", _whole),
    "int_from_float": ("LB013", _whole),
    "float_type": ("LB013", _not_a("a number")),
    "string_type": ("LB013", _string),
    "string_too_long": ("LB016", _bound("at most", "max_length")),
    "list_type": ("LB013", _not_a("a list", "use [ … ] or lines that start with -")),
    "dict_type": ("LB013", _not_a("a map", "write key: value")),
    "model_type": ("LB013", _not_a("a map", "write key: value")),
    "too_short": ("LB016", _empty),
    "greater_than_equal": ("LB016", _bound("at least", "ge")),
    "less_than_equal": ("LB016", _bound("at most", "le")),
    "greater_than": ("LB016", _bound("more than", "gt")),
}
