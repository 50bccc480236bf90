"""Listeners: sockets, filter chains, and the connection manager with its limits and defaults.

With `client_address`, a listener has two kinds of filter chains, between which Envoy selects by the peer's address.
Headers about the client are accepted from the trusted networks and removed from all other requests. Envoy's connection
manager cannot make this distinction within one chain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from envoy.config.listener.v3 import listener_components_pb2, listener_pb2
from envoy.config.trace.v3 import opentelemetry_pb2
from envoy.extensions.filters.listener.proxy_protocol.v3 import proxy_protocol_pb2
from envoy.extensions.filters.listener.tls_inspector.v3 import tls_inspector_pb2
from envoy.extensions.filters.network.http_connection_manager.v3 import http_connection_manager_pb2 as hcm_pb2
from envoy.extensions.http.early_header_mutation.header_mutation.v3 import header_mutation_pb2
from envoy.extensions.http.original_ip_detection.custom_header.v3 import custom_header_pb2
from envoy.extensions.http.original_ip_detection.xff.v3 import xff_pb2

from lbctl.ir.listeners import Certificate, ClientAddress, Listener, Tracing
from lbctl.ir.snapshot import View
from lbctl.targets import client_identity
from lbctl.targets.envoy import access, access_log, auth, filters, local_reply, matches, picking, tls
from lbctl.targets.envoy.clusters import BUFFER
from lbctl.targets.envoy.protos import address, cidr, duration, extension

Specify = Callable[[hcm_pb2.HttpConnectionManager], None]
"""Writes the routes or their source into a connection manager."""

_STREAMS = 100
_STREAM_WINDOW = 65_536
_CONNECTION_WINDOW = 1_048_576
_GOODBYE = 1_000
"""Milliseconds between the announcement that a connection will close and its close, so that requests on their way still
arrive.

Envoy's default of 5 s would be added to the idle timeout.
"""
_NO_ADDRESS = {"address_prefix": "255.255.255.255", "prefix_len": {"value": 32}}
"""Without a list of internal addresses, Envoy trusts private addresses. An empty list has no effect, so this one
contains an address that is never used."""
_OWN = "x-envoy-"
"""Prefix of the headers with which a client could change Envoy's timeouts and retries."""


_FRAMING: dict[str, object] = {
    "append": {"header": {"key": matches.FRAMING_HEADER, "value": "%PROTOCOL% %REQ(transfer-encoding)%"}}
}
"""Mutation that exposes to the routes the framing headers that Envoy removes before it chooses a route."""
_WEBSOCKET = "websocket"
_OTHER_UPGRADES = "(?i)" + "|".join(
    [*(f"{_WEBSOCKET[:i]}(?:[^{c}].*)?" for i, c in enumerate(_WEBSOCKET)), f"{_WEBSOCKET}.+"]
)
"""RE2 expression that matches every protocol name except `websocket`."""


_ID = f"request.headers['{filters.REQUEST_ID}']"
_ACCEPTABLE_ID: dict[str, object] = {
    "append": {
        "header": {
            "key": filters.REQUEST_ID,
            "value": f"%CEL(size({_ID}) <= 200 && {_ID}.matches('^[!#-\\\\[\\\\]-~]+$') ? {_ID} : '')%",
        },
        "append_action": "OVERWRITE_IF_EXISTS",
        "keep_empty_value": True,
    }
}
"""Clears a request ID from a trusted peer unless it is plain text, because IDs are logged unchanged. Envoy then creates
an ID."""


@dataclass(frozen=True, slots=True)
class _Chain:
    """A filter chain: its peers, server names and certificate."""

    name: str
    trusted: ClientAddress | None = None
    believed: bool = False
    certificate: Certificate | None = None
    server_names: tuple[str, ...] = ()


def listener(view: View, item: Listener, specify: Specify, keys: tls.SecretSource) -> listener_pb2.Listener:
    """Return the listener with one filter chain per certificate and kind of peer."""
    return listener_pb2.Listener(
        name=item.name,
        address=address(item.bind),
        per_connection_buffer_limit_bytes={"value": BUFFER},
        listener_filters=_listener_filters(item),
        filter_chains=[_filter_chain(view, item, chain, specify, keys) for chain in _chains(item)],
    )


