"""The access log of a listener: the documented fields, written as Envoy's command operators.

A field is `null` if the request ended before the field's value was known.
"""

from __future__ import annotations

from envoy.extensions.access_loggers.file.v3 import file_pb2
from envoy.extensions.access_loggers.filters.cel.v3 import cel_pb2
from envoy.extensions.access_loggers.grpc.v3 import als_pb2 as grpc_pb2
from envoy.extensions.access_loggers.stream.v3 import stream_pb2
from envoy.extensions.filters.http.set_filter_state.v3 import set_filter_state_pb2

from lbctl.ir.listeners import Listener
from lbctl.ir.rollout_metrics import ERRORS_OF, judged, measured
from lbctl.ir.routes import Forward
from lbctl.ir.snapshot import View
from lbctl.targets.envoy import auth
from lbctl.targets.envoy.bootstrap import CONTROL_PLANE
from lbctl.targets.envoy.protos import extension, struct
from lbctl.targets.envoy.sources import NAMESPACE

_TS = "%START_TIME(%Y-%m-%dT%H:%M:%S.%3fZ)%"
_PATH = "%PATH(NQ:PATH)%"
_FIRST_PATH = "lbctl.path"
_PATH_AS_SENT = f"%FILTER_STATE({_FIRST_PATH}:PLAIN)%"
"""The path as sent by the client, for listeners with routes that rewrite it (`filters`)."""
_CLUSTER = f"xds.cluster_metadata.filter_metadata['{NAMESPACE}']"
_LOCALITY = "xds.upstream_host_locality_metadata"
_HOST = f"{_LOCALITY}.filter_metadata['{NAMESPACE}']"
_ROUTE = f"xds.route_metadata.filter_metadata['{NAMESPACE}']"
_SPLIT = f"{_ROUTE}['split'] == true"
_OWN = "response.code >= 500 && (!has(upstream.address) || response.code_details.contains('{overflow'))"
"""Expression for an error that Envoy generated itself because it had no replica or because a limit rejected the
request."""
POOL = f"has({_LOCALITY}) ? {_HOST}['pool'] : {_CLUSTER}['pool']"
"""Expression for the pool of a request: its replica's pool, if a replica has been chosen."""
_FIELDS = {
    "ts": _TS,
    "request_id": "%REQ(X-REQUEST-ID)%",
    "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    "tenant": f"%DYNAMIC_METADATA({NAMESPACE}:{auth.TENANT})%",
    "method": "%REQ(:METHOD)%",
    "route": "%ROUTE_NAME%",
    "pool": f"%TYPED_CEL({POOL})%",
    "variant": f"%TYPED_CEL({_SPLIT} ? {_CLUSTER}['variant'] : null)%",
    "replica": "%UPSTREAM_HOST_NAME%",
    "model": f"%DYNAMIC_METADATA({NAMESPACE}:model)%",
    "status": "%TYPED_CEL(has(response.code) ? response.code : 499)%",
    "bytes_in": "%BYTES_RECEIVED%",
    "bytes_out": "%BYTES_SENT%",
    "t_queue": "%COMMON_DURATION(DS_RX_BEG:US_TX_BEG:ms)%",
    "t_connect": "%COMMON_DURATION(US_CX_BEG:US_CX_END:ms)%",
    "t_first_byte": "%COMMON_DURATION(DS_RX_BEG:US_RX_BEG:ms)%",
    "t_total": "%DURATION%",
    "retries": "%TYPED_CEL(upstream.request_attempt_count > 0u ? upstream.request_attempt_count - 1u : 0u)%",
    "flags": "%RESPONSE_FLAGS%",
}
_BUFFER = 1 << 17
"""Number of bytes of log entries that a worker collects, for up to one second, before it sends a message. Sending a
message costs more than the entries in it."""
_WITHOUT_ERROR = {
    "status_code_filter": {
        "comparison": {"op": "LE", "value": {"default_value": 399, "runtime_key": "lbctl.latencies.most_status"}}
    }
}
"""Responses below 400, and requests whose clients disconnected before the response (0)."""
_SAMPLED = {
    "runtime_filter": {
        "runtime_key": "lbctl.latencies.sampled",
        "percent_sampled": {"numerator": 25},
        "use_independent_randomness": True,
    }
}
_STREAMS = {"/dev/stdout": "stdout", "/dev/stderr": "stderr"}


