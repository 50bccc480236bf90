"""The access log of a listener: the fields that lbctl promises, written as Envoy's command operators.

A field is `null` where a request did not get that far.
"""

from __future__ import annotations

from envoy.extensions.access_loggers.file.v3 import file_pb2
from envoy.extensions.access_loggers.stream.v3 import stream_pb2

from lbctl.ir.listeners import Listener
from lbctl.targets.envoy import auth
from lbctl.targets.envoy.protos import extension, struct
from lbctl.targets.envoy.sources import NAMESPACE

_TS = "%START_TIME(%Y-%m-%dT%H:%M:%S.%3fZ)%"
_PATH = "%PATH(NQ:ORIG_OR_PATH)%"
_CLUSTER = f"xds.cluster_metadata.filter_metadata['{NAMESPACE}']"
_LOCALITY = "xds.upstream_host_locality_metadata"
_HOST = f"{_LOCALITY}.filter_metadata['{NAMESPACE}']"
_ROUTE = f"xds.route_metadata.filter_metadata['{NAMESPACE}']"
_SPLIT = f"{_ROUTE}['split'] == true"
_FIELDS = {
    "ts": _TS,
    "request_id": "%REQ(X-REQUEST-ID)%",
    "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    "tenant": f"%DYNAMIC_METADATA({NAMESPACE}:{auth.TENANT})%",
    "method": "%REQ(:METHOD)%",
    "path": _PATH,
    "route": "%ROUTE_NAME%",
    "pool": f"%TYPED_CEL(has({_LOCALITY}) ? {_HOST}['pool'] : {_CLUSTER}['pool'])%",
    "variant": f"%TYPED_CEL({_SPLIT} ? {_CLUSTER}['variant'] : null)%",
    "replica": "%UPSTREAM_HOST_NAME%",
    "model": f"%DYNAMIC_METADATA({NAMESPACE}:model)%",
    "status": "%RESPONSE_CODE%",
    "bytes_in": "%BYTES_RECEIVED%",
    "bytes_out": "%BYTES_SENT%",
    "t_queue": "%COMMON_DURATION(DS_RX_BEG:US_TX_BEG:ms)%",
    "t_connect": "%COMMON_DURATION(US_CX_BEG:US_CX_END:ms)%",
    "t_first_byte": "%COMMON_DURATION(DS_RX_BEG:US_RX_BEG:ms)%",
    "t_total": "%DURATION%",
    "retries": "%TYPED_CEL(upstream.request_attempt_count > 0u ? upstream.request_attempt_count - 1u : 0u)%",
    "flags": "%RESPONSE_FLAGS%",
}
_STREAMS = {"/dev/stdout": "stdout", "/dev/stderr": "stderr"}


def access_logs(listener: Listener) -> list[dict[str, object]]:
    """Return the access loggers of a connection manager; the list is empty where the fleet wants no log."""
    log = listener.access_log
    if log.format == "none":
        return []
    log_format = _json(listener) if log.format == "json" else _text(listener)
    stream = _STREAMS.get(log.path)
    if stream == "stdout":
        return [extension("envoy.access_loggers.stdout", stream_pb2.StdoutAccessLog(log_format=log_format))]
    if stream == "stderr":
        return [extension("envoy.access_loggers.stderr", stream_pb2.StderrAccessLog(log_format=log_format))]
    return [extension("envoy.access_loggers.file", file_pb2.FileAccessLog(path=log.path, log_format=log_format))]


def _json(listener: Listener) -> dict[str, object]:
    fields = {**_FIELDS, "listener": listener.name}
    return {"json_format": struct(fields)}


def _text(listener: Listener) -> dict[str, object]:
    fields = (
        _TS,
        _FIELDS["client"],
        listener.name,
        _FIELDS["method"],
        _PATH,
        _FIELDS["route"],
        _FIELDS["pool"],
        _FIELDS["replica"],
        _FIELDS["status"],
        f"{_FIELDS['t_total']}ms",
        _FIELDS["flags"],
        _FIELDS["request_id"],
    )
    return {"text_format_source": {"inline_string": " ".join(fields) + "\n"}}
