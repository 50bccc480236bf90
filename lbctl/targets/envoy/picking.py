"""Uses the picker to select a replica for each request.

This module contains the filters that query the picker, the picker's clusters, and the policy that applies its choice.
On routes to a pool that uses the `pick` algorithm, the `ext_authz` filter queries the picker. If the picker fails, the
filter lets the request pass. Envoy decides which filters to run before it reads the model from the body. The filter is
therefore always present, and routes without the picker turn it off. The picker's response becomes metadata, which
clients cannot write. If the response names a host outside the cluster, or does not arrive, the cluster uses its policy
without the picker. A Lua filter reports the first byte of a response's body to the picker, and Envoy's access log
reports the end of the request.

The picker responds to this query immediately. If a request has to wait in a queue, the metadata turns on a second
filter, whose query is answered later. If the picker hangs, only waiting requests wait for the longer timeout of this
query, because Envoy drains only an unhealthy host's HTTP connections.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from envoy.config.cluster.v3 import cluster_pb2
from envoy.extensions.access_loggers.grpc.v3 import als_pb2
from envoy.extensions.filters.http.credential_injector.v3 import credential_injector_pb2
from envoy.extensions.filters.http.ext_authz.v3 import ext_authz_pb2
from envoy.extensions.filters.http.lua.v3 import lua_pb2
from envoy.extensions.filters.http.upstream_codec.v3 import upstream_codec_pb2
from envoy.extensions.http.injected_credentials.generic.v3 import generic_pb2
from envoy.extensions.load_balancing_policies.common.v3 import common_pb2
from envoy.extensions.load_balancing_policies.least_request.v3 import least_request_pb2
from envoy.extensions.load_balancing_policies.maglev.v3 import maglev_pb2
from envoy.extensions.load_balancing_policies.override_host.v3 import override_host_pb2
from envoy.extensions.load_balancing_policies.random.v3 import random_pb2
from envoy.extensions.load_balancing_policies.round_robin.v3 import round_robin_pb2
from envoy.extensions.transport_sockets.tls.v3 import tls_pb2
from envoy.extensions.upstreams.http.v3 import http_protocol_options_pb2

from lbctl.ir.address import Address
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import PickPolicy, Pool
from lbctl.ir.proxies import picker_asked
from lbctl.ir.routes import Forward, Route, busy_statuses
from lbctl.ir.snapshot import View
from lbctl.targets.envoy import auth, sources
from lbctl.targets.envoy.bootstrap import CA, CERTIFICATE
from lbctl.targets.envoy.protos import address, duration, extension, pack
from lbctl.targets.picker import FULL_HEADER, KEY_HEADER, may_reject, needs_client, queue_priority


class MakeCluster(Protocol):
    """Returns a picker cluster."""

    def __call__(
        self,
        where: Address | None,
        *,
        tls: bool = False,
        key: dict[str, object] | None = None,
        rejects: bool = False,
    ) -> cluster_pb2.Cluster:
        """Build the cluster. `where` is the address of the picker's gRPC server; with None, the cluster is empty.

        `key` is the `SdsSecretConfig` of the key for requests to the picker, or None for no key. `rejects`: whether the
        picker may reject requests.
        """


CLUSTER, ENDS_CLUSTER = "picker|lbctl", "picker-ends|lbctl"
"""Names of the picker's clusters, for queries and for reports of ended requests. No pool can have these names."""
KEY = ("_picker", "key")
"""Name of the secret that contains the picker's key, in place of a pool and a header. No pool can have this name."""
FILTER, WAIT_FILTER = "lbctl.pick", "lbctl.pick_wait"
"""Filters with the first query, and with the second query of a request that has to wait."""
_BODY_LENGTH = "x-lbctl-body-length"
_TENANT, _PRIORITY, _ROUTE, _CLIENT = "x-lbctl-tenant", "x-lbctl-priority", "x-lbctl-route", "x-lbctl-client"
_TENANT_FORMAT = f"%DYNAMIC_METADATA({sources.NAMESPACE}:{auth.TENANT})%"
_CLIENT_FORMAT = "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"
_NO_FORMATS: Mapping[str, str] = MappingProxyType({})
_PATH, _WAIT_PATH, _READY_PATH = "/envoy?path=", "/envoy/wait?path=", "/ready"
_READY_ANSWER = "lbctl picker ready"
_REPLICAS, _ID = "x-lbctl-replicas", "x-lbctl-pick-id"
"""Headers of the picker's response, used as metadata keys: the replicas to try, and the ID of the pick."""
_ASKS_AGAIN, _MUST_WAIT = "x-lbctl-asks-again", "x-lbctl-must-wait"
"""Header of the first query to a pool with a queue, and of the response to a request that has to wait."""
_NAMESPACE = "envoy.filters.http.ext_authz"
_WAITING_ID = {_ID: f"%DYNAMIC_METADATA({_NAMESPACE}:{_ID})%"}
"""Header of the second query."""
_IS_WAITING = {"filter": _NAMESPACE, "path": [{"key": _MUST_WAIT}], "value": {"present_match": True}}
_REQUEST = {
    _BODY_LENGTH: "%REQ(content-length)%",
    "x-lbctl-proxy": "%CEL(xds.node.id)%",
    "x-lbctl-region": "%CEL(xds.node.locality.region)%",
    "x-lbctl-zone": "%CEL(xds.node.locality.zone)%",
}
"""Headers that a listener adds to each request for the query: the full length of the body (the picker gets only its
beginning), the querying Envoy, and its locality.

Envoy 1.40 crashes on CEL expressions in the headers of a query.
"""
_HTTP, _HTTP2 = "http/1.1", "h2"
_MAX_BODY = 64 << 10
"""Maximum number of bytes from the beginning of a body that the picker receives."""
_REPORT_TIMEOUT = 1_000
"""Time in milliseconds before giving up on reporting a first byte."""
_FIRST_BYTE = "lbctl.first_byte"
"""Name of the filter that reports first bytes, and of its code."""
_REPORT_FIRST_BYTE = f"""\
function envoy_on_response(handle)
  local headers = handle:headers()
  if headers:get(":status") ~= "200" or headers:get("content-length") ~= nil then return end
  -- The response is streamed.
  local pick = handle:streamInfo():dynamicMetadata():get("{_NAMESPACE}")
  if pick == nil or pick["{_ID}"] == nil then return end
  for chunk in handle:bodyChunks() do
    local start = chunk:getBytes(0, math.min(chunk:length(), 64))
    local early = start:find("^:") or start:find("response%.created") or start:find("response%.queued")
    if not early and not start:find("response%.in_progress") then
      -- The engine has computed the prompt.
      local report = {{[":method"] = "POST", [":path"] = "/first", [":authority"] = "picker.lbctl"}}
      handle:httpCall("{CLUSTER}", report, pick["{_ID}"], {_REPORT_TIMEOUT}, true)
      break
    end
  end
end
"""
"""Reports the first byte of a response's body to the picker, without waiting for a reply and without buffering the
body.

Engines send the headers before the first token. Some also send a comment or an event that announces the response, which
is ignored. A body of known length arrives all at once, so its end is sufficient.
"""
_ONLY_OK = """\
function envoy_on_response(handle)
  if handle:headers():get(":status") ~= "200" then
    handle:headers():replace(":status", "503")
  end
end
"""
"""Turns every response except 200 into an error.

Otherwise, Envoy would forward the response to the client, for example a 404 from another web server on the port of a
picker that has just exited.
"""
_OK_OR_REFUSED = """\
function envoy_on_response(handle)
  local headers = handle:headers()
  local is_refusal = headers:get(":status") == "429" and headers:get("x-lbctl-refused") ~= nil
  if headers:get(":status") ~= "200" and not is_refusal then
    headers:replace(":status", "503")
  end
end
"""
"""Turns every response except 200 into an error, unless the picker rejects the request: the client receives that
response."""
_HTTP_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
_MAX_REQUESTS = 1 << 20
_CONNECT = 5_000
"""Milliseconds; Envoy's default. Queries end earlier, at `pick.timeout`. If a connection is not made in time, Envoy
fails all queries that wait for one, and a busy Envoy can be late itself."""
_IDLE = 30_000
"""Idle timeout in milliseconds. The picker closes an idle connection after a minute, and a query must not use a
connection that is being closed."""
_CHECK_INTERVAL, _CHECK_TIMEOUT = 500, 250
"""Interval and timeout of health checks, in milliseconds. Two checks are enough to detect a hung picker."""
_FLUSH = 10
"""Time in milliseconds for which Envoy collects reports of ended requests. Until it sends them, the picker counts these
requests as in flight."""
_MOVED = ("zone_aware_lb_config", "consistent_hashing_lb_config")
"""Parts of `common_lb_config` that Envoy requires inside the policy."""
_LEGACY = ("lb_policy", "round_robin_lb_config", "least_request_lb_config")


