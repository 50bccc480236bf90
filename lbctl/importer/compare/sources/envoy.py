"""Rebuilds an Envoy configuration for loopback from fields that are known to be harmless.

Any other field causes the smallest enclosing part that produces responses (a route, virtual host or listener) to be
closed. If a cluster cannot be rebuilt, the routes that lead to it are closed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from lbctl.apply.reserved_ports import LOOPBACK
from lbctl.importer.compare.places import STAND_IN_TIMEOUT, StandIns
from lbctl.importer.compare.sources import envoy_fields as fields
from lbctl.importer.compare.sources.envoy_shapes import NOT_LISTED, RefusedError, boolean, items, text, typed
from lbctl.importer.compare.sources.removed import (
    CLOSED_HEADER,
    LOST_REPLICAS,
    ClosedError,
    Removals,
    Rewritten,
)
from lbctl.importer.draft import CLOSED_STATUS
from lbctl.importer.envoy.clusters import address_of
from lbctl.importer.envoy.listeners import MANAGER, bind_of
from lbctl.importer.envoy.view import EMPTY, ConfigView
from lbctl.importer.statement import Statement
from lbctl.model.node import Node

_PREFIX = "type.googleapis.com/"
_ROUTER = {
    "name": "envoy.filters.http.router",
    "typed_config": {"@type": f"{_PREFIX}envoy.extensions.filters.http.router.v3.Router"},
}
_TLS = "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext"
_SECTIONS = frozenset({"listeners", "clusters", "route_configs", "endpoints"})
_ALL_REQUESTS = {"prefix": "/"}


def rewrite(root: Node | None, places: StandIns) -> Rewritten:
    """Return the text of a static Envoy configuration for loopback."""
    removals = Removals()
    view = ConfigView(root, "")
    for name, child in view.fields():
        if name != "static_resources":
            removals.leave_out(child.statement, "Envoy itself")
    static = view.get("static_resources")
    for name, child in static.fields():
        if name not in _SECTIONS:
            removals.leave_out(child.statement, "Envoy itself")
    made = _Envoy(static, places, removals).made()
    # Envoy reads some unquoted strings as numbers, although YAML treats them as strings. JSON quotes all of them.
    return Rewritten(json.dumps({"static_resources": made}, indent=1), removals.items)


class _Envoy:
    """Writes listeners and clusters."""

    def __init__(self, static: ConfigView, places: StandIns, removals: Removals) -> None:
        self._static = static
        self._places = places
        self._removals = removals
        self._configs = {item.get("name").text: item for item in static.get("route_configs")}
        self._assignments = {item.get("cluster_name").text: item for item in static.get("endpoints")}
        self._clusters: dict[str, dict[str, Any]] = {}
        self._closed_clusters: dict[str, ClosedError] = {}
        self._filters: dict[str, bool] = {}
        """Maps the name of each filter in a connection manager to whether the filter is run."""

    def made(self) -> dict[str, Any]:
        """Return the configuration."""
        for item in self._static.get("clusters"):
            name = item.get("name").text
            try:
                self._clusters[name] = self._cluster(item)
            except RefusedError as error:
                self._closed_clusters[name] = self._close(error)
        self._settle_aggregates()
        listeners = [made for item in self._static.get("listeners") if (made := self._listener(item))]
        return {"listeners": listeners, "clusters": list(self._clusters.values())}

    def _close(self, error: RefusedError | ClosedError) -> ClosedError:
        """Return the error that causes the part around a rejected value to be closed."""
        if isinstance(error, ClosedError):
            return error
        return self._removals.close(error.view.statement, error.reason, error.word)

    # ── Clusters ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _cluster(self, item: ConfigView) -> dict[str, Any]:
        made: dict[str, Any] = fields.CLUSTER(item, self._removals)
        kind = item.get("cluster_type", "typed_config")
        if kind.type.endswith(".aggregate.v3.ClusterConfig"):
            aggregate = {"name": "envoy.clusters.aggregate", "typed_config": fields.AGGREGATE(kind, self._removals)}
            return made | {"lb_policy": "CLUSTER_PROVIDED", "cluster_type": aggregate}
        if item.get("type").text not in fields.KINDS:
            raise RefusedError(item.get("type"), NOT_LISTED, item.get("type").text)
        if item.get("cluster_type") and kind.type not in fields.TYPED_KINDS:
            raise RefusedError(item.get("cluster_type"))
        name = item.get("name").text
        assignment = item.get("load_assignment") or self._assignments.get(name, EMPTY)
        if not assignment:
            raise RefusedError(item.get("name") or item, "the cluster's endpoints are not in the configuration")
        fields.ASSIGNMENT(assignment, self._removals)
        endpoints = [each for group in assignment.get("endpoints") for each in group.get("lb_endpoints")]
        is_known = any(self._port(each) is not None for each in endpoints)
        groups = [self._group(group, is_known=is_known) for group in assignment.get("endpoints")]
        load = {"cluster_name": name, "endpoints": groups}
        return made | {"type": "STATIC", "lb_policy": self._policy(item), "load_assignment": load}

    @staticmethod
    def _policy(item: ConfigView) -> str:
        typed_policies = item.get("load_balancing_policy")
        for policy in typed_policies.get("policies"):
            kind = policy.get("typed_extension_config", "typed_config")
            if kind.type not in fields.TYPED_POLICIES:
                raise RefusedError(kind)
            return fields.TYPED_POLICIES[kind.type]
        policy = item.get("lb_policy")
        if policy.text and policy.text not in {*fields.POLICIES, "CLUSTER_PROVIDED"}:
            raise RefusedError(policy, NOT_LISTED, policy.text)
        return policy.text if policy.text in fields.POLICIES else "ROUND_ROBIN"

    def _port(self, item: ConfigView) -> int | None:
        """Return the port that replaces an endpoint, or None if the endpoint is not a replica in the fleet."""
        return self._places.replica_port(address_of(item.get("endpoint", "address")) or "")

    def _group(self, group: ConfigView, *, is_known: bool) -> dict[str, Any]:
        """Return a group of endpoints.

        If any of the cluster's endpoints are replicas, all others are omitted.
        """
        lost = [each for each in group.get("lb_endpoints") if is_known and self._port(each) is None]
        for each in lost:
            address = address_of(each.get("endpoint", "address"))
            self._removals.leave_out(each.statement, LOST_REPLICAS, address or "endpoint")
        endpoints = [self._endpoint(each) for each in group.get("lb_endpoints") if each not in lost]
        return {**fields.ENDPOINTS(group, self._removals), "lb_endpoints": endpoints}

    def _endpoint(self, item: ConfigView) -> dict[str, Any]:
        """Return an endpoint with a replacement address. Only the host name is kept, for `auto_host_rewrite`."""
        socket = item.get("endpoint", "address", "socket_address")
        host = text(socket.get("address"), self._removals) if socket.get("address") else ""
        port = self._port(item) or self._places.dead
        endpoint = {"address": {"socket_address": {"address": LOOPBACK, "port_value": port}}, "hostname": host}
        return {"load_balancing_weight": 1, **fields.ENDPOINT(item, self._removals), "endpoint": endpoint}

    def _settle_aggregates(self) -> None:
        """Reduce aggregate clusters to the parts that can be run.

        If no part can be run, the cluster is closed for the same reason as its first part.
        """
        for name, made in list(self._clusters.items()):
            if "cluster_type" not in made:
                continue
            config = made["cluster_type"]["typed_config"]
            parts = config.get("clusters", [])
            config["clusters"] = [each for each in parts if each in self._clusters]
            if not config["clusters"]:
                del self._clusters[name]
                closed = [self._closed_clusters[each] for each in parts if each in self._closed_clusters]
                self._closed_clusters.update({name: closed[0]} if closed else {})

    def _check_cluster(self, view: ConfigView, around: ConfigView) -> None:
        """Raise ClosedError or RefusedError if a cluster cannot be run."""
        if view.text in self._closed_clusters:
            raise self._closed_clusters[view.text]
        if view.text not in self._clusters:
            raise RefusedError(view or around, "the cluster does not exist")

    # ── Listeners ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _listener(self, item: ConfigView) -> dict[str, Any] | None:
        port = self._places.binds.get(bind_of(item) or "")
        chains = [*item.get("filter_chains"), *filter(None, [item.get("default_filter_chain")])]
        speaking = [(chain, manager) for chain in chains if (manager := _manager(chain))]
        if port is None or not speaking:
            self._removals.leave_out(item.statement, "listeners that are not in the fleet", item.get("name").text)
            return None
        (chain, manager), *_ = speaking
        for other in chains:
            if other is not chain:
                self._removals.leave_out(other.statement, "additional filter chains")
        try:
            fields.LISTENER(item, self._removals)
            for each in item.get("listener_filters"):
                fields.LISTENER_FILTERS(each.get("typed_config"), self._removals)
            self._check_chain(chain)
            typed_config = self._connection_manager(manager)
        except (RefusedError, ClosedError) as error:
            typed_config = self._closed_manager(self._close(error))
        made: dict[str, Any] = {"filters": [{"name": "envoy.filters.network.http_connection_manager",
                                             "typed_config": typed_config}]}  # fmt: skip
        if chain.get("transport_socket"):
            made["transport_socket"] = self._transport_socket()
        place = {"socket_address": {"address": LOOPBACK, "port_value": port}}
        return {"name": f"listener-{port}", "address": place, "filter_chains": [made]}

    def _check_chain(self, chain: ConfigView) -> None:
        fields.CHAIN(chain, self._removals)
        if match := chain.get("filter_chain_match"):
            fields.CHAIN_MATCH(match, self._removals)
        for item in chain.get("filters"):
            if item.get("typed_config").type != MANAGER:
                raise RefusedError(item.get("typed_config") or item.get("name") or item)
        socket = chain.get("transport_socket", "typed_config")
        if socket and socket.type != _TLS:
            raise RefusedError(socket)

    def _transport_socket(self) -> dict[str, Any]:
        pair = {"certificate_chain": {"filename": self._places.pem}, "private_key": {"filename": self._places.pem}}
        context = {"@type": _PREFIX + _TLS, "common_tls_context": {"tls_certificates": [pair]}}
        return {"name": "envoy.transport_sockets.tls", "typed_config": context}

    def _connection_manager(self, manager: ConfigView) -> dict[str, Any]:
        made = fields.MANAGER(manager, self._removals)
        http_filters = list(self._http_filters(manager))
        name = manager.get("rds", "route_config_name")
        config = self._configs.get(name.text, EMPTY) if name else manager.get("route_config")
        if not config:
            raise RefusedError(manager, "the listener's routes are not in the configuration")
        return {
            "@type": _PREFIX + MANAGER,
            "stat_prefix": "compared",
            **made,
            "route_config": self._routes(config),
            "http_filters": http_filters,
        }

    def _closed_manager(self, closed: ClosedError) -> dict[str, Any]:
        hosts = [{"name": "all", "domains": ["*"], "routes": [_closed_route(_ALL_REQUESTS, closed)]}]
        return {
            "@type": _PREFIX + MANAGER,
            "stat_prefix": "closed",
            "route_config": {"virtual_hosts": hosts},
            "http_filters": [_ROUTER],
        }

    # ── Filters ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _http_filters(self, manager: ConfigView) -> Iterator[dict[str, Any]]:
        self._filters = {}
        for item in manager.get("http_filters"):
            name, config = text(item.get("name"), self._removals), item.get("typed_config")
            is_off = boolean(item.get("disabled"), self._removals) if item.get("disabled") else False
            package = fields.filter_package(config.type)
            self._filters[name] = config.type in fields.FILTERS
            if self._filters[name]:
                made = typed(fields.FILTERS)(config, self._removals)
                self._settle_service(config, made)
                yield {"name": name, "typed_config": made, **({"disabled": True} if is_off else {})}
            elif is_off or package in fields.FILTERS_LEFT_OUT:
                named = Statement(item.statement.position, (package or "filter",))
                self._removals.leave_out(named, "filters that run code or query services")
            else:
                reason = "not a filter supported by the comparison"
                raise RefusedError(config or item.get("name") or item, reason, config.type)

    def _settle_service(self, config: ConfigView, made: dict[str, Any]) -> None:
        """Limit how long a filter waits for the service that replaces the original one."""
        if not config.type.endswith(".ExtAuthz"):
            return
        if not config.get("http_service"):
            raise RefusedError(config, "the filter has no HTTP service")
        uri = config.get("http_service", "server_uri")
        self._check_cluster(uri.get("cluster"), config)
        made["http_service"]["server_uri"]["timeout"] = STAND_IN_TIMEOUT

    def _of_filters(self, view: ConfigView) -> dict[str, Any]:
        """Return the settings in a route, virtual host or route configuration for the filters that are run."""
        made = {}
        for name, child in view.get("typed_per_filter_config").items():
            if self._filters.get(name):
                made[name] = fields.FILTER_OF_ROUTE(child, self._removals)
            else:
                self._removals.leave_out(child.statement, "filters that run code or query services")
        return {"typed_per_filter_config": made} if made else {}

    # ── Routes ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _routes(self, config: ConfigView) -> dict[str, Any]:
        made = {**fields.ROUTES(config, self._removals), **self._of_filters(config)}
        self._keep_mirrors(made)
        return made | {"virtual_hosts": [self._host(item) for item in config.get("virtual_hosts")]}

    def _host(self, item: ConfigView) -> dict[str, Any]:
        name = text(item.get("name"), self._removals)
        domains = items(text)(item.get("domains"), self._removals)
        try:
            made = {**fields.HOST(item, self._removals), **self._of_filters(item)}
            self._keep_mirrors(made)
            routes = list(self._routes_of(item))
        except (RefusedError, ClosedError) as error:
            made, routes = {}, [_closed_route(_ALL_REQUESTS, self._close(error))]
        return {"name": name, **made, "domains": domains, "routes": routes}

    def _routes_of(self, host: ConfigView) -> Iterator[dict[str, Any]]:
        """Yield the routes. A route with an unknown match handles all requests that no earlier route handles."""
        for item in host.get("routes"):
            try:
                match = fields.MATCH(item.get("match"), self._removals)
            except RefusedError as error:
                yield _closed_route(_ALL_REQUESTS, self._close(error))
                return
            try:
                yield self._route(item)
            except (RefusedError, ClosedError) as error:
                yield _closed_route(match, self._close(error))

    def _route(self, item: ConfigView) -> dict[str, Any]:
        made = {**fields.ROUTE(item, self._removals), **self._of_filters(item)}
        if not made.keys() & {"route", "redirect", "direct_response"}:
            raise RefusedError(item, NOT_LISTED)
        forward = item.get("route")
        weighted = [each.get("name") for each in forward.get("weighted_clusters", "clusters")]
        for name in [*filter(None, [forward.get("cluster")]), *weighted]:
            self._check_cluster(name, forward)
        if "route" in made:
            self._keep_mirrors(made["route"])
        return made

    def _keep_mirrors(self, made: dict[str, Any]) -> None:
        """Remove mirroring to clusters that are not run, because mirrored responses are not used."""
        mirrors = made.pop("request_mirror_policies", [])
        if kept := [each for each in mirrors if each.get("cluster") in self._clusters]:
            made["request_mirror_policies"] = kept


def _manager(chain: ConfigView) -> ConfigView | None:
    configs = (item.get("typed_config") for item in chain.get("filters"))
    return next((item for item in configs if item.type == MANAGER), None)


def _closed_route(match: dict[str, Any], closed: ClosedError) -> dict[str, Any]:
    """Return a route whose response states that the comparison closed it."""
    header = {"header": {"key": CLOSED_HEADER, "value": str(closed.number)}}
    answer = {"status": CLOSED_STATUS, "body": {"inline_string": "closed"}}
    return {"match": match, "direct_response": answer, "response_headers_to_add": [header]}
