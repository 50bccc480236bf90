"""Health of replicas: active health checks and outlier detection."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from envoy.config.cluster.v3 import outlier_detection_pb2
from envoy.config.core.v3 import health_check_pb2
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2

from lbctl.ir.pools import ActiveCheck, GrpcCheck, HttpCheck, PassiveCheck, Pool
from lbctl.targets.envoy.protos import duration, struct

IN_CLEAR: Mapping[str, str | bool] = {"checks": "in_clear"}
"""Criteria with which a check selects its cluster's socket without TLS in `transport_socket_matches`."""
_BODY = 65_536
"""Maximum number of bytes of a check's response that are searched for `body_contains`."""


def health_check(pool: Pool, check: ActiveCheck, key: tuple[str, str] | None) -> health_check_pb2.HealthCheck:
    """Return the active health check of a pool. `key`: name and value of an additional header.

    Unhealthy replicas and idle pools are checked as often as all others. By default, Envoy would wait a minute.
    """
    interval = duration(check.interval)
    return health_check_pb2.HealthCheck(
        timeout=duration(check.timeout),
        interval=interval,
        interval_jitter_percent=round(check.jitter),
        unhealthy_threshold={"value": check.unhealthy_threshold},
        healthy_threshold={"value": check.healthy_threshold},
        no_traffic_interval=interval,
        unhealthy_interval=interval,
        transport_socket_match_criteria=struct(IN_CLEAR) if in_clear(pool) else None,
        **_probe(pool, check, key),
    )


def in_clear(pool: Pool) -> bool:
    """Return whether the health checks of a TLS pool are sent without TLS."""
    return pool.tls is not None and pool.active is not None and pool.active.port is not None


def _probe(pool: Pool, check: ActiveCheck, key: tuple[str, str] | None) -> dict[str, object]:
    headers = [_header(*key)] if key else []
    if isinstance(check.probe, HttpCheck):
        return {"http_health_check": {**_http(pool, check, check.probe), "request_headers_to_add": headers}}
    if isinstance(check.probe, GrpcCheck) and pool.protocol != "http1":
        return {"grpc_health_check": {"service_name": check.probe.service, "initial_metadata": headers}}
    return {"tcp_health_check": {}}


def _header(name: str, value: str) -> dict[str, object]:
    """Return a header of a check. Envoy interprets its value as a format string."""
    return {
        "header": {"key": name, "value": value.replace("%", "%%")}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }  # fmt: skip


def _http(pool: Pool, check: ActiveCheck, probe: HttpCheck) -> dict[str, object]:
    """Return the HTTP check.

    A separate health port uses HTTP/1.1, as model servers do; otherwise the check uses the pool's protocol.
    """
    fields: dict[str, object] = {
        "path": probe.path,
        "host": probe.host or pool.name,
        "expected_statuses": [{"start": first, "end": last + 1} for first, last in _runs(probe.statuses)],
        "codec_client_type": "HTTP1" if pool.protocol == "http1" or check.port is not None else "HTTP2",
    }
    if probe.body_contains:
        fields["receive"] = [{"text": probe.body_contains.encode().hex()}]
        fields["response_buffer_size"] = {"value": _BODY}
    return fields


def _runs(statuses: Collection[int]) -> list[tuple[int, int]]:
    """Join consecutive numbers into ranges: 200, 201, 204 become (200, 201), (204, 204)."""
    ranges: list[tuple[int, int]] = []
    for status in sorted(set(statuses)):
        if ranges and status == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], status)
        else:
            ranges.append((status, status))
    return ranges


def outlier_detection(check: PassiveCheck) -> outlier_detection_pb2.OutlierDetection:
    """Return the outlier detection settings.

    Detectors that Envoy enables by default are off unless the fleet configures them. Replicas may be ejected from a
    pool of any size; Envoy's minimum of five hosts is meant for statistics over many hosts. A passing `/health` check
    does not readmit a replica that returns 500 for everything else.
    """
    return outlier_detection_pb2.OutlierDetection(
        interval=duration(check.error_window),
        base_ejection_time=duration(check.ejection_time),
        max_ejection_time=duration(check.ejection_time),
        max_ejection_percent={"value": round(check.max_ejection)},
        consecutive_5xx={"value": check.consecutive_5xx},
        enforcing_consecutive_5xx={"value": 100},
        enforcing_consecutive_gateway_failure={"value": 0},
        enforcing_success_rate={"value": 0},
        split_external_local_origin_errors=True,
        consecutive_local_origin_failure={"value": check.consecutive_connect_failures},
        enforcing_consecutive_local_origin_failure={"value": 100},
        enforcing_local_origin_success_rate={"value": 0},
        failure_percentage_threshold={"value": round(check.error_percent)},
        enforcing_failure_percentage={"value": 100},
        enforcing_failure_percentage_local_origin={"value": 0},
        failure_percentage_minimum_hosts={"value": 1},
        failure_percentage_request_volume={"value": check.error_min_requests},
        successful_active_health_check_uneject_host={"value": False},
    )


def faults(busy_statuses: Sequence[int]) -> http_protocol_options_pb2.HttpProtocolOptions.OutlierDetection:
    """Return the responses that passive checks treat as faults: all 5xx responses except a busy replica's statuses."""
    ranges = [{"start": first, "end": last + 1} for first, last in _runs(set(range(500, 600)) - set(busy_statuses))]
    matchers = [
        {"http_response_headers_match": {"headers": [{"name": ":status", "range_match": item}]}} for item in ranges
    ]
    matcher = matchers[0] if len(matchers) == 1 else {"or_match": {"rules": matchers}}
    return http_protocol_options_pb2.HttpProtocolOptions.OutlierDetection(error_matcher=matcher)