def filters(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the filter that saves the client's original path for the log, if a route rewrites the path."""
    if listener.access_log.format == "none" or not _rewrites(view, listener):
        return []
    value = {
        "object_key": _FIRST_PATH,
        "factory_key": "envoy.string",
        "format_string": {"text_format_source": {"inline_string": _PATH}},
    }
    return [extension("envoy.filters.http.set_filter_state", set_filter_state_pb2.Config(on_request_headers=[value]))]


def _rewrites(view: View, listener: Listener) -> bool:
    routes = [view.routes[rule.route] for rule in listener.rules]
    if any(route.rewrite is not None and route.rewrite.path_prefix is not None for route in routes):
        return True
    apis = (
        view.pools[name].upstream
        for route in routes
        if isinstance(route.action, Forward)
        for name in route.action.pools
    )
    return any(api is not None and api.path_prefix for api in apis)


def access_logs(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the access loggers of a connection manager; empty if the fleet disables the access log."""
    return [{**item, **_condition(view, listener)} for item in _loggers(view, listener)]


def _condition(view: View, listener: Listener) -> dict[str, object]:
    """Return the filter that omits requests to routes without an access log; empty if all routes have one."""
    silent = sorted({rule.route for rule in listener.rules if not view.routes[rule.route].logged})
    if not silent:
        return {}
    names = ", ".join(f"'{name}'" for name in silent)
    return _filter(f"!(xds.route_name in [{names}])")


def _filter(expression: str) -> dict[str, object]:
    condition = extension("envoy.access_loggers.extension_filters.cel", cel_pb2.ExpressionFilter(expression=expression))
    return {"filter": {"extension_filter": condition}}


def _loggers(view: View, listener: Listener) -> list[dict[str, object]]:
    log = listener.access_log
    if log.format == "none":
        return []
    path = _PATH_AS_SENT if _rewrites(view, listener) else _PATH
    log_format = _json(view, listener, path) if log.format == "json" else _text(view, listener, path)
    stream = _STREAMS.get(log.path or "/dev/stdout")
    if stream == "stdout":
        return [extension("envoy.access_loggers.stdout", stream_pb2.StdoutAccessLog(log_format=log_format))]
    if stream == "stderr":
        return [extension("envoy.access_loggers.stderr", stream_pb2.StderrAccessLog(log_format=log_format))]
    return [extension("envoy.access_loggers.file", file_pb2.FileAccessLog(path=log.path, log_format=log_format))]


def request_log(view: View) -> list[dict[str, object]]:
    """Return the loggers that report requests to the control plane; empty if no pool can be measured.

    One logger reports requests without an error for the sake of their latencies: all of them during a rollout analysis,
    otherwise a sample. For each pool under analysis, another logger reports the requests for which Envoy generated an
    error, because its load reports omit them. Envoy buffers these entries and drops them if they are not read in time.
    """
    if not view.pools:
        return []
    routes = view.routes.values()
    own = (
        {**_sent(ERRORS_OF + pool), **_filter(f"{_CLUSTER}['pool'] == '{pool}' && {_OWN}")}
        for pool in sorted(judged(routes))
    )
    latencies = _WITHOUT_ERROR if measured(routes) else {"and_filter": {"filters": [_SAMPLED, _WITHOUT_ERROR]}}
    return [{**_sent("lbctl"), "filter": latencies}, *own]


def _sent(log: str) -> dict[str, object]:
    common = {
        "log_name": log,
        "grpc_service": {"envoy_grpc": {"cluster_name": CONTROL_PLANE}},
        "transport_api_version": "V3",
        "buffer_size_bytes": {"value": _BUFFER},
    }
    return extension("envoy.access_loggers.http_grpc", grpc_pb2.HttpGrpcAccessLogConfig(common_config=common))


def _json(view: View, listener: Listener, path: str) -> dict[str, object]:
    fields = {**_fields(view, listener), "path": path, "listener": listener.name}
    return {"json_format": struct(fields)}


def _fields(view: View, listener: Listener) -> dict[str, str | None]:
    """Return the cheapest source of each field for the listener's routes; None if no request has the field.

    Expressions are the most expensive, followed by metadata. A cluster has its pool's name unless it is restricted to
    certain regions.
    """
    routes = [view.routes[rule.route] for rule in listener.rules]
    forwards = [(route, route.action) for route in routes if isinstance(route.action, Forward)]
    fields: dict[str, str | None] = dict(_FIELDS)
    if not any(route.auth for route in routes):
        fields["tenant"] = None
    if not any(rule.models for rule in listener.rules):
        fields["model"] = None
    splits = [len(action.shares) > 1 for _, action in forwards]
    if any(action.fallback for _, action in forwards):
        return fields if any(splits) else {**fields, "variant": None}
    of_regions = any(route.regions for route, _ in forwards)
    fields["pool"] = f"%CLUSTER_METADATA({NAMESPACE}:pool)%" if of_regions else "%UPSTREAM_CLUSTER%"
    if not any(splits):
        fields["variant"] = None
    elif all(splits):
        fields["variant"] = f"%CLUSTER_METADATA({NAMESPACE}:variant)%"
    return fields


def _text(view: View, listener: Listener, path: str) -> dict[str, object]:
    own = _fields(view, listener)
    fields = (
        _TS,
        _FIELDS["client"],
        listener.name,
        _FIELDS["method"],
        path,
        _FIELDS["route"],
        str(own["pool"]),
        _FIELDS["replica"],
        _FIELDS["status"],
        f"{_FIELDS['t_total']}ms",
        _FIELDS["flags"],
        _FIELDS["request_id"],
    )
    return {"text_format_source": {"inline_string": " ".join(fields) + "\n"}}
