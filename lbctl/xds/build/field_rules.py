"""Checks messages against the validation rules in Envoy's protobuf definitions (protoc-gen-validate).

Envoy rejects a message that violates such a rule. The rules are read from the descriptors of xds-protos and not copied
here. Regular expressions are not checked here, because Envoy uses RE2 and the model accepts only expressions that RE2
can parse.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from google.protobuf import symbol_database
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from validate import validate_pb2

Broken = tuple[str, str]
"""Path of a field, for example `virtual_hosts[0].routes[2].match`, and the reason why its value is invalid."""
Reference = tuple[str, str]
"""Type URL and name of a resource that another resource refers to."""
_Check = Callable[[Any], str]
"""Returns the reason why a value violates the rule, or an empty string."""

_ANY = "google.protobuf.Any"
_MAX_VALID = 20_000
"""Maximum number of valid messages remembered per message type."""
_LOOSE = re.compile(r"[^\x00\n\r]*")
_STRICT = {1: re.compile(r":?[0-9a-zA-Z!#$%&'*+,\-.^_|~`]+"), 2: re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")}
"""Patterns for the names (1) and values (2) of HTTP headers."""
_COMPARED: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "const": ("must be {}", lambda value, bound: bool(value == bound)),
    "lt": ("must be less than {}", lambda value, bound: bool(value < bound)),
    "lte": ("must be at most {}", lambda value, bound: bool(value <= bound)),
    "gt": ("must be more than {}", lambda value, bound: bool(value > bound)),
    "gte": ("must be at least {}", lambda value, bound: bool(value >= bound)),
    "in": ("must be one of {}", lambda value, bound: value in bound),
    "not_in": ("must be none of {}", lambda value, bound: value not in bound),
    "len": ("must have {} characters", lambda value, bound: len(value) == bound),
    "min_len": ("must have at least {} characters", lambda value, bound: len(value) >= bound),
    "max_len": ("must have at most {} characters", lambda value, bound: len(value) <= bound),
    "min_bytes": ("must have at least {} bytes", lambda value, bound: len(value.encode()) >= bound),
    "max_bytes": ("must have at most {} bytes", lambda value, bound: len(value.encode()) <= bound),
    "prefix": ("must begin with {!r}", lambda value, bound: bool(value.startswith(bound))),
    "suffix": ("must end with {!r}", lambda value, bound: bool(value.endswith(bound))),
    "contains": ("must contain {!r}", lambda value, bound: bound in value),
    "not_contains": ("must not contain {!r}", lambda value, bound: bound not in value),
    "pattern": ("must match {}", lambda value, bound: re.search(bound, value) is not None),
}


class Examined(NamedTuple):
    """The rules violated by a message, and the resources that it refers to."""

    broken: list[Broken]
    """The rules that the message violates."""
    needs: set[Reference]
    """The resources that the message refers to."""


class FieldRules:
    """Checks messages against their rules. `extractors` maps the full name of a message type to a reference extractor.

    Most of a fleet's messages are similar or unchanged, so a message that has been valid once is remembered by its
    digest.
    """

    def __init__(self, extractors: Mapping[str, Callable[[Any], Iterable[Reference]]]) -> None:
        self._extractors = extractors
        self._kinds: dict[Descriptor, _Kind] = {}
        self._needs_check: dict[Descriptor, bool] = {}

    def examine(self, message: Message) -> Examined:
        """Check a message and all messages inside it, including those packed in an `Any`."""
        return self._examine(self._kind(message), message, "")

    def _kind(self, message: Message) -> _Kind:
        descriptor: Any = message.DESCRIPTOR
        return self._kinds.get(descriptor) or self._compile(descriptor)

    def _examine(self, kind: _Kind, message: Message, field_path: str) -> Examined:
        if kind.packed:
            return self._unpack(message, field_path)
        examined = Examined([], set())
        if kind.extractor is not None:
            examined.needs.update(kind.extractor(message))
        for oneof in kind.oneofs:
            if message.WhichOneof(oneof) is None:
                examined.broken.append((f"{field_path}{oneof}", "one of these must be set"))
        given = message.ListFields()
        if kind.required:
            examined.broken.extend(_missing(kind.required, {field.name for field, _ in given}, field_path))
        for field, value in given:
            field_checks = kind.fields.get(field.number)
            if field_checks is not None:
                self._examine_field(field_checks, value, f"{field_path}{field_checks.name}", examined)
        return examined

    def _examine_field(self, field: _Field, value: Any, field_path: str, examined: Examined) -> None:
        for check in field.checks:
            examined.broken.extend((f"{field_path}{at}", reason) for at, reason in check(value))
        if field.items is not None:
            for step, item in field.items(value):
                self._examine_part(item, f"{field_path}{step}.", examined)

    def _examine_part(self, part: Message, field_path: str, examined: Examined) -> None:
        kind = self._kind(part)
        digest = blake2b(part.SerializeToString(), digest_size=16).digest()
        needs = kind.valid.get(digest)
        if needs is None:
            broken, inside = self._examine(kind, part, field_path)
            examined.broken.extend(broken)
            needs = frozenset(inside)
            if not broken:
                kind.remember(digest, needs)
        examined.needs.update(needs)

    def _unpack(self, packed: Any, field_path: str) -> Examined:
        unpacked = _unpacked(packed)
        if unpacked is None:
            return Examined([(f"{field_path}type_url", "is not a message type that is allowed here")], set())
        return self._examine(self._kind(unpacked), unpacked, field_path)

    def _compile(self, descriptor: Descriptor) -> _Kind:
        oneofs = (item for item in descriptor.oneofs if item.GetOptions().Extensions[validate_pb2.required])
        fields = {field.number: _field(field, self._contains_checks(field)) for field in descriptor.fields}
        required = {field.name: messages for field in descriptor.fields if (messages := _absent(field))}
        kind = self._kinds[descriptor] = _Kind(
            packed=descriptor.full_name == _ANY,
            extractor=self._extractors.get(descriptor.full_name),
            oneofs=tuple(item.name for item in oneofs),
            required=required,
            fields={number: field for number, field in fields.items() if field.checks or field.items},
            valid={},
        )
        return kind

    def _contains_checks(self, field: FieldDescriptor) -> bool:
        """Return whether messages in a field, at any depth, can have rules or references."""
        kind = _kind_of_items(field)
        if kind is None:
            return False
        if kind not in self._needs_check:
            self._needs_check[kind] = any(self._has_own_checks(each) for each in _reachable(kind))
        return self._needs_check[kind]

    def _has_own_checks(self, kind: Descriptor) -> bool:
        if kind.full_name == _ANY or kind.full_name in self._extractors:
            return True
        oneofs = any(item.GetOptions().Extensions[validate_pb2.required] for item in kind.oneofs)
        return oneofs or any(field.GetOptions().HasExtension(validate_pb2.rules) for field in kind.fields)


def _missing(required: Mapping[str, tuple[str, ...]], given: Collection[str], field_path: str) -> Iterator[Broken]:
    for name, messages in required.items():
        if name not in given:
            yield from ((f"{field_path}{name}", each) for each in messages)


def _unpacked(packed: Any) -> Message | None:
    try:
        message: Message = symbol_database.Default().GetSymbol(packed.type_url.rpartition("/")[2])()
        message.ParseFromString(packed.value)
    except (KeyError, DecodeError):
        return None
    return message


def _kind_of_items(field: FieldDescriptor) -> Descriptor | None:
    """Return the type of the messages in a field, or of the values if the field is a map."""
    inner = _entry(field)["value"] if _is_map(field) else field
    return inner.message_type


def _reachable(kind: Descriptor) -> Iterator[Descriptor]:
    """Yield a message type and every type that it can contain, without duplicates."""
    visited = {kind}
    waiting = [kind]
    while waiting:
        current = waiting.pop()
        yield current
        below = {item for field in current.fields if (item := _kind_of_items(field)) is not None} - visited
        visited |= below
        waiting += below


def _entry(field: FieldDescriptor) -> dict[str, FieldDescriptor]:
    """Return the key field and the value field of a map."""
    assert field.message_type is not None
    return dict(field.message_type.fields_by_name)


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


# ── From descriptors to checks, once for each kind of message ────────────────────────────────────────────────────────


class _Field(NamedTuple):
    """One field's checks, and an iterator over the messages in it.

    `items` is None if none of the messages in the field needs a check. The checks and the iterator return positions
    relative to the field.
    """

    name: str
    checks: tuple[Callable[[Any], Iterable[Broken]], ...]
    items: Callable[[Any], Iterable[tuple[str, Message]]] | None


class _Kind(NamedTuple):
    """The checks of one message type.

    `required` maps a field's name to the messages reported when it is absent. `valid` maps the digest of a valid
    message to the resources that it refers to.
    """

    packed: bool
    extractor: Callable[[Any], Iterable[Reference]] | None
    oneofs: tuple[str, ...]
    required: Mapping[str, tuple[str, ...]]
    fields: Mapping[int, _Field]
    valid: dict[bytes, frozenset[Reference]]

    def remember(self, digest: bytes, needs: frozenset[Reference]) -> None:
        """Record a valid message by its digest."""
        if len(self.valid) >= _MAX_VALID:
            self.valid.clear()
        self.valid[digest] = needs


def _field(field: FieldDescriptor, contains_checks: bool) -> _Field:
    rules = _rules(field)
    checks: list[Callable[[Any], Iterable[Broken]]] = []
    if rules is not None and field.is_repeated:
        whole, each, keys = _many(field, rules)
        checks += (partial(_check_one, check) for check in whole)
        checks += (partial(_check_each, check, _is_map(field), False) for check in each)
        checks += (partial(_check_each, check, True, True) for check in keys)
    elif rules is not None:
        wrapped = _is_wrapper(field)
        checks += (partial(_check_wrapped if wrapped else _check_one, check) for check in _checks(field, rules))
    return _Field(field.name, tuple(checks), _items_of(field) if contains_checks else None)


def _absent(field: FieldDescriptor) -> tuple[str, ...]:
    """Return the rules that a field violates if it is absent or has its default value."""
    rules = _rules(field)
    if rules is None:
        return ()
    if field.is_repeated:
        whole, _, _ = _many(field, rules)
        return tuple(message for check in whole if (message := check(())))
    if field.has_presence:
        return ("must be given",) if _required(rules) and field.containing_oneof is None else ()
    return tuple(message for check in _checks(field, rules) if (message := check(field.default_value)))


def _rules(field: FieldDescriptor) -> Any:
    options = field.GetOptions()
    return options.Extensions[validate_pb2.rules] if options.HasExtension(validate_pb2.rules) else None


def _is_wrapper(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return kind is not None and kind.name.endswith("Value") and "value" in kind.fields_by_name


def _items_of(field: FieldDescriptor) -> Callable[[Any], Iterable[tuple[str, Message]]]:
    if not field.is_repeated:
        return lambda value: (("", value),)
    if _is_map(field):
        return lambda value: ((f"[{key}]", value[key]) for key in sorted(value))
    return lambda value: ((f"[{index}]", item) for index, item in enumerate(value))


def _check_one(check: _Check, value: Any) -> Iterable[Broken]:
    reason = check(value)
    return (("", reason),) if reason else ()


def _check_wrapped(check: _Check, value: Any) -> Iterable[Broken]:
    return _check_one(check, value.value)


def _check_each(check: _Check, mapped: bool, keys: bool, value: Any) -> Iterable[Broken]:
    pairs = value.items() if mapped else enumerate(value)
    reasons = ((key, check(key if keys else item)) for key, item in pairs)
    return [(f"[{key}]", reason) for key, reason in reasons if reason]


def _required(rules: Any) -> bool:
    return bool(rules.message.required or rules.duration.required or rules.any.required or rules.timestamp.required)


def _many(field: FieldDescriptor, rules: Any) -> tuple[tuple[_Check, ...], tuple[_Check, ...], tuple[_Check, ...]]:
    """Return the checks for a repeated field: for the entire field, each item, and each key of a map."""
    if _is_map(field):
        inner = _entry(field)
        counts = _counts(rules.map.min_pairs, rules.map.max_pairs)
        return counts, _checks(inner["value"], rules.map.values), _checks(inner["key"], rules.map.keys)
    counts = _counts(rules.repeated.min_items, rules.repeated.max_items)
    if rules.repeated.unique:
        counts = (*counts, lambda value: "" if len(set(value)) == len(value) else "must not contain duplicates")
    return counts, _checks(field, rules.repeated.items), ()


def _counts(least: int, most: int) -> tuple[_Check, ...]:
    checks: list[_Check] = []
    if least:
        checks.append(lambda value: "" if len(value) >= least else f"must have at least {least} items")
    if most:
        checks.append(lambda value: "" if len(value) <= most else f"must have at most {most} items")
    return tuple(checks)


def _checks(field: FieldDescriptor, rules: Any) -> tuple[_Check, ...]:
    """Return the checks for a single value: a scalar, a wrapper's value, an enum, a duration or an `Any`'s type."""
    kind = rules.WhichOneof("type")
    if kind is None or kind in ("repeated", "map", "timestamp"):
        return ()
    own = getattr(rules, kind)
    checks: list[_Check] = []
    for rule, bound in own.ListFields():
        if rule.name in _COMPARED:
            checks.append(_compared(kind, rule.name, bound))
        elif rule.name == "well_known_regex":
            checks.append(_header_check(_STRICT[bound] if own.strict else _LOOSE))
        elif rule.name == "defined_only" and bound and field.enum_type:
            checks.append(_defined(frozenset(field.enum_type.values_by_number)))
    if getattr(own, "ignore_empty", False):
        return tuple(lambda value, check=check: check(value) if value else "" for check in checks)
    return tuple(checks)


def _compared(kind: str, rule: str, bound: Any) -> _Check:
    template, holds = _COMPARED[rule]
    if kind == "duration":
        bounds = [_nanoseconds(item) for item in bound] if rule in ("in", "not_in") else _nanoseconds(bound)
        message = template.format(_seconds(bound) if isinstance(bounds, int) else bounds)
        return lambda value: "" if holds(_nanoseconds(value), bounds) else message
    plain = list(bound) if rule in ("in", "not_in") else bound
    if kind == "any":
        return lambda value: "" if holds(value.type_url, plain) else template.format(plain)
    return lambda value: "" if holds(value, plain) else template.format(plain)


def _defined(numbers: frozenset[int]) -> _Check:
    return lambda value: "" if value in numbers else "must be a known value"


def _header_check(pattern: re.Pattern[str]) -> _Check:
    return lambda value: "" if pattern.fullmatch(value) else "contains characters that are not allowed in a header"


def _nanoseconds(value: Any) -> int:
    return int(value.seconds * 1_000_000_000 + value.nanos)


def _seconds(value: Any) -> str:
    return f"{_nanoseconds(value) / 1e9:g}s"
