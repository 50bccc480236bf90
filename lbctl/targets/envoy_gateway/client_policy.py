"""Listener settings as ClientTrafficPolicies: one for each listener, attached to its sections of the Gateway.

The policies of an existing Gateway belong to its owner: lbctl attaches none, and closes the routes whose protection
needs one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.ir.listeners import Listener
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.snapshot import View
from lbctl.targets.client_identity import claim_groups, groups, lookalikes, other_spellings, unmapped_networks
from lbctl.targets.envoy_gateway.context import API_VERSION, DESTINATION_HEADER, Context
from lbctl.targets.envoy_gateway.request_changes import claimed, trusts_load_balancers, withheld_from_apis
from lbctl.targets.envoy_gateway.security_policy import FORWARDED_FOR, reserved_headers
from lbctl.targets.manifests.closing import Gap
from lbctl.targets.manifests.durations import duration
from lbctl.targets.manifests.findings import warning
from lbctl.targets.manifests.names import Parts, names, object_name
from lbctl.targets.manifests.objects import Objects, Tree
from lbctl.targets.target import Prerequisite

_POLICY = object_name("ClientTrafficPolicy")
_CONFIG_MAP = object_name("ConfigMap")
_REQUEST_ID = "x-request-id"
_FRAMING = ("content_length", "transfer_encoding")
"""Headers that some servers would read as framing, because they treat `_` as `-`."""
_OWN = "x-envoy-"
"""Prefix of the headers with which a client could change Envoy's timeouts and retries."""
_MAX_MATCHES = 64
"""Maximum number of header-name conditions, one of which is `_OWN`."""
_BUFFER = "1Mi"
"""Maximum size of requests that can be retried, and of the body that the picker gets. The default is 32 KiB."""
_HEADERS_TIMEOUT, _CLIENT_MODES, _ROUTE_IDLE_TIMEOUT = (1, 9), (1, 8), (1, 8)
"""First versions with a header timeout, client validation modes, and idle timeouts for routes."""
_OWNER = "lbctl does not render this Gateway, and only its owner can set this"
_HINT = "set `gateway_class`, or ask the owner of the Gateway for a ClientTrafficPolicy"


def add(objects: Objects, context: Context) -> None:
    """Add the policies."""
    view = context.view
    if context.objects.gateway is not None:
        return
    by_parts = names(_POLICY, [(view.proxy.name, listener.name) for listener in view.listeners])
    revoked = _revoked(context)
    for listener in view.listeners:
        targets = [
            {"group": "gateway.networking.k8s.io", "kind": "Gateway", **section.parent}
            for section in context.sections
            if section.listener == listener.name
        ]
        spec = {"targetRefs": targets, **_settings(context, listener, revoked)}
        name = by_parts[view.proxy.name, listener.name]
        objects.add(API_VERSION, "ClientTrafficPolicy", name, "listener", ("listeners", listener.name), spec=spec)


def prerequisites(context: Context) -> Iterator[Prerequisite]:
    """Yield the ConfigMaps with revocation lists."""
    revoked = _revoked(context)
    for listener in context.view.listeners:
        crl = listener.tls.client_crl if listener.tls is not None else None
        if crl is not None and listener.name in revoked:
            words = ("kubectl", "-n", context.objects.namespace, "create", "configmap", revoked[listener.name])
            yield Prerequisite(words, (("--from-file=ca.crl", crl),))