def tracing_cluster(item: Listener) -> str:
    """Return the cluster name of a listener's trace collector."""
    return f"tracing|{item.name}"


def _listener_filters(item: Listener) -> list[dict[str, object]]:
    extensions = []
    if item.proxy_protocol:
        extensions.append(extension("envoy.filters.listener.proxy_protocol", proxy_protocol_pb2.ProxyProtocol()))
    if item.tls:
        extensions.append(extension("envoy.filters.listener.tls_inspector", tls_inspector_pb2.TlsInspector()))
    return extensions


def _chains(item: Listener) -> Iterator[_Chain]:
    pairs = tls.server_names(item.tls) if item.tls else [(None, ())]
    client = item.client_address
    for number, (certificate, names) in enumerate(pairs):
        if client:
            yield _Chain(f"trusted-{number}", client, True, certificate, names)
        yield _Chain(f"client-{number}", client, False, certificate, names)


def _filter_chain(
    view: View, item: Listener, chain: _Chain, specify: Specify, keys: tls.SecretSource
) -> listener_components_pb2.FilterChain:
    match: dict[str, object] = {"server_names": chain.server_names} if chain.server_names else {}
    if chain.trusted and chain.believed:
        match["source_prefix_ranges"] = [cidr(network) for network in chain.trusted.trusted]
    manager = connection_manager(view, item, chain)
    specify(manager)
    return listener_components_pb2.FilterChain(
        name=chain.name,
        filter_chain_match=match or None,
        filters=[extension("envoy.filters.network.http_connection_manager", manager)],
        transport_socket=_transport_socket(item, chain, keys),
    )


def _transport_socket(item: Listener, chain: _Chain, keys: tls.SecretSource) -> dict[str, object] | None:
    return tls.downstream(item, item.tls, chain.certificate, keys) if item.tls and chain.certificate else None


