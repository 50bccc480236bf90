"""The HTTP filters of a listener, and what a route says to them. Each is there only where something asks for it."""

from __future__ import annotations

from collections.abc import Sequence

from envoy.extensions.filters.http.buffer.v3 import buffer_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2
from envoy.extensions.filters.http.header_to_metadata.v3 import header_to_metadata_pb2
from envoy.extensions.filters.http.json_to_metadata.v3 import json_to_metadata_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from google.protobuf.any_pb2 import Any

from lbctl.ir.listeners import Listener
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets.envoy import affinity, auth, hashing, limits, matches, models, prompts, reading
from lbctl.targets.envoy.protos import extension, pack
from lbctl.targets.envoy.sources import NAMESPACE

BUFFER = "envoy.filters.http.buffer"
REQUEST_ID = "x-request-id"


def http_filters(view: View, listener: Listener, *, streams: bool = False) -> list[dict[str, object]]:
    """In the order in which a request passes them; the router ends them. Where the body decides about the route, it
    is read before anybody asks who may take that route; else nobody's body is held before he was let in. `streams`:
    for requests whose body does not end."""
    access = [*auth.http_filters(view, listener), *_limits(view, listener)]
    bodies = [] if streams else [*_max_body(view, listener), *_body_fields(view, listener)]
    return [
        *_request_id(listener),
        *([*bodies, *access] if _by_model(listener) else [*access, *bodies]),
        *prompts.http_filters(view, listener),
        *hashing.http_filters(view, listener),
        *affinity.http_filters(view, listener),
        extension("envoy.filters.http.router", router_pb2.Router(suppress_envoy_headers=True)),
    ]


def websocket(view: View, listener: Listener) -> dict[str, object]:
    """An `UpgradeConfig`: refused but by routes that allow it."""
    off: dict[str, object] = {"upgrade_type": "websocket", "enabled": {"value": False}}
    allowed = any(view.routes[rule.route].websocket for rule in listener.rules)
    return {**off, "filters": http_filters(view, listener, streams=True)} if allowed and _read(view, listener) else off


def per_route(view: View, listener: Listener, route: Route) -> dict[str, Any]:
    """What the filters do otherwise on this route, whoever takes it."""
    found: dict[str, Any] = {}
    if listener.max_body is not None and _streams(view, route):
        found[BUFFER] = pack(buffer_pb2.BufferPerRoute(disabled=True))
    return {**found, **prompts.per_route(view, route)}


def unrouted(view: View, listener: Listener) -> dict[str, Any]:
    """What the filters do where no pool takes the request. What a route holds of a body counts for pools alone, and
    many a request has none before its body was read."""
    if listener.max_body is not None or not _read(view, listener):
        return {}
    whole = buffer_pb2.BufferPerRoute(buffer={"max_request_bytes": {"value": reading.HELD}})
    return {BUFFER: pack(whole)}


def per_table(view: View, listener: Listener) -> dict[str, Any]:
    """What the filters hold for all routes of the table together."""
    routes = _limited(view, listener)
    return {limits.FILTER: pack(limits.limited(routes))} if routes else {}


def _request_id(listener: Listener) -> list[dict[str, object]]:
    """Envoy's own id is always in x-request-id; another header name gets a copy, both ways."""
    if listener.request_id == REQUEST_ID:
        return []
    copy = {
        "header": {"key": listener.request_id, "value": f"%REQ({REQUEST_ID})%"},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }
    mutations = {"request_mutations": [{"append": copy}], "response_mutations": [{"append": copy}]}
    config = header_mutation_pb2.HeaderMutation(mutations=mutations)
    return [extension("envoy.filters.http.header_mutation", config)]


def _max_body(view: View, listener: Listener) -> list[dict[str, object]]:
    """413 as soon as more arrives; the request is held until it is whole."""
    if listener.max_body is not None:
        return [extension(BUFFER, buffer_pb2.Buffer(max_request_bytes={"value": listener.max_body}))]
    idle = extension(BUFFER, buffer_pb2.Buffer(max_request_bytes={"value": reading.HELD}))
    return [{**idle, "disabled": True}] if _read(view, listener) else []


def _streams(view: View, route: Route) -> bool:
    """A request that is a stream cannot be held until it ends."""
    if route.websocket:
        return True
    return isinstance(route.action, Forward) and any(view.pools[name].protocol == "grpc" for name in route.action.pools)


def _limits(view: View, listener: Listener) -> list[dict[str, object]]:
    return [extension(limits.FILTER, limits.idle())] if _limited(view, listener) else []


def _limited(view: View, listener: Listener) -> list[Route]:
    """By name."""
    routes = (view.routes[name] for name in sorted({rule.route for rule in listener.rules}))
    return [route for route in routes if any(item.requests for item in route.rate_limits)]


def _body_fields(view: View, listener: Listener) -> list[dict[str, object]]:
    rules = _read(view, listener)
    if not rules:
        return []
    types = {"allow_content_types_regex": {"regex": reading.JSON}, "allow_empty_content_type": True}
    config = json_to_metadata_pb2.JsonToMetadata(request_rules={"rules": rules, **types})
    found = [extension("envoy.filters.http.json_to_metadata", config)]
    return [*found, *models.http_filters(listener), _model_header()] if _by_model(listener) else found


def _read(view: View, listener: Listener) -> list[dict[str, object]]:
    """What routes and hashes of this listener want to know of JSON bodies: `model` and hash keys."""
    model = [_field("model", ["model"])] if _by_model(listener) else []
    return [*model, *(_field(hashing.field(key), json_path(key.name)) for key in hashing.body_fields(view, listener))]


def _model_header() -> dict[str, object]:
    """What the access log calls the model where the header names it."""
    told = {"metadata_namespace": NAMESPACE, "key": "model"}
    config = header_to_metadata_pb2.Config(request_rules=[{"header": matches.MODEL_HEADER, "on_header_present": told}])
    return extension("envoy.filters.http.header_to_metadata", config)


def _by_model(listener: Listener) -> bool:
    return any(rule.models for rule in listener.rules)


def _field(name: str, path: Sequence[str]) -> dict[str, object]:
    return {
        "selectors": [{"key": step} for step in path],
        "on_present": {"metadata_namespace": NAMESPACE, "key": name},
    }


def json_path(name: str) -> list[str]:
    """`$.user.id` → user, id."""
    return name.removeprefix("$.").split(".")


def _pools(view: View, listener: Listener) -> list[str]:
    actions = [view.routes[rule.route].action for rule in listener.rules]
    return sorted({name for action in actions if isinstance(action, Forward) for name in action.pools})
