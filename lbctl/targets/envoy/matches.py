"""The conditions of a request: a rule of a listener as Envoy's `RouteMatch`."""

from __future__ import annotations

from collections.abc import Iterator

from envoy.config.route.v3 import route_components_pb2

from lbctl.ir.listeners import PathMatch, Rule
from lbctl.ir.routes import Pin
from lbctl.targets import query_model, request_grammar
from lbctl.targets.envoy import escapes
from lbctl.targets.envoy.sources import NAMESPACE

MODEL_HEADER = "x-model"
FORWARDED_FOR = "x-forwarded-for"
CODED, UNREAD = "coded", "unread"
"""Metadata keys that mark a body with a content coding, and a body that is not JSON."""
FRAMING_HEADER = "x-envoy-framing"
"""Header in which the listener writes the HTTP version and the transfer-encoding, or `-` without one.

Clients cannot send it, and replicas do not get it.
"""
_NO_BODY_MODEL = {
    "filter": NAMESPACE,
    "path": [{"key": "model"}],
    "value": {"present_match": True},
    "invert": True,
}


def route_matches(rule: Rule) -> Iterator[route_components_pb2.RouteMatch]:
    """Yield one match, or three if the rule depends on the model.

    The model is in the `x-model` header, in the body, or in the query of a GET request.
    """
    headers = _headers(rule)
    if not rule.models:
        yield without_model(rule)
        return
    model_header = _header(MODEL_HEADER, {"safe_regex": {"regex": "|".join(map(_model_regex, rule.models))}})
    yield route_components_pb2.RouteMatch(headers=[*headers, model_header], **path(rule.path))
    no_header = {"name": MODEL_HEADER, "present_match": True, "invert_match": True}
    body_model = [_body_model(rule.models)]
    yield route_components_pb2.RouteMatch(headers=[*headers, no_header], dynamic_metadata=body_model, **path(rule.path))
    if rule.methods and "GET" not in rule.methods:
        return
    yield route_components_pb2.RouteMatch(
        headers=[*(_header(name, {"exact": value}) for name, value in rule.headers), method("GET"), no_header],
        query_parameters=[{"name": "model", **_string("|".join(map(_query_regex, rule.models)))}],
        dynamic_metadata=[_NO_BODY_MODEL],
        **path(rule.path),
    )


def without_model(rule: Rule) -> route_components_pb2.RouteMatch:
    """Return the match of a rule without its model condition."""
    return route_components_pb2.RouteMatch(headers=_headers(rule), **path(rule.path))


def named_model(match: route_components_pb2.RouteMatch) -> Iterator[route_components_pb2.RouteMatch]:
    """Yield the match restricted to requests that name any model in the header, in the body or in a GET's query."""
    names_model = (
        {"headers": [{"name": MODEL_HEADER, "present_match": True}]},
        {"dynamic_metadata": [{**_NO_BODY_MODEL, "invert": False}]},
        {"headers": [method("GET")], "query_parameters": [{"name": "model", "present_match": True}]},
    )
    for condition in names_model:
        narrowed = route_components_pb2.RouteMatch(**condition)
        narrowed.MergeFrom(match)
        yield narrowed


def _headers(rule: Rule) -> list[dict[str, object]]:
    headers = [_header(name, {"exact": value}) for name, value in rule.headers]
    return [method(*rule.methods), *headers] if rule.methods else headers


def path(path_match: PathMatch) -> dict[str, object]:
    """Return the path condition: a cheap one if the path has a single form, otherwise an expression for every form."""
    if path_match.kind == "regex":
        return _regex(escapes.expression(path_match.value))
    if path_match.kind == "exact":
        plain = escapes.is_plain(path_match.value)
        return {"path": path_match.value} if plain else _regex(escapes.literal(path_match.value))
    prefix = path_match.value.rstrip("/")
    if not escapes.is_plain(prefix):
        return _regex(f"{escapes.literal(prefix)}(?:/.*)?")
    return {"path_separated_prefix": prefix} if prefix else {"prefix": "/"}


