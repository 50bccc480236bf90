"""The HTTP filters of a listener and their configuration by route. A filter is added only if it is needed."""

from __future__ import annotations

from collections.abc import Sequence

from envoy.config.route.v3 import route_components_pb2
from envoy.extensions.compression.brotli.decompressor.v3 import brotli_pb2
from envoy.extensions.compression.gzip.decompressor.v3 import gzip_pb2
from envoy.extensions.compression.zstd.decompressor.v3 import zstd_pb2
from envoy.extensions.filters.http.buffer.v3 import buffer_pb2
from envoy.extensions.filters.http.decompressor.v3 import decompressor_pb2
from envoy.extensions.filters.http.header_mutation.v3 import header_mutation_pb2
from envoy.extensions.filters.http.header_to_metadata.v3 import header_to_metadata_pb2
from envoy.extensions.filters.http.json_to_metadata.v3 import json_to_metadata_pb2
from envoy.extensions.filters.http.router.v3 import router_pb2
from google.protobuf.any_pb2 import Any

from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets.envoy import access as clients
from lbctl.targets.envoy import (
    access_log,
    affinity,
    auth,
    external,
    hashing,
    header_text,
    limits,
    matches,
    models,
    own_filters,
    picking,
    prompts,
    reading,
)
from lbctl.targets.envoy.protos import extension, pack
from lbctl.targets.envoy.sources import NAMESPACE

BUFFER = "envoy.filters.http.buffer"
_ASKED_ABOUT = "lbctl.body_asked_about"
"""Filter that limits request bodies before an authorization service is queried."""
REQUEST_ID = "x-request-id"
_DECOMPRESSOR = "lbctl.decompressor"
_LIBRARIES = {
    "gzip": gzip_pb2.Gzip(max_inflate_ratio={"value": 1000}),
    "zstd": zstd_pb2.Zstd(),
    "brotli": brotli_pb2.Brotli(),
}
"""Library for each coding in `reading.CODINGS`. The size of their output is limited together with the body."""


def http_filters(view: View, listener: Listener, *, streams: bool = False) -> list[dict[str, object]]:
    """Return the filters in the order in which a request passes them, ending with the router.

    If routing depends on the body, the body is read before authentication. Otherwise, bodies are not buffered before
    their requests have been authenticated, unless a service performs the authentication. `streams` selects the filters
    for requests whose body does not end.
    """
    access = [*_auth(view, listener), *_limits(view, listener)]
    asked_about = [] if streams else _body_asked_about(view, listener)
    bodies = (
        [] if streams else [*_decompressors(view, listener), *_max_body(view, listener), *_body_fields(view, listener)]
    )
    return [
        *access_log.filters(view, listener),
        *header_text.filters(view, listener),
        *_request_id(listener),
        *(bodies if _by_model(listener) else []),
        *clients.http_filters(view, listener),
        *asked_about,
        *access,
        *([] if _by_model(listener) else bodies),
        *prompts.http_filters(view, listener),
        *hashing.http_filters(view, listener),
        *affinity.http_filters(view, listener),
        *picking.http_filters(view, listener),
        *own_filters.filters(view.proxy),
        extension("envoy.filters.http.router", router_pb2.Router(suppress_envoy_headers=True)),
    ]


def websocket(view: View, listener: Listener) -> dict[str, object]:
    """Return an `UpgradeConfig` that rejects WebSockets except on routes that allow them."""
    off: dict[str, object] = {"upgrade_type": "websocket", "enabled": {"value": False}}
    allowed = any(view.routes[rule.route].websocket for rule in listener.rules)
    if not allowed or not _body_rules(view, listener):
        return off
    return {**off, "filters": http_filters(view, listener, streams=True)}


def per_route(view: View, listener: Listener, rule: Rule, route: Route) -> dict[str, Any]:
    """Return the filter configuration of a route, for one of its rules."""
    configs: dict[str, Any] = {}
    if _body_rules(view, listener) and not _reads_body(view, listener, rule, route):
        readers = [*_decompressors(view, listener), *_body_readers(view, listener)]
        configs |= {str(item["name"]): pack(route_components_pb2.FilterConfig(disabled=True)) for item in readers}
    if listener.max_body is not None and _streams(view, route):
        configs[BUFFER] = pack(buffer_pb2.BufferPerRoute(disabled=True))
    if _limits_before_service(view, listener, route):
        configs[_ASKED_ABOUT] = pack(buffer_pb2.BufferPerRoute(buffer=_limited_body(listener)))
    return {**configs, **external.per_route(route), **prompts.per_route(view, route)}


def held(view: View, listener: Listener) -> int:
    """Return the number of bytes that a filter may buffer if it needs the whole body.

    The filter may need the body to read it, to measure it, or for a retry.
    """
    return reading.held(listener) if _body_rules(view, listener) else max(reading.HELD, listener.max_body or 0)


def unrouted(view: View, listener: Listener) -> dict[str, Any]:
    """Return the filter configuration of routes that Envoy responds to itself.

    A route's buffer limit takes effect only if a pool serves the request, and many requests match no such route before
    their body is read.
    """
    if listener.max_body is not None or not _body_rules(view, listener):
        return {}
    limit = buffer_pb2.BufferPerRoute(buffer={"max_request_bytes": {"value": reading.held(listener)}})
    return {BUFFER: pack(limit)}


def per_table(view: View, listener: Listener) -> dict[str, Any]:
    """Return the filter configuration that all routes of the table share."""
    routes = _limited(view, listener)
    limited = {limits.FILTER: pack(limits.limited(routes))} if routes else {}
    return {**external.per_table(view, listener), **picking.per_table(view, listener), **limited}