# ── The filter ───────────────────────────────────────────────────────────────────────────────────────────────────────


def http_filters(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the filters that query the picker; empty if no route of the listener needs them."""
    policies = _policies(view, listener)
    if not policies:
        return []
    names = sorted({"content-type", *_REQUEST, *(name for item in policies for name in item.question_headers)})
    config = ext_authz_pb2.ExtAuthz(
        transport_api_version="V3",
        http_service=_service(policies[0].timeout, {}),
        failure_mode_allow=True,
        allowed_headers=_exactly(*names),
        disallowed_headers=None if "authorization" in names else _exactly("authorization"),
        stat_prefix="lbctl_pick",
    )
    reports = lua_pb2.Lua(source_codes={_FIRST_BYTE: {"inline_string": _REPORT_FIRST_BYTE}})
    waits = [extension(WAIT_FILTER, _waiting(policies[0]))] if any(item.queue for item in policies) else []
    return [extension(FILTER, config), *waits, extension(_FIRST_BYTE, reports)]


def _waiting(policy: PickPolicy) -> ext_authz_pb2.ExtAuthz:
    """Return the filter that sends the second query, without the client's headers and body."""
    return ext_authz_pb2.ExtAuthz(
        transport_api_version="V3",
        http_service=_wait_service(policy),
        failure_mode_allow=True,
        filter_enabled_metadata=_IS_WAITING,
        allowed_headers=_exactly("x-lbctl-proxy"),
        disallowed_headers=_exactly("authorization"),
        stat_prefix="lbctl_pick_wait",
    )


def per_table(view: View, listener: Listener) -> dict[str, Any]:
    """Return the configuration that turns the filters off for all routes of the table."""
    policies = _policies(view, listener)
    names = [*([FILTER] if policies else []), *([WAIT_FILTER] if any(item.queue for item in policies) else [])]
    return {name: pack(ext_authz_pb2.ExtAuthzPerRoute(disabled=True)) for name in names}


def per_route(pool: Pool, route: Route) -> dict[str, Any]:
    """Return the configuration that turns the filters on for a route or a share that leads to a pool with the picker.

    Bodies that may never end are not read.
    """
    pick = pool.balance.pick
    if pick is None:
        return {}
    values = {"x-lbctl-pool": pool.name}
    if route.regions:
        values["x-lbctl-regions"] = ",".join(route.regions)
    if busy_statuses(route, pool):
        values["x-lbctl-busy"] = "1"
    priority = queue_priority(pool, route)
    if priority:
        values[_PRIORITY] = priority
    if route.prompt_limits:
        values[_ROUTE] = route.name
    if pick.queue is not None:
        values[_ASKS_AGAIN] = "1"
    formats = {_TENANT: _TENANT_FORMAT} if route.auth is not None else {}
    if needs_client(pool, route):
        formats[_CLIENT] = _CLIENT_FORMAT
    reads = pick.reads_bodies and not route.websocket and pool.protocol != "grpc"
    body = {"max_request_bytes": _MAX_BODY, "allow_partial_message": True} if reads else None
    service = _service(pick.timeout, values, formats, refuses=may_reject(pool, route))
    configs = {FILTER: _turned_on({"http_service": service, "with_request_body": body})}
    if pick.queue is not None:
        configs[WAIT_FILTER] = _turned_on({"http_service": _wait_service(pick)})
    if not route.websocket and pool.protocol != "grpc":
        configs[_FIRST_BYTE] = pack(lua_pb2.LuaPerRoute(name=_FIRST_BYTE))
    return configs


def _turned_on(settings: dict[str, object]) -> Any:
    return pack(ext_authz_pb2.ExtAuthzPerRoute(check_settings=settings))


def early_mutations(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the mutations that add the query's context to each request. Clients cannot write these headers."""
    if not _policies(view, listener):
        return []
    headers = [{"key": key, "value": value} for key, value in _REQUEST.items()]
    mutations: list[dict[str, object]] = [{"remove": name} for name in _REQUEST]
    mutations += [{"append": {"header": header, "append_action": "ADD_IF_ABSENT"}} for header in headers]
    return mutations


def own_headers(view: View, listener: Listener) -> list[str]:
    """Return the headers that are added for the picker. These headers are removed before a replica gets the request."""
    return sorted(_REQUEST) if _policies(view, listener) else []


def access_logs(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the logger that reports when picked requests end; empty if no pool uses the picker."""
    if not _policies(view, listener):
        return []
    path = {"filter": _NAMESPACE, "path": [{"key": _ID}], "value": {"present_match": True}}
    is_picked = {"metadata_filter": {"matcher": path, "match_if_key_not_found": {"value": False}}}
    tag = {
        "tag": _ID,
        "metadata": {"kind": {"request": {}}, "metadata_key": {"key": _NAMESPACE, "path": [{"key": _ID}]}},
    }
    common = {
        "log_name": "lbctl-picks",
        "grpc_service": {"envoy_grpc": {"cluster_name": ENDS_CLUSTER}},
        "transport_api_version": "V3",
        "buffer_flush_interval": duration(_FLUSH),
        "custom_tags": [tag],
    }
    config = als_pb2.HttpGrpcAccessLogConfig(common_config=common)
    return [{**extension("envoy.access_loggers.http_grpc", config), "filter": is_picked}]


def asks(view: View) -> bool:
    """Return whether the filter is used and its clusters are therefore needed."""
    return any(pool.balance.pick is not None for pool in view.pools.values())


def _policies(view: View, listener: Listener) -> list[PickPolicy]:
    """Return the pick policies of the pools that the listener's routes use, sorted by pool name."""
    names = {name for rule in listener.rules for name in _pools(view.routes[rule.route])}
    return [pick for name in sorted(names) if (pick := view.pools[name].balance.pick) is not None]


def _pools(route: Route) -> tuple[str, ...]:
    return route.action.pools if isinstance(route.action, Forward) else ()


def _wait_service(policy: PickPolicy) -> dict[str, object]:
    """Return the service for the second query of a request that has to wait."""
    return _service(policy.longest_wait, {}, _WAITING_ID, refuses=True, path=_WAIT_PATH)


def _service(
    timeout: int, values: Mapping[str, str], formats: Mapping[str, str] = _NO_FORMATS, *,
    refuses: bool = False, path: str = _PATH,
) -> dict[str, object]:  # fmt: skip
    """Return the service to query, with headers that clients cannot write. Envoy adds the client's path.

    `formats` are headers whose values Envoy computes. `refuses`: whether the picker may reject requests. Clients get
    only the `retry-after` header of its response.
    """
    literal = {key: value.replace("%", "%%") for key, value in values.items()}
    headers = [{"key": key, "value": value} for key, value in (literal | dict(formats)).items()]
    kept = [_REPLICAS, _ID, *([FULL_HEADER] if refuses else []), *([_MUST_WAIT] if _ASKS_AGAIN in values else [])]
    answer = {"dynamic_metadata_from_headers": _exactly(*kept)}
    if refuses:
        answer["allowed_client_headers"] = _exactly("retry-after")
    return {
        "server_uri": {"uri": "http://picker.lbctl", "cluster": CLUSTER, "timeout": duration(timeout)},
        "path_prefix": path,
        "authorization_request": {"headers_to_add": headers},
        "authorization_response": answer,
    }


def _exactly(*names: str) -> dict[str, object]:
    return {"patterns": [{"exact": name, "ignore_case": True} for name in names]}


# ── The clusters ─────────────────────────────────────────────────────────────────────────────────────────────────────


def questions_cluster(
    where: Address | None, *, tls: bool = False, key: dict[str, object] | None = None, rejects: bool = False
) -> cluster_pb2.Cluster:
    """Return the cluster that receives queries. An unhealthy picker is not queried, even if it is the only one.

    Without an address the cluster is empty, and requests pass immediately, as they do when the picker is down. With
    `tls` it uses the certificates for the control-plane connection from the proxy's bootstrap. On loopback, the
    certificates are named but not used: an Envoy without them cannot report ended requests, so it must reject this
    cluster too. The health check expects a response that no other program would give.
    """
    asked = picker_asked(where) if where is not None else None
    code = _OK_OR_REFUSED if rejects else _ONLY_OK
    only_ok = extension("envoy.filters.http.lua", lua_pb2.Lua(default_source_code={"inline_string": code}))
    codec = extension("envoy.filters.http.upstream_codec", upstream_codec_pb2.UpstreamCodec())
    protocol: dict[str, Any] = {"explicit_http_config": {"http_protocol_options": {}}}
    protocol["http_filters"] = [*([_injector(key)] if key is not None else []), only_ok, codec]
    is_local = asked is not None and asked.on_loopback
    message = _cluster(CLUSTER, asked, protocol, tls=tls and not is_local)
    if tls and is_local:
        message.transport_socket_matches.add(name="unused", match={"never": True}, transport_socket=_tls(_HTTP))
    message.health_checks.add(
        timeout=duration(_CHECK_TIMEOUT),
        interval=duration(_CHECK_INTERVAL),
        no_traffic_interval=duration(_CHECK_INTERVAL),
        unhealthy_threshold={"value": 2},
        healthy_threshold={"value": 1},
        http_health_check={"path": _READY_PATH, "receive": [{"text": _READY_ANSWER.encode().hex()}]},
    )
    message.close_connections_on_host_health_failure = True
    message.common_lb_config.healthy_panic_threshold.SetInParent()
    return message


def ends_cluster(
    where: Address | None, *, tls: bool = False, key: dict[str, object] | None = None, rejects: bool = False
) -> cluster_pb2.Cluster:
    """Return the cluster that receives reports of ended requests. The ID of the pick takes the place of a key."""
    del key, rejects
    protocol: dict[str, Any] = {"explicit_http_config": {"http2_protocol_options": {}}}
    return _cluster(ENDS_CLUSTER, where.from_here if where else None, protocol, tls=tls)


def _injector(source: dict[str, object]) -> dict[str, object]:
    """Return the filter that adds the key to a query. If the secret is missing, it adds nothing."""
    credential = generic_pb2.Generic(credential=source, header=KEY_HEADER)
    config = credential_injector_pb2.CredentialInjector(
        overwrite=True,
        allow_request_without_credential=True,
        credential=extension("envoy.http.injected_credentials.generic", credential),
    )
    return extension("envoy.filters.http.credential_injector", config)


def _cluster(name: str, where: Address | None, protocol: dict[str, Any], *, tls: bool) -> cluster_pb2.Cluster:
    idle = {"idle_timeout": duration(_IDLE)}
    options = http_protocol_options_pb2.HttpProtocolOptions(common_http_protocol_options=idle, **protocol)
    limit = {"value": _MAX_REQUESTS}
    thresholds = {"max_connections": limit, "max_pending_requests": limit, "max_requests": limit}
    picker = [{"endpoint": {"address": address(where)}}] if where is not None else []
    return cluster_pb2.Cluster(
        name=name,
        type="STATIC",
        connect_timeout=duration(_CONNECT),
        typed_extension_protocol_options={_HTTP_OPTIONS: pack(options)},
        circuit_breakers={"thresholds": [thresholds]},
        load_assignment={"cluster_name": name, "endpoints": [{"lb_endpoints": picker}]},
        transport_socket=_tls(_HTTP2 if name == ENDS_CLUSTER else _HTTP) if tls else None,
    )


def _tls(protocol: str) -> dict[str, object]:
    common = {
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2", "tls_maximum_protocol_version": "TLSv1_3"},
        "alpn_protocols": [protocol],
        "validation_context_sds_secret_config": {"name": CA},
        "tls_certificate_sds_secret_configs": [{"name": CERTIFICATE}],
    }
    return extension("envoy.transport_sockets.tls", tls_pb2.UpstreamTlsContext(common_tls_context=common))


CLUSTERS: Mapping[str, MakeCluster] = {CLUSTER: questions_cluster, ENDS_CLUSTER: ends_cluster}
"""Maps the name of each of the picker's clusters to the function that returns it."""


def obey(message: cluster_pb2.Cluster, pool: Pool) -> None:
    """Let the picker's response override the cluster's load-balancing policy, if the pool uses the `pick` algorithm."""
    if pool.balance.pick is None:
        return
    fallback = _policy(message)
    for name in _LEGACY:
        message.ClearField(name)
    for name in _MOVED:
        message.common_lb_config.ClearField(name)
    key = {"key": _NAMESPACE, "path": [{"key": _REPLICAS}]}
    override = override_host_pb2.OverrideHost(
        override_host_sources=[{"metadata": key}], fallback_policy={"policies": [{"typed_extension_config": fallback}]}
    )
    config = extension("envoy.load_balancing_policies.override_host", override)
    message.load_balancing_policy.policies.add(typed_extension_config=config)


def _policy(message: cluster_pb2.Cluster) -> dict[str, object]:
    """Return the cluster's existing policy as an extension."""
    name = cluster_pb2.Cluster.LbPolicy.Name(message.lb_policy).lower()
    return extension(f"envoy.load_balancing_policies.{name}", _POLICIES[name](message))


def _round_robin(message: cluster_pb2.Cluster) -> round_robin_pb2.RoundRobin:
    config = round_robin_pb2.RoundRobin(locality_lb_config=_locality(message))
    _copy_slow_start(message.round_robin_lb_config.slow_start_config, config.slow_start_config)
    return config


def _least_request(message: cluster_pb2.Cluster) -> least_request_pb2.LeastRequest:
    config = least_request_pb2.LeastRequest(locality_lb_config=_locality(message))
    _copy_slow_start(message.least_request_lb_config.slow_start_config, config.slow_start_config)
    return config


def _random(message: cluster_pb2.Cluster) -> random_pb2.Random:
    return random_pb2.Random(locality_lb_config=_locality(message))


def _maglev(message: cluster_pb2.Cluster) -> maglev_pb2.Maglev:
    factor = message.common_lb_config.consistent_hashing_lb_config.hash_balance_factor.value
    bound = {"hash_balance_factor": {"value": factor}} if factor else None
    return maglev_pb2.Maglev(consistent_hashing_lb_config=bound)


_POLICIES = {
    "round_robin": _round_robin,
    "least_request": _least_request,
    "random": _random,
    "maglev": _maglev,
}


def _locality(message: cluster_pb2.Cluster) -> dict[str, object] | None:
    if not message.common_lb_config.zone_aware_lb_config.fail_traffic_on_panic:
        return None
    return {"zone_aware_lb_config": {"fail_traffic_on_panic": True}}


def _copy_slow_start(given: cluster_pb2.Cluster.SlowStartConfig, taken: common_pb2.SlowStartConfig) -> None:
    if given.HasField("slow_start_window"):
        taken.slow_start_window.CopyFrom(given.slow_start_window)
        taken.aggression.CopyFrom(given.aggression)
        taken.min_weight_percent.CopyFrom(given.min_weight_percent)
