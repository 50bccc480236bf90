"""Keeps a client on its replica by means of a cookie or a session ID assigned by the replica.

Neither the cookie nor the session ID reveals the replica. Envoy's own filter for this purpose writes the replica's
address into the cookie and accepts any address from it. Here, the cookie contains an opaque token, which a fixed Lua
script looks up in the route's configuration. If the token is unknown or its replica is unhealthy, the load balancer
chooses. Each endpoint's metadata contains its cookie, so every response sets the cookie of the replica that served it.

If a replica assigns a session ID in a header, a dot and the token are appended to the ID. The dot and the token are
removed before a replica receives the ID.
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
_SESSION = "session"
"""Key of the replica's token in an endpoint's metadata."""
_COOKIE = "cookie"
"""Key of the cookie in an endpoint's metadata."""
_SCRIPT = r"""
function envoy_on_request(handle)
  local context, headers = handle:filterContext(), handle:headers()
  local replicas, header = context:get('replicas'), context:get('session')
  local named, hex = header and headers:get(header), ('%x'):rep(TOKEN)
  local session, token = (named or ''):match('^(.*)%.(' .. hex .. ')$')
  if session then
    headers:replace(header, session)
    if replicas[token] then handle:setUpstreamOverrideHost(replicas[token], false) end
  end
  local name = context:get('cookie')
  if not name then return end
  for key, value in (headers:get('cookie') or ''):gmatch('([^=;,%s]+)=([^;,%s]*)') do
    if key == name and replicas[value] then
      handle:setUpstreamOverrideHost(replicas[value], false)
      return
    end
  end
end
""".lstrip().replace("TOKEN", str(replica_token.DIGITS))


def http_filters(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the filter if the listener routes to a pool with client affinity.

    The filter acts only on routes that configure it.
    """
    actions = [view.routes[rule.route].action for rule in listener.rules]
    if not any(
        _keeps_clients(view.pools[name]) for item in actions if isinstance(item, Forward) for name in item.pools
    ):
        return []
    config = lua_pb2.Lua(default_source_code={"inline_string": _SCRIPT}, clear_route_cache={"value": False})
    return [extension(FILTER, config)]


def keeps(pool: Pool, route: Route) -> bool:
    """Return whether a route keeps its clients on their replicas.

    A route with a fallback does not do this, because Envoy then chooses a new replica for each request.
    """
    return _keeps_clients(pool) and isinstance(route.action, Forward) and route.action.fallback is None


def per_route(pool: Pool, route: Route) -> dict[str, Any]:
    """Return the filter's configuration for a route or a share; empty without client affinity."""
    if not keeps(pool, route):
        return {}
    config = lua_pb2.LuaPerRoute()
    addresses = {
        replica_token.word(pool.name, item.name): str(item.address) for item in pool.replicas if _has_ip_address(item)
    }
    cookie = {_COOKIE: pool.affinity.cookie} if pool.affinity else {}
    session = {_SESSION: pool.session.name} if pool.session else {}
    config.filter_context.update({**cookie, **session, "replicas": addresses})
    return {FILTER: pack(config)}


def response_headers(pool: Pool, route: Route) -> list[dict[str, object]]:
    """Return the `response_headers_to_add` of a route or a share: the cookie, or the session ID with the token."""
    if not keeps(pool, route):
        return []
    if pool.session is not None:
        value = f"%RESP({pool.session.name})%.%UPSTREAM_METADATA({NAMESPACE}:{_SESSION})%"
        header = {"key": pool.session.name, "value": value}
        return [{"header": header, "append_action": "OVERWRITE_IF_EXISTS"}]
    header = {"key": "set-cookie", "value": f"%UPSTREAM_METADATA({NAMESPACE}:{_COOKIE})%"}
    return [{"header": header, "append_action": "APPEND_IF_EXISTS_OR_ADD"}]


def endpoint_metadata(pool: Pool, replica: Replica, *, secure: bool) -> dict[str, str | bool]:
    """Return the metadata of a replica's endpoint: its cookie or its token, if the pool has client affinity.

    `secure` restricts the cookie to HTTPS.
    """
    word = replica_token.word(pool.name, replica.name)
    if pool.session is not None:
        return {_SESSION: word}
    if pool.affinity is None or not _has_ip_address(replica):
        return {}
    lifetime = max(1, pool.affinity.ttl // 1000)
    cookie = f"{pool.affinity.cookie}={word}; Path=/; Max-Age={lifetime}; HttpOnly; SameSite=Lax"
    return {_COOKIE: cookie + ("; Secure" if secure else "")}


def lacks_ip_addresses(pool: Pool) -> bool:
    """Return whether affinity fails for some replicas because the script needs their IP addresses."""
    return _keeps_clients(pool) and (not pool.replicas or not all(map(_has_ip_address, pool.replicas)))


def _keeps_clients(pool: Pool) -> bool:
    return pool.affinity is not None or pool.session is not None


def _has_ip_address(replica: Replica) -> bool:
    return not replica.address.path and is_ip(replica.address.host)