def _request_id(listener: Listener) -> list[dict[str, object]]:
    """Return the filter that copies the request ID to the configured header of the request and the response.

    Envoy's own ID is always in x-request-id.
    """
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
    """Return the filter that buffers requests until they are complete, and returns 413 when one exceeds the limit."""
    if listener.max_body is not None:
        return [extension(BUFFER, _limited_body(listener))]
    idle = extension(BUFFER, buffer_pb2.Buffer(max_request_bytes={"value": reading.held(listener)}))
    return [{**idle, "disabled": True}] if _body_rules(view, listener) else []


def _body_asked_about(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the filter that limits bodies on routes with an authorization service; these routes configure it.

    While a filter waits, the part of the body received so far reaches later filters in one piece, which a limiting
    filter does not count. On these routes, the filter is therefore placed before the query.
    """
    if not any(_limits_before_service(view, listener, view.routes[rule.route]) for rule in listener.rules):
        return []
    return [{**extension(_ASKED_ABOUT, _limited_body(listener)), "disabled": True}]


def _limits_before_service(view: View, listener: Listener, route: Route) -> bool:
    asks = bool(external.services([route])) and not _by_model(listener)
    return asks and listener.max_body is not None and not _streams(view, route)


def _limited_body(listener: Listener) -> buffer_pb2.Buffer:
    return buffer_pb2.Buffer(max_request_bytes={"value": listener.max_body})


def _streams(view: View, route: Route) -> bool:
    """Return whether the route accepts streams, which cannot be buffered until they end."""
    if route.websocket:
        return True
    return isinstance(route.action, Forward) and any(view.pools[name].protocol == "grpc" for name in route.action.pools)


def _auth(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the authentication filters.

    Filters that query services come first, because the others read the services' responses.
    """
    return [*external.http_filters(view, listener), *auth.http_filters(view, listener)]


def _limits(view: View, listener: Listener) -> list[dict[str, object]]:
    return [extension(limits.FILTER, limits.idle())] if _limited(view, listener) else []


def _limited(view: View, listener: Listener) -> list[Route]:
    """Return the listener's rate-limited routes, sorted by name."""
    routes = (view.routes[name] for name in sorted({rule.route for rule in listener.rules}))
    return [route for route in routes if any(item.requests for item in route.rate_limits)]


def _body_fields(view: View, listener: Listener) -> list[dict[str, object]]:
    return [*_body_readers(view, listener), *([_model_header()] if _by_model(listener) else [])]


def _body_readers(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the filters that buffer bodies in order to read them."""
    rules = _body_rules(view, listener)
    if not rules:
        return []
    types = {"allow_content_types_regex": {"regex": reading.JSON}, "allow_empty_content_type": True}
    config = json_to_metadata_pb2.JsonToMetadata(request_rules={"rules": rules, **types})
    clear_model = models.http_filters(listener) if _by_model(listener) else []
    return [extension("envoy.filters.http.json_to_metadata", config), *clear_model]


def _decompressors(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the filters that record and decode the content coding of a body before it is read.

    Replicas receive the decoded body.
    """
    if not _body_rules(view, listener):
        return []
    off = {
        "common_config": {"enabled": {"default_value": {"value": False}, "runtime_key": "lbctl.decompress_responses"}}
    }
    coded = {"metadata_namespace": NAMESPACE, "key": matches.CODED}
    rule = {"header": "content-encoding", "on_header_present": coded}
    return [
        extension(f"{_DECOMPRESSOR}.note", header_to_metadata_pb2.Config(request_rules=[rule])),
        *(
            extension(
                f"{_DECOMPRESSOR}.{name}",
                decompressor_pb2.Decompressor(
                    decompressor_library=extension(f"envoy.compression.{name}.decompressor", library),
                    request_direction_config={"advertise_accept_encoding": {"value": False}},
                    response_direction_config=off,
                ),
            )
            for name, library in _LIBRARIES.items()
        ),
    ]


def _reads_body(view: View, listener: Listener, rule: Rule, route: Route) -> bool:
    """Return whether handling a request for this rule depends on the content of its body."""
    pools = route.action.pools if isinstance(route.action, Forward) else ()
    hashes = any(key.kind == "json_body" for key in hashing.keys(view, pools))
    return hashes or (_by_model(listener) and reading.reads_body(listener, rule))


def _body_rules(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the rules that extract the values that the listener needs from JSON bodies: `model` and hash keys."""
    unread = {"metadata_namespace": NAMESPACE, "key": matches.UNREAD, "value": {"bool_value": True}}
    model = [{**_field("model", ["model"]), "on_error": unread}] if _by_model(listener) else []
    return [*model, *(_field(hashing.field(key), json_path(key.name)) for key in hashing.body_fields(view, listener))]


def _model_header() -> dict[str, object]:
    """Return the filter that makes the model in the header x-model available to the access log."""
    model_metadata = {"metadata_namespace": NAMESPACE, "key": "model"}
    config = header_to_metadata_pb2.Config(
        request_rules=[{"header": matches.MODEL_HEADER, "on_header_present": model_metadata}]
    )
    return extension("envoy.filters.http.header_to_metadata", config)


def _by_model(listener: Listener) -> bool:
    return any(rule.models for rule in listener.rules)


def _field(name: str, path: Sequence[str]) -> dict[str, object]:
    return {
        "selectors": [{"key": step} for step in path],
        "on_present": {"metadata_namespace": NAMESPACE, "key": name},
    }


def json_path(name: str) -> list[str]:
    """Split a JSON path into its keys: `$.user.id` becomes `user` and `id`."""
    return name.removeprefix("$.").split(".")
