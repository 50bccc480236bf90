"""The rules of a listener as one `RouteConfiguration`.

Envoy selects the virtual host with the most specific matching domain and never considers any other. For this reason,
the virtual host of a name contains every rule that can match a request for that name, in table order: its own rules,
rules of wildcards that cover it, and rules for any host. One rule may become several adjacent Envoy routes (pins,
sticky variants).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from envoy.config.core.v3 import base_pb2
from envoy.config.route.v3 import route_components_pb2, route_pb2

from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.routes import Forward, Redirect, Respond, Route
from lbctl.ir.snapshot import View
from lbctl.targets import response_bodies
from lbctl.targets.client_identity import challenge, credential_headers
from lbctl.targets.envoy import (
    access,
    affinity,
    auth,
    external,
    filters,
    forwards,
    header_text,
    local_reply,
    matches,
    models,
    picking,
)
from lbctl.targets.envoy.cluster_names import ClusterPlan
from lbctl.targets.envoy.protos import header_option
from lbctl.targets.response_bodies import NO_MODEL, UNKNOWN_MODEL

_BODY = 4_096
_JSON = "application/json"
_INTERNAL = ("x-envoy-external-address", matches.FRAMING_HEADER)
_SAFE = ("GET", "HEAD")


@dataclass(frozen=True, slots=True)
class RouteInputs:
    """The inputs for building the routes of one listener."""

    view: View
    listener: Listener
    plan: ClusterPlan


def route_configuration(table: RouteInputs) -> route_pb2.RouteConfiguration:
    """Return a listener's route table, with one virtual host per host that its rules name."""
    rules = table.listener.rules
    ways = [(rule, list(_rule(table, rule))) for rule in rules]
    bodies = response_bodies.bodies(table.view)
    return route_pb2.RouteConfiguration(
        name=table.listener.name,
        ignore_port_in_host_matching=True,
        typed_per_filter_config=filters.per_table(table.view, table.listener),
        request_headers_to_add=list(map(_client_address, table.listener.address_headers)),
        request_headers_to_remove=[
            *_INTERNAL,
            *auth.own_headers(table.view, table.listener),
            *picking.own_headers(table.view, table.listener),
        ],
        most_specific_header_mutations_wins=True,
        max_direct_response_body_size_bytes={"value": max([_BODY, *(len(body.encode()) for body in bodies)])},
        virtual_hosts=[_virtual_host(table, host, ways) for host in sorted({"", *(rule.host for rule in rules)})],
    )