def needed(context: Context) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) of the ConfigMaps."""
    return (("ConfigMap", name) for name in _revoked(context).values())


def _revoked(context: Context) -> dict[str, str]:
    """Map each listener with revocation lists to the name of its ConfigMap."""
    view = context.view
    listeners = view.listeners if context.objects.gateway is None else ()
    wanted: dict[Parts, str] = {
        (view.proxy.name, item.name, "revoked"): item.name for item in listeners if item.tls and item.tls.client_crl
    }
    return {wanted[parts]: name for parts, name in names(_CONFIG_MAP, wanted).items()}


# ── Settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _settings(context: Context, listener: Listener, revoked: Mapping[str, str]) -> Tree:
    view = context.view
    tree: Tree = {}
    client = listener.client_address
    if client is not None and trusts_load_balancers(listener):
        tree["clientIPDetection"] = {"xForwardedFor": {"trustedCIDRs": list(unmapped_networks(client.trusted))}}
    limit = {"connectionLimit": {"value": listener.max_connections}} if listener.max_connections is not None else {}
    tree["connection"] = {"bufferLimit": _BUFFER, **limit}
    tree["headers"] = _headers(context, listener)
    tree["http1"] = {"http10": {}}
    tree["path"] = {"escapedSlashesAction": "UnescapeAndForward", "disableMergeSlashes": True}
    if listener.proxy_protocol:
        tree["proxyProtocol"] = {"optional": False}
    if timeouts := _timeouts(view, listener):
        tree["timeout"] = {"http": timeouts}
    if listener.tls is not None:
        tree["tls"] = {
            "minVersion": listener.tls.min_version,
            "alpnProtocols": ["h2", "http/1.1"] if listener.http2 else ["http/1.1"],
            **_client_validation(context, listener, revoked),
        }
    return tree


def _headers(context: Context, listener: Listener) -> Tree:
    """Return the header settings, which remove the headers that no client may send.

    Headers with `_` are removed like those with `-`.
    """
    matches = [{"type": "RegularExpression", "value": expression} for expression in _expressions(context, listener)]
    return {
        "requestID": "Generate" if listener.client_address is None else "PreserveOrGenerate",
        "withUnderscoresAction": "Allow",
        "earlyRequestHeaders": {
            "remove": [DESTINATION_HEADER, *_FRAMING],
            "removeOnMatch": [{"type": "Prefix", "value": _OWN}, *matches],
        },
    }


def _expressions(context: Context, listener: Listener) -> list[str]:
    view, objects = context.view, context.objects
    return [
        *_claims(listener),
        *groups(reserved_headers(view, objects)),
        *lookalikes(view.routes.values(), withheld_from_apis(view, objects, listener)),
    ]


def _claims(listener: Listener) -> list[str]:
    """Return expressions for headers with which a client could claim another address, scheme or host."""
    if not trusts_load_balancers(listener):
        return claim_groups(listener.address_headers)
    return [*groups(sorted(claimed(listener))), *other_spellings([FORWARDED_FOR])]


def _timeouts(view: View, listener: Listener) -> Tree:
    tree: Tree = {}
    if view.proxy.version >= _HEADERS_TIMEOUT:
        tree["requestHeadersReceivedTimeout"] = duration(listener.request_headers_timeout)
    if listener.idle_timeout is not None:
        tree["idleTimeout"] = duration(listener.idle_timeout)
    if view.proxy.version < _ROUTE_IDLE_TIMEOUT:
        idle = (view.routes[rule.route].idle_timeout for rule in listener.rules)
        tree["streamIdleTimeout"] = duration(max((item for item in idle if item is not None), default=0))
    return tree


def _client_validation(context: Context, listener: Listener, revoked: Mapping[str, str]) -> Tree:
    tls = listener.tls
    if tls is None or tls.client_ca is None:
        return {}
    is_required = tls.client_certificate == "required"
    tree: Tree = {"optional": not is_required}
    if context.view.proxy.version >= _CLIENT_MODES:
        tree = {"mode": "RequireAndVerify" if is_required else "VerifyIfGiven"}
    tree["caCertificateRefs"] = [context.certificates.of_listener(listener)]
    if listener.name in revoked:
        tree["crl"] = {"refs": [{"group": "", "kind": "ConfigMap", "name": revoked[listener.name]}]}
    return {"clientValidation": tree}


# ── Findings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def gaps(view: View, objects: KubernetesObjects) -> Iterator[Gap]:
    """Yield listener protections that only policies of an existing Gateway's owner can express."""
    for listener in view.listeners if objects.gateway is not None else ():
        protections = (
            ("client_certificate", ("tls", "client_ca"), listener.tls is not None and listener.tls.client_ca),
            ("max_connections", ("max_connections",), listener.max_connections),
        )
        for feature, key, is_set in protections:
            if is_set:
                path = ("listeners", listener.name, *key)
                yield Gap(f"listener.{feature}", "listener", listener.name, path, _OWNER, _HINT)


def diagnostics(context: Context) -> Iterator[Diagnostic]:
    """Yield the listener settings that no policy can express."""
    if context.objects.gateway is not None:
        yield from _of_existing_gateway(context.view)
        return
    for listener in context.view.listeners:
        path: Path = ("listeners", listener.name)
        if len(_expressions(context, listener)) >= _MAX_MATCHES:
            message = (
                f"a ClientTrafficPolicy has at most {_MAX_MATCHES} expressions for headers that no client may send"
            )
            hint = "set or remove fewer headers in the routes of this proxy"
            yield Diagnostic("LB172", message, path=path, hint=hint)
        client = listener.client_address
        if client is not None and client.header != FORWARDED_FOR:
            message = f"the gateway would accept {client.header} from every peer, so it uses the peer's address"
            yield warning("listener.client_address", message, (*path, "client_address", "header"), FORWARDED_FOR)
        if not listener.http2 and listener.tls is None:
            message = "the gateway accepts HTTP/2 from every client without TLS"
            yield warning("listener.h2c", message, (*path, "http2"), "remove it, or use `tls`")
        if listener.request_id != _REQUEST_ID:
            message = f"the gateway sends the request ID in {_REQUEST_ID}, not in {listener.request_id}"
            yield warning("listener.request_id", message, (*path, "request_id"), _REQUEST_ID)


def _of_existing_gateway(view: View) -> Iterator[Diagnostic]:
    for listener in view.listeners:
        for feature, key in _differences(view, listener):
            yield warning(feature, _OWNER, ("listeners", listener.name, *key), _HINT)
    message = (
        "lbctl does not render this Gateway, so it does not remove headers that clients can use to claim another "
        "address"
    )
    path = ("proxies", view.proxy.name, "kubernetes", "gateway")
    yield Diagnostic("LB174", message, path=path, hint=_HINT, severity="warning")


def _differences(view: View, listener: Listener) -> Iterator[tuple[str, Path]]:
    """Yield (feature, key) of the settings that differ from the defaults."""
    tls, default = listener.tls, Listener(listener.name, listener.bind)
    timeouts = listener.request_headers_timeout, listener.idle_timeout
    default_timeouts = default.request_headers_timeout, default.idle_timeout
    differences: tuple[tuple[str, Path, bool], ...] = (
        ("listener.tls", ("tls", "min_version"), tls is not None and tls.min_version != "1.2"),
        ("listener.http2" if tls else "listener.h2c", ("http2",), not listener.http2),
        ("listener.client_address", ("client_address",), listener.client_address is not None),
        ("listener.proxy_protocol", ("proxy_protocol",), listener.proxy_protocol),
        ("listener.request_id", ("request_id",), listener.request_id != _REQUEST_ID),
        (
            "listener.timeouts",
            ("timeouts",),
            timeouts != default_timeouts and view.proxy.version >= _HEADERS_TIMEOUT,
        ),
    )
    return ((feature, key) for feature, key, is_different in differences if is_different)
