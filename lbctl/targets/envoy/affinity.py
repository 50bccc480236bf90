"""Cookie affinity: a client stays with its replica by a cookie that does not say which replica that is.

Envoy's own filter for this writes the replica's address into the cookie, and accepts any address from it. Here the
cookie holds an opaque token, which a fixed Lua script looks up in the configuration of the route. The load balancer
chooses where the token is unknown or its replica is not fit. The cookie itself is part of the endpoint's metadata, so
that every response carries the cookie of the replica that served it.
"""

from __future__ import annotations

from typing import Any

from envoy.extensions.filters.http.lua.v3 import lua_pb2

from lbctl.base.hosts import is_ip
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets import replica_token
from lbctl.targets.envoy.protos import extension, pack
from lbctl.targets.envoy.sources import NAMESPACE

FILTER = "lbctl.affinity"
_COOKIE = "cookie"
"""The key of the cookie in an endpoint's metadata."""
_SCRIPT = r"""
function envoy_on_request(handle)
  local name = handle:filterContext():get('cookie')
  if not name then return end
  local replicas = handle:filterContext():get('replicas')
  for key, value in (handle:headers():get('cookie') or ''):gmatch('([^=;,%s]+)=([^;,%s]*)') do
    if key == name and replicas[value] then
      handle:setUpstreamOverrideHost(replicas[value], false)
      return
    end
  end
end
""".lstrip()


def http_filters(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the filter, if the listener leads to a pool with affinity; it acts only on routes that configure it."""
    actions = [view.routes[rule.route].action for rule in listener.rules]
    if not any(view.pools[name].affinity for item in actions if isinstance(item, Forward) for name in item.pools):
        return []
    config = lua_pb2.Lua(default_source_code={"inline_string": _SCRIPT}, clear_route_cache={"value": False})
    return [extension(FILTER, config)]


def keeps(pool: Pool, route: Route) -> bool:
    """Return whether a route keeps its clients with their replicas.

    With a fallback it does not, because Envoy then chooses a replica anew for each request.
    """
    return pool.affinity is not None and isinstance(route.action, Forward) and route.action.fallback is None


def per_route(pool: Pool, route: Route) -> dict[str, Any]:
    """Return what a route or a share configures of the filter; it is empty where clients are not kept."""
    if pool.affinity is None or not keeps(pool, route):
        return {}
    config = lua_pb2.LuaPerRoute()
    addresses = {
        replica_token.word(pool.name, item.name): str(item.address) for item in pool.replicas if _has_ip_address(item)
    }
    config.filter_context.update({"cookie": pool.affinity.cookie, "replicas": addresses})
    return {FILTER: pack(config)}


def set_cookie_headers(pool: Pool, route: Route) -> list[dict[str, object]]:
    """Return the `response_headers_to_add` of a route or a share, which set the cookie."""
    if not keeps(pool, route):
        return []
    header = {"key": "set-cookie", "value": f"%UPSTREAM_METADATA({NAMESPACE}:{_COOKIE})%"}
    return [{"header": header, "append_action": "APPEND_IF_EXISTS_OR_ADD"}]


def endpoint_metadata(pool: Pool, replica: Replica, *, secure: bool) -> dict[str, str | bool]:
    """Return the metadata of a replica's endpoint: its cookie, where the pool has affinity.

    `secure` restricts the cookie to HTTPS.
    """
    if pool.affinity is None or not _has_ip_address(replica):
        return {}
    pair = f"{pool.affinity.cookie}={replica_token.word(pool.name, replica.name)}; Path=/"
    cookie = f"{pair}; Max-Age={max(1, pool.affinity.ttl // 1000)}; HttpOnly; SameSite=Lax"
    return {_COOKIE: cookie + ("; Secure" if secure else "")}


def lacks_ip_addresses(pool: Pool) -> bool:
    """Return whether clients cannot be kept with some replicas, because the script needs their IP addresses."""
    return pool.affinity is not None and (not pool.replicas or not all(map(_has_ip_address, pool.replicas)))


def _has_ip_address(replica: Replica) -> bool:
    return not replica.address.path and is_ip(replica.address.host)