def ambiguous_path() -> dict[str, object]:
    """Return the condition for ambiguous paths, which every proxy rejects."""
    return _regex(f".*(?:{request_grammar.AMBIGUOUS}).*")


def malformed_host() -> dict[str, object]:
    """Return the header condition for an invalid Host. Envoy joins repeated headers with commas."""
    return {**_header(":authority", {"safe_regex": {"regex": request_grammar.HOST_WITHOUT_DOT}}), "invert_match": True}


def chunked_http_10() -> dict[str, object]:
    """Return the header condition for a chunked HTTP/1.0 body, whose end other proxies may find elsewhere."""
    return _header(FRAMING_HEADER, {"safe_regex": {"regex": "HTTP/1\\.0 [^-].*"}})


def unread_model(match: route_components_pb2.RouteMatch) -> route_components_pb2.RouteMatch:
    """Return the match restricted to requests with a content coding and a body that could not be parsed as JSON."""
    narrowed = route_components_pb2.RouteMatch()
    narrowed.CopyFrom(match)
    narrowed.headers.add(name=MODEL_HEADER, present_match=True, invert_match=True)
    for key in (CODED, UNREAD):
        narrowed.dynamic_metadata.add(filter=NAMESPACE, path=[{"key": key}], value={"present_match": True})
    return narrowed


def refused_method() -> dict[str, object]:
    """Return the header condition for methods that every proxy rejects."""
    regex = "|".join((*request_grammar.REFUSED_METHODS, f".*{request_grammar.UNFIT_METHOD}.*"))
    return _header(":method", {"safe_regex": {"regex": regex}})


def _regex(expression: str) -> dict[str, object]:
    return {"safe_regex": {"regex": expression}}


def several(header: str) -> dict[str, object]:
    """Return the header condition for several values. Envoy joins the lines of a header with commas."""
    return _header(header.lower(), {"contains": ","})


def method(*names: str) -> dict[str, object]:
    """Return the header condition that matches any of the methods."""
    if len(names) == 1:
        return _header(":method", {"exact": names[0]})
    return _header(":method", {"safe_regex": {"regex": "|".join(literal(name) for name in sorted(names))}})


def pinned(pin: Pin) -> dict[str, object]:
    """Return the header condition for a pin."""
    return cookie(pin.name, pin.value) if pin.kind == "cookie" else _header(pin.name.lower(), {"exact": pin.value})


def cookie(name: str, value: str) -> dict[str, object]:
    """Return the header condition for one cookie among others. Several `cookie` headers arrive joined."""
    regex = f"(?:.*[;,])? *{literal(name)}={literal(value)} *(?:[;,].*)?"
    return _header("cookie", {"safe_regex": {"regex": regex}})


def literal(text: str) -> str:
    """Return an RE2 expression that matches `text` and nothing else."""
    return "".join(c if c.isalnum() or c in "_ " or ord(c) > 127 else f"\\{c}" for c in text)


def _header(name: str, matcher: dict[str, object]) -> dict[str, object]:
    return {"name": name, "string_match": matcher}


def _model_regex(model: str) -> str:
    return f"{literal(model[:-1])}.*" if model.endswith("*") else literal(model)


def _query_regex(model: str) -> str:
    return f"{query_model.expression(model[:-1])}.*" if model.endswith("*") else query_model.expression(model)


def _string(regex: str) -> dict[str, object]:
    return {"string_match": {"safe_regex": {"regex": regex}}}


def _body_model(models: tuple[str, ...]) -> dict[str, object]:
    """Return the condition on the body's `model`, which the listener's JSON filter stores in the request's metadata."""
    matchers = [{"string_match": {"prefix": item[:-1]} if item.endswith("*") else {"exact": item}} for item in models]
    value = matchers[0] if len(matchers) == 1 else {"or_match": {"value_matchers": matchers}}
    return {"filter": NAMESPACE, "path": [{"key": "model"}], "value": value}
