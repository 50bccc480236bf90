"""The HTTP filters of a listener, and what a route says to them. Each is there only where something asks for it."""

from __future__ import annotations

from envoy.extensions.filters.http.buffer.v3 import buffer_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2
from envoy.extensions.filters.http.json_to_metadata.v3 import json_to_metadata_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from google.protobuf.any_pb2 import Any

from lbctl.ir.listeners import Listener
from lbctl.ir.pools import HashKey
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets.envoy.wire import NAMESPACE, extension, pack

BUFFER = "envoy.filters.http.buffer"
_JSON = r"(?i)application/(.*\+)?json(\s*;.*)?"
REQUEST_ID = "x-request-id"


def http_filters(listener: Listener) -> list[dict[str, object]]:
    """In the order in which a request passes them; the router ends them."""
    return [
        *_request_id(listener),
        *_max_body(listener),
        *_model(listener),
        extension("envoy.filters.http.router", router_pb2.Router(suppress_envoy_headers=True)),
    ]


def per_route(view: View, listener: Listener, route: Route) -> dict[str, Any]:
    """What the filters do otherwise on this route."""
    found: dict[str, Any] = {}
    if listener.max_body is not None and _streams(view, route):
        found[BUFFER] = pack(buffer_pb2.BufferPerRoute(disabled=True))
    return found


def hash_header(key: HashKey) -> str:
    """The header that carries a hash key which stands in the body."""
    return f"x-lbctl-hash-{key.kind.replace('_', '-')}"


def _request_id(listener: Listener) -> list[dict[str, object]]:
    """Envoy's own id is always in x-request-id; another header name gets a copy, both ways."""
    if listener.request_id == REQUEST_ID:
        return []
    copy = {"header": {"key": listener.request_id, "value": f"%REQ({REQUEST_ID})%"},
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
    mutations = {"request_mutations": [{"append": copy}], "response_mutations": [{"append": copy}]}
    config = header_mutation_pb2.HeaderMutation(mutations=mutations)
    return [extension("envoy.filters.http.header_mutation", config)]


def _max_body(listener: Listener) -> list[dict[str, object]]:
    """413 as soon as more arrives; the request is held until it is whole."""
    if listener.max_body is None:
        return []
    return [extension(BUFFER, buffer_pb2.Buffer(max_request_bytes={"value": listener.max_body}))]


def _streams(view: View, route: Route) -> bool:
    """A request that is a stream cannot be held until it ends."""
    if route.websocket:
        return True
    return isinstance(route.action, Forward) and any(
        view.pools[name].protocol == "grpc" for name in route.action.pools
    )


def _model(listener: Listener) -> list[dict[str, object]]:
    """The `model` of every JSON body, for the routes of this listener that ask for it."""
    if not any(rule.models for rule in listener.rules):
        return []
    rule = {"selectors": [{"key": "model"}], "on_present": {"metadata_namespace": NAMESPACE, "key": "model"}}
    rules = {"rules": [rule], "allow_content_types_regex": {"regex": _JSON}, "allow_empty_content_type": True}
    config = json_to_metadata_pb2.JsonToMetadata(request_rules=rules)
    return [extension("envoy.filters.http.json_to_metadata", config)]