def connection_manager(view: View, item: Listener, chain: _Chain) -> hcm_pb2.HttpConnectionManager:
    """Return the connection manager.

    The connection manager does not limit the total time of streams: a route's idle timeout ends them.
    """
    return hcm_pb2.HttpConnectionManager(
        codec_type="AUTO" if item.http2 else "HTTP1",
        stat_prefix=item.name,
        server_header_transformation="PASS_THROUGH",
        common_http_protocol_options={
            "idle_timeout": duration(item.idle_timeout or 0),
            "max_headers_count": {"value": item.max_header_count},
        },
        max_request_headers_kb={"value": -(-item.max_header_bytes // 1024)},
        drain_timeout=duration(_GOODBYE),
        request_timeout={},
        request_headers_timeout=duration(item.request_headers_timeout),
        normalize_path={"value": False},
        strip_trailing_host_dot=True,
        path_with_escaped_slashes_action="UNESCAPE_AND_FORWARD",
        internal_address_config={"cidr_ranges": [_NO_ADDRESS]},
        always_set_request_id_in_response=True,
        generate_request_id={"value": True},
        preserve_external_request_id=chain.believed,
        upgrade_configs=[filters.websocket(view, item)],
        early_header_mutation_extensions=[_early_mutations(view, item, chain)],
        access_log=[*access_log.access_logs(view, item), *picking.access_logs(view, item)],
        local_reply_config=local_reply.local_replies(view, item, by_address=bool(access.http_filters(view, item))),
        http_filters=filters.http_filters(view, item),
        http_protocol_options=_http1(),
        http2_protocol_options=_http2() if item.http2 else None,
        tracing=_tracing(item, item.tracing) if item.tracing else None,
        **_client_detection(chain),
    )


def _http1() -> dict[str, object]:
    """Return the HTTP/1 options.

    Probes and old proxies use HTTP/1.0. A client may offer any upgrade. A server that does not support an upgrade
    ignores the offer, whereas Envoy would reject the request. For this reason, every offer except WebSocket is removed.
    """
    other = {"safe_regex": {"regex": _OTHER_UPGRADES}}
    return {"accept_http_10": True, "ignore_http_11_upgrade": [other]}


def _http2() -> dict[str, object]:
    return {
        "max_concurrent_streams": {"value": _STREAMS},
        "initial_stream_window_size": {"value": _STREAM_WINDOW},
        "initial_connection_window_size": {"value": _CONNECTION_WINDOW},
        "allow_connect": True,
    }


def _client_detection(chain: _Chain) -> dict[str, object]:
    """Return how to determine the client's address: from a trusted peer's header, or else from the connection."""
    client = chain.trusted
    if client is None or not chain.believed:
        return {"use_remote_address": {"value": True}}
    if client.header == matches.FORWARDED_FOR:
        trusted = {"cidrs": [cidr(network) for network in client.trusted]}
        detection = extension(
            "envoy.http.original_ip_detection.xff",
            xff_pb2.XffConfig(xff_trusted_cidrs=trusted, skip_xff_append={"value": False}),
        )
    else:
        detection = extension(
            "envoy.http.original_ip_detection.custom_header",
            custom_header_pb2.CustomHeaderConfig(header_name=client.header),
        )
    return {
        "use_remote_address": {"value": False},
        "forward_client_cert_details": "ALWAYS_FORWARD_ONLY",
        "original_ip_detection_extensions": [detection],
    }


def _early_mutations(view: View, item: Listener, chain: _Chain) -> dict[str, object]:
    """Return the header mutations that are applied before anything reads the request.

    These mutations remove headers that clients may not send, and copy the request ID from the listener's configured
    header.
    """
    mutations: list[dict[str, object]] = [{"remove_on_match": {"key_matcher": {"prefix": _OWN}}}, _FRAMING]
    mutations += auth.early_mutations(view, item)
    mutations += picking.early_mutations(view, item)
    if not chain.believed:
        names = [chain.trusted.header, *chain.trusted.forward] if chain.trusted else []
        mutations += map(auth.header_removal, client_identity.claim_groups(names))
    if chain.trusted and chain.believed:
        mutations += map(auth.header_removal, client_identity.groups(_overwritten(chain.trusted)))
    if chain.trusted and chain.believed and chain.trusted.header != matches.FORWARDED_FOR:
        mutations.append(_joined_header(chain.trusted.header))
    if item.request_id != filters.REQUEST_ID:
        mutations.append({"remove": filters.REQUEST_ID})
        if chain.believed:
            mutations.append(
                {
                    "append": {
                        "header": {"key": filters.REQUEST_ID, "value": f"%REQ({item.request_id})%"},
                        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
                    }
                }
            )
    if chain.believed:
        mutations.append(_ACCEPTABLE_ID)
    config = header_mutation_pb2.HeaderMutation(mutations=mutations)
    return extension("envoy.http.early_header_mutation.header_mutation", config)


def _overwritten(client: ClientAddress) -> list[str]:
    """Return the headers that carry the client's address to replicas, except the header in which a peer provides it."""
    return [name for name in client.forward if name != client.header]


def _joined_header(header: str) -> dict[str, object]:
    """Return the mutation that joins the lines of a repeated header into one.

    Otherwise, Envoy would use the first line, which the client controls.
    """
    value = f"%CEL(request.headers['{header.lower()}'])%"
    return {"append": {"header": {"key": header, "value": value}, "append_action": "OVERWRITE_IF_EXISTS"}}


def _tracing(item: Listener, tracing: Tracing) -> dict[str, object]:
    config = opentelemetry_pb2.OpenTelemetryConfig(
        service_name=tracing.service,
        grpc_service={"envoy_grpc": {"cluster_name": tracing_cluster(item)}, "timeout": {"seconds": 1}},
    )
    return {
        "random_sampling": {"value": tracing.sample},
        "provider": extension("envoy.tracers.opentelemetry", config),
    }