def _client_address(name: str) -> dict[str, object]:
    """Return the `HeaderValueOption` that carries the client's address to the replica."""
    return {
        "header": {"key": name, "value": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%"},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }


def covers(pattern: str, host: str) -> bool:
    """Return whether a rule for `pattern` applies to all requests that Envoy sends to the virtual host of `host`."""
    return not pattern or pattern == host or (pattern.startswith("*.") and host.endswith(pattern[1:]))


def _virtual_host(
    table: RouteInputs, host: str, ways: Sequence[tuple[Rule, list[route_components_pb2.Route]]]
) -> route_components_pb2.VirtualHost:
    """Return the virtual host of a host name; an empty name means all other hosts.

    `ways` contains each rule of the table with its routes.
    """
    covering = [(rule, built) for rule, built in ways if covers(rule.host, host)]
    routes = [*_refused(table), *(item for _, built in covering for item in built)]
    routes += _no_model(table, [rule for rule, _ in covering])
    return route_components_pb2.VirtualHost(
        name=host or "*",
        domains=[host or "*"],
        routes=[*routes, _no_route(table)],
        request_body_buffer_limit={"value": filters.held(table.view, table.listener)},
    )


def _no_model(table: RouteInputs, rules: Iterable[Rule]) -> Iterator[route_components_pb2.Route]:
    """Yield the responses to requests that would match a rule if they named another model."""
    found = [matches.without_model(rule) for rule in rules if rule.models]
    for match in {item.SerializeToString(deterministic=True): item for item in found}.values():
        for named in matches.named_model(match):
            yield _direct(table, named, "", 404, UNKNOWN_MODEL, _JSON)
        yield _direct(table, match, "", 404, NO_MODEL, _JSON)


def _no_route(table: RouteInputs) -> route_components_pb2.Route:
    return _direct(table, matches.path(Rule("").path), "", 404, local_reply.error(404), _JSON)


def _refused(table: RouteInputs) -> Iterator[route_components_pb2.Route]:
    method = _narrowed(_everything(), [matches.refused_method()])
    yield _direct(table, method, "", 405, local_reply.METHOD, _JSON)
    chunked = _narrowed(_everything(), [matches.chunked_http_10()])
    yield _direct(table, chunked, "", 400, local_reply.FRAMING, _JSON)
    host = _narrowed(_everything(), [matches.malformed_host()])
    yield _direct(table, host, "", 400, local_reply.HOST, _JSON)
    yield _direct(table, matches.ambiguous_path(), "", 400, local_reply.PATH, _JSON)
    client = table.listener.client_address
    if client is not None and client.header != matches.FORWARDED_FOR:
        several = _narrowed(_everything(), [matches.several(client.header)])
        yield _direct(table, several, "", 400, local_reply.SEVERAL_ADDRESSES, _JSON)


def _everything() -> route_components_pb2.RouteMatch:
    return route_components_pb2.RouteMatch(**matches.path(Rule("").path))


def _rule(table: RouteInputs, rule: Rule) -> Iterator[route_components_pb2.Route]:
    if rule.models:
        unread = _direct(table, matches.unread_model(matches.without_model(rule)), "", 415, local_reply.CODED, _JSON)
        yield _limited(table, unread, table.view.routes[rule.route])
    if rule.clear_model:
        unclear = _direct(table, models.unclear(matches.without_model(rule)), "", 400, local_reply.UNCLEAR_MODEL, _JSON)
        yield _limited(table, unclear, table.view.routes[rule.route])
    for match in matches.route_matches(rule):
        yield from _matched(table, rule, match)


def _matched(
    table: RouteInputs, rule: Rule, match: route_components_pb2.RouteMatch
) -> Iterator[route_components_pb2.Route]:
    route = table.view.routes[rule.route]
    if isinstance(route.action, Respond):
        yield from _respond(table, route, route.action, match)
    elif isinstance(route.action, Redirect):
        for message in _redirects(table, match, route.name):
            _headers(table, message, route)
            yield _limited(table, message, route)
    elif not auth.admits_nobody(table.view, route):
        yield from _forward(table, rule, route, route.action, match)
    if route.needs_credentials and (auth.admits_nobody(table.view, route) or auth.demands_token(table.view, route)):
        yield _limited(table, _unauthorized(table, match, route), route)


def _respond(
    table: RouteInputs, route: Route, action: Respond, match: route_components_pb2.RouteMatch
) -> Iterator[route_components_pb2.Route]:
    """Yield the routes that Envoy responds to itself, one for each kind of credentials that the rule accepts."""
    gates: list[auth.Gate] = [([], {})]
    if route.needs_credentials:
        gates = [] if auth.admits_nobody(table.view, route) else list(auth.gates(table.view, route))
    text = response_bodies.body_of(action, table.listener, table.view)
    for credentials, auth_filters in gates:
        message = _direct(table, _narrowed(match, credentials), route.name, action.status, text, action.content_type)
        for name, config in {**auth_filters, **external.per_route(route)}.items():
            message.typed_per_filter_config[name].CopyFrom(config)
        _headers(table, message, route)
        yield _limited(table, message, route)


def _limited(table: RouteInputs, message: route_components_pb2.Route, route: Route) -> route_components_pb2.Route:
    """Add the client address lists to a route that Envoy responds to itself."""
    for name, config in access.per_route(table.listener, route).items():
        message.typed_per_filter_config[name].CopyFrom(config)
    return message


def _unauthorized(table: RouteInputs, match: object, route: Route) -> route_components_pb2.Route:
    message = _direct(table, match, route.name, 401, local_reply.error(401), _JSON)
    message.response_headers_to_add.add(**header_option("www-authenticate", challenge(route.auth)))
    for option in header_text.response_options(table.listener, route):
        message.response_headers_to_add.add(**option)
    return message


def _direct(
    table: RouteInputs, match: object, name: str, status: int, body: str, content_type: str
) -> route_components_pb2.Route:
    return route_components_pb2.Route(
        name=name,
        match=match,
        direct_response={"status": status, "body": {"inline_string": body}},
        response_headers_to_add=[header_option("content-type", content_type)],
        typed_per_filter_config=filters.unrouted(table.view, table.listener),
    )


def _redirects(
    table: RouteInputs, match: route_components_pb2.RouteMatch, name: str
) -> Iterator[route_components_pb2.Route]:
    """Yield the redirects of a match.

    Status 308 keeps the method of a POST, but older browsers support 301 better.
    """
    for methods, code in ((_SAFE, "MOVED_PERMANENTLY"), ((), "PERMANENT_REDIRECT")):
        narrowed = _narrowed(match, [matches.method(*methods)] if methods else [])
        yield route_components_pb2.Route(
            name=name,
            match=narrowed,
            redirect={"https_redirect": True, "port_redirect": 443, "response_code": code},
            typed_per_filter_config=filters.unrouted(table.view, table.listener),
        )


def _forward(
    table: RouteInputs, rule: Rule, route: Route, action: Forward, match: route_components_pb2.RouteMatch
) -> Iterator[route_components_pb2.Route]:
    secure = table.listener.tls is not None
    ways = [(way, gate) for way in forwards.targets(action, secure=secure) for gate in auth.gates(table.view, route)]
    for (conditions, target), (credentials, auth_filters) in ways:
        only = forwards.only_pool(table.view, target)
        message = route_components_pb2.Route(
            name=route.name,
            match=_narrowed(match, [*conditions, *credentials]),
            route=forwards.route_action(table.view, table.plan, route, rule, target),
            typed_per_filter_config={
                **auth_filters,
                **access.per_route(table.listener, route),
                **filters.per_route(table.view, table.listener, rule, route),
                **(affinity.per_route(only, route) | picking.per_route(only, route) if only else {}),
            },
            metadata=forwards.marks(route, action),
            response_headers_to_add=affinity.response_headers(only, route) if only else None,
        )
        _headers(table, message, route)
        yield message


def _narrowed(
    match: route_components_pb2.RouteMatch, headers: Sequence[dict[str, object]]
) -> route_components_pb2.RouteMatch:
    if not headers:
        return match
    narrowed = route_components_pb2.RouteMatch()
    narrowed.CopyFrom(match)
    for item in headers:
        narrowed.headers.add(**item)
    return narrowed


def _headers(table: RouteInputs, message: route_components_pb2.Route, route: Route) -> None:
    for option in header_text.request_options(table.listener, route, without=forwards.HOST):
        message.request_headers_to_add.add(**option)
    for option in header_text.response_options(table.listener, route):
        header = base_pb2.HeaderValueOption(**option)
        for place in _response_places(message, header.header.key):
            place.response_headers_to_add.append(header)
    tenant = auth.tenant_header(route)
    if tenant:
        message.request_headers_to_add.add(**tenant)
    removed = [*header_text.replaced(route.request_headers), *route.request_headers.remove]
    message.request_headers_to_remove.extend([*removed, *credential_headers(route.auth)])
    for name in [*header_text.replaced(route.response_headers), *route.response_headers.remove]:
        for place in _response_places(message, name):
            place.response_headers_to_remove.append(name)


def _response_places(
    message: route_components_pb2.Route, name: str
) -> Sequence[route_components_pb2.Route | route_components_pb2.WeightedCluster.ClusterWeight]:
    """Return where to put a rule about the response header `name`: with lbctl's cookies, or in the route.

    Envoy applies the response changes of the drawn share before the route's changes. In each step, it removes and
    replaces headers before it adds any.
    """
    shares = message.route.weighted_clusters.clusters
    sets_cookies = any(share.response_headers_to_add for share in shares)
    return shares if name == "set-cookie" and sets_cookies else [message]
