"""What a request must look like: a rule of a listener as Envoy's `RouteMatch`."""

from __future__ import annotations

from collections.abc import Iterator

from envoy.config.route.v3 import route_components_pb2

from lbctl.ir.listeners import PathMatch, Rule
from lbctl.ir.routes import Pin
from lbctl.targets import request_host, request_method, request_target
from lbctl.targets.envoy import escapes
from lbctl.targets.envoy.sources import NAMESPACE

MODEL_HEADER = "x-model"
FORWARDED_FOR = "x-forwarded-for"


def route_matches(rule: Rule) -> Iterator[route_components_pb2.RouteMatch]:
    """One, or two where the model decides: named by the header, else by the body."""
    headers = _headers(rule)
    if not rule.models:
        yield without_model(rule)
        return
    named = _header(MODEL_HEADER, {"safe_regex": {"regex": "|".join(map(_named, rule.models))}})
    yield route_components_pb2.RouteMatch(headers=[*headers, named], **path(rule.path))
    unnamed = {"name": MODEL_HEADER, "present_match": True, "invert_match": True}
    read = [_model(rule.models)]
    yield route_components_pb2.RouteMatch(headers=[*headers, unnamed], dynamic_metadata=read, **path(rule.path))


def without_model(rule: Rule) -> route_components_pb2.RouteMatch:
    """What a rule asks of a request beside its model."""
    return route_components_pb2.RouteMatch(headers=_headers(rule), **path(rule.path))


def _headers(rule: Rule) -> list[dict[str, object]]:
    headers = [_header(name, {"exact": value}) for name, value in rule.headers]
    return [method(*rule.methods), *headers] if rule.methods else headers


def path(wanted: PathMatch) -> dict[str, object]:
    """Of a path that can be written in one way alone, what is cheap; else an expression for every way."""
    if wanted.kind == "regex":
        return _regex(escapes.expression(wanted.value))
    if wanted.kind == "exact":
        plain = escapes.is_plain(wanted.value)
        return {"path": wanted.value} if plain else _regex(escapes.literal(wanted.value))
    prefix = wanted.value.rstrip("/")
    if not escapes.is_plain(prefix):
        return _regex(f"{escapes.literal(prefix)}(?:/.*)?")
    return {"path_separated_prefix": prefix} if prefix else {"prefix": "/"}


def ambiguous_path() -> dict[str, object]:
    return _regex(f".*(?:{request_target.AMBIGUOUS}).*")


def malformed_host() -> dict[str, object]:
    """The header condition of a Host that is none; Envoy joins several lines with commas."""
    return {**_header(":authority", {"safe_regex": {"regex": request_host.HOST_WITHOUT_DOT}}), "invert_match": True}


def refused_method() -> dict[str, object]:
    regex = "|".join((*request_method.NAMES, f".*{request_method.UNFIT}.*"))
    return _header(":method", {"safe_regex": {"regex": regex}})


def _regex(expression: str) -> dict[str, object]:
    return {"safe_regex": {"regex": expression}}


def several(header: str) -> dict[str, object]:
    """The header condition of several values: Envoy joins the lines of a header with commas."""
    return _header(header.lower(), {"contains": ","})


def method(*names: str) -> dict[str, object]:
    if len(names) == 1:
        return _header(":method", {"exact": names[0]})
    return _header(":method", {"safe_regex": {"regex": "|".join(literal(name) for name in sorted(names))}})


def pinned(pin: Pin) -> dict[str, object]:
    """The header condition of a pin."""
    return cookie(pin.name, pin.value) if pin.kind == "cookie" else _header(pin.name.lower(), {"exact": pin.value})


def cookie(name: str, value: str) -> dict[str, object]:
    """One cookie among others: several `cookie` headers arrive joined."""
    regex = f"(?:.*[;,])? *{literal(name)}={literal(value)} *(?:[;,].*)?"
    return _header("cookie", {"safe_regex": {"regex": regex}})


def literal(text: str) -> str:
    """`text` as an RE2 expression that matches it and nothing else."""
    return "".join(c if c.isalnum() or c in "_ " or ord(c) > 127 else f"\\{c}" for c in text)


def _header(name: str, matcher: dict[str, object]) -> dict[str, object]:
    return {"name": name, "string_match": matcher}


def _named(model: str) -> str:
    return f"{literal(model[:-1])}.*" if model.endswith("*") else literal(model)


def _model(models: tuple[str, ...]) -> dict[str, object]:
    """The body's `model`, as the listener's JSON filter left it in the request's metadata."""
    names = [{"string_match": {"prefix": item[:-1]} if item.endswith("*") else {"exact": item}} for item in models]
    value = names[0] if len(names) == 1 else {"or_match": {"value_matchers": names}}
    return {"filter": NAMESPACE, "path": [{"key": "model"}], "value": value}
