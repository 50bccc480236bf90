"""Checks messages against the validation rules in Envoy's protobuf definitions (protoc-gen-validate).

Envoy rejects a message that breaks such a rule. The rules are read from the descriptors of xds-protos, so none is
copied here. Regular expressions are not compiled: Envoy uses RE2, and the model accepts only what RE2 can parse.
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
"""(path of the field, as `virtual_hosts[0].routes[2].match`; what the value must be)."""
Reference = tuple[str, str]
"""(type URL, name) of a resource that another resource refers to."""
_Check = Callable[[Any], str]
"""Value → the reason why it breaks the rule, or an empty string."""

_ANY = "google.protobuf.Any"
_MOST_GOOD = 20_000
"""The maximal number of valid messages remembered for each message type."""
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
    """The broken rules of a message, and the resources that it refers to."""

    broken: list[Broken]
    needs: set[Reference]


class Rules:
    """Checks messages against their rules. `looks` maps the full name of a message type to a reference extractor.

    Most messages of a fleet are alike or unchanged, so a message that is valid once is remembered by its digest.
    """

    def __init__(self, looks: Mapping[str, Callable[[Any], Iterable[Reference]]]) -> None:
        self._looks = looks
        self._kinds: dict[Descriptor, _Kind] = {}
        self._tells: dict[Descriptor, bool] = {}

    def examine(self, message: Message) -> Examined:
        """Check a message and all messages inside it, including those packed in an `Any`."""
        return self._examine(self._kind(message), message, "")

    def _kind(self, message: Message) -> _Kind:
        descriptor: Any = message.DESCRIPTOR
        return self._kinds.get(descriptor) or self._learnt(descriptor)

    def _examine(self, kind: _Kind, message: Message, way: str) -> Examined:
        if kind.packed:
            return self._unpack(message, way)
        examined = Examined([], set())
        if kind.look is not None:
            examined.needs.update(kind.look(message))
        for oneof in kind.oneofs:
            if message.WhichOneof(oneof) is None:
                examined.broken.append((f"{way}{oneof}", "one of these must be given"))
        given = message.ListFields()
        if kind.wanted:
            examined.broken.extend(_missing(kind.wanted, {field.name for field, _ in given}, way))
        for field, value in given:
            known_field = kind.fields.get(field.number)
            if known_field is not None:
                self._examine_field(known_field, value, f"{way}{known_field.name}", examined)
        return examined

    def _examine_field(self, field: _Field, value: Any, way: str, examined: Examined) -> None:
        for check in field.checks:
            examined.broken.extend((f"{way}{at}", reason) for at, reason in check(value))
        if field.items is not None:
            for step, item in field.items(value):
                self._examine_part(item, f"{way}{step}.", examined)

    def _examine_part(self, part: Message, way: str, examined: Examined) -> None:
        kind = self._kind(part)
        digest = blake2b(part.SerializeToString(), digest_size=16).digest()
        needs = kind.good.get(digest)
        if needs is None:
            broken, inside = self._examine(kind, part, way)
            examined.broken.extend(broken)
            needs = frozenset(inside)
            if not broken:
                kind.remember(digest, needs)
        examined.needs.update(needs)

    def _unpack(self, packed: Any, way: str) -> Examined:
        opened = _opened(packed)
        if opened is None:
            return Examined([(f"{way}type_url", "is no message that this can be")], set())
        return self._examine(self._kind(opened), opened, way)

    def _learnt(self, descriptor: Descriptor) -> _Kind:
        oneofs = (item for item in descriptor.oneofs if item.GetOptions().Extensions[validate_pb2.required])
        fields = {field.number: _field(field, self._leads_on(field)) for field in descriptor.fields}
        wanted = {field.name: messages for field in descriptor.fields if (messages := _absent(field))}
        kind = self._kinds[descriptor] = _Kind(
            packed=descriptor.full_name == _ANY,
            look=self._looks.get(descriptor.full_name),
            oneofs=tuple(item.name for item in oneofs),
            wanted=wanted,
            fields={number: field for number, field in fields.items() if field.checks or field.items},
            good={},
        )
        return kind

    def _leads_on(self, field: FieldDescriptor) -> bool:
        """Return whether the messages in a field, at any depth, can have rules or references."""
        kind = _kind_of_items(field)
        if kind is None:
            return False
        if kind not in self._tells:
            self._tells[kind] = any(self._tells_by_itself(each) for each in _reached(kind))
        return self._tells[kind]

    def _tells_by_itself(self, kind: Descriptor) -> bool:
        if kind.full_name == _ANY or kind.full_name in self._looks:
            return True
        oneofs = any(item.GetOptions().Extensions[validate_pb2.required] for item in kind.oneofs)
        return oneofs or any(field.GetOptions().HasExtension(validate_pb2.rules) for field in kind.fields)


def _missing(wanted: Mapping[str, tuple[str, ...]], given: Collection[str], way: str) -> Iterator[Broken]:
    for name, messages in wanted.items():
        if name not in given:
            yield from ((f"{way}{name}", each) for each in messages)


def _opened(packed: Any) -> Message | None:
    try:
        message: Message = symbol_database.Default().GetSymbol(packed.type_url.rpartition("/")[2])()
        message.ParseFromString(packed.value)
    except (KeyError, DecodeError):
        return None
    return message


def _kind_of_items(field: FieldDescriptor) -> Descriptor | None:
    """Return the type of the messages that a field holds; for a map, of its values."""
    inner = _entry(field)["value"] if _is_map(field) else field
    return inner.message_type


def _reached(kind: Descriptor) -> Iterator[Descriptor]:
    """Yield a message type and every type that it can contain, each once."""
    visited = {kind}
    waiting = [kind]
    while waiting:
        here = waiting.pop()
        yield here
        below = {item for field in here.fields if (item := _kind_of_items(field)) is not None} - visited
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
    """The checks of one field, and an iterator over the messages in it.

    `items` is None where the field holds nothing to check. Both give positions relative to the field.
    """

    name: str
    checks: tuple[Callable[[Any], Iterable[Broken]], ...]
    items: Callable[[Any], Iterable[tuple[str, Message]]] | None


class _Kind(NamedTuple):
    """The checks of one message type.

    `wanted` maps a field's name to the messages reported when it is absent. `good` maps the digest of a valid message
    to the resources that it refers to.
    """

    packed: bool
    look: Callable[[Any], Iterable[Reference]] | None
    oneofs: tuple[str, ...]
    wanted: Mapping[str, tuple[str, ...]]
    fields: Mapping[int, _Field]
    good: dict[bytes, frozenset[Reference]]

    def remember(self, digest: bytes, needs: frozenset[Reference]) -> None:
        """Record a valid message by its digest."""
        if len(self.good) >= _MOST_GOOD:
            self.good.clear()
        self.good[digest] = needs


def _field(field: FieldDescriptor, leads_on: bool) -> _Field:
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
    return _Field(field.name, tuple(checks), _items_of(field) if leads_on else None)


def _absent(field: FieldDescriptor) -> tuple[str, ...]:
    """Return the rules that a field breaks when it is absent, or holds only its default value."""
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
    """Return the checks of a repeated field: of the whole, of each item, and of each key of a map."""
    if _is_map(field):
        inner = _entry(field)
        counts = _counts(rules.map.min_pairs, rules.map.max_pairs)
        return counts, _checks(inner["value"], rules.map.values), _checks(inner["key"], rules.map.keys)
    counts = _counts(rules.repeated.min_items, rules.repeated.max_items)
    if rules.repeated.unique:
        counts = (*counts, lambda value: "" if len(set(value)) == len(value) else "must not repeat itself")
    return counts, _checks(field, rules.repeated.items), ()


def _counts(least: int, most: int) -> tuple[_Check, ...]:
    checks: list[_Check] = []
    if least:
        checks.append(lambda value: "" if len(value) >= least else f"must have at least {least} items")
    if most:
        checks.append(lambda value: "" if len(value) <= most else f"must have at most {most} items")
    return tuple(checks)


def _checks(field: FieldDescriptor, rules: Any) -> tuple[_Check, ...]:
    """Return the checks of one value: a scalar, a wrapper's value, an enum, a duration or the type of an `Any`."""
    kind = rules.WhichOneof("type")
    if kind is None or kind in ("repeated", "map", "timestamp"):
        return ()
    own = getattr(rules, kind)
    checks: list[_Check] = []
    for rule, bound in own.ListFields():
        if rule.name in _COMPARED:
            checks.append(_compared(kind, rule.name, bound))
        elif rule.name == "well_known_regex":
            checks.append(_known(_STRICT[bound] if own.strict else _LOOSE))
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


def _known(pattern: re.Pattern[str]) -> _Check:
    return lambda value: "" if pattern.fullmatch(value) else "holds characters that a header cannot have"


def _nanoseconds(value: Any) -> int:
    return int(value.seconds * 1_000_000_000 + value.nanos)


def _seconds(value: Any) -> str:
    return f"{_nanoseconds(value) / 1e9:g}s"
