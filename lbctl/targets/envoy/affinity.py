"""A client stays with its replica by a cookie that does not say which one that is.

Envoy's own filter for this writes the replica's address into the cookie, and takes any address from it. So the cookie
holds an opaque word, which a fixed script looks up in what the route says; what is not there, or not fit, is left to
the balancer. The cookie itself travels with the endpoint: whichever replica answers, the answer carries its cookie.
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
"""In the metadata of an endpoint."""
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
    """Does nothing but where a route asks for it."""
    actions = [view.routes[rule.route].action for rule in listener.rules]
    if not any(view.pools[name].affinity for item in actions if isinstance(item, Forward) for name in item.pools):
        return []
    config = lua_pb2.Lua(default_source_code={"inline_string": _SCRIPT}, clear_route_cache={"value": False})
    return [extension(FILTER, config)]


def keeps(pool: Pool, route: Route) -> bool:
    """Whether a route keeps its clients with their replicas: of a pool with a fallback Envoy draws each time anew."""
    return pool.affinity is not None and isinstance(route.action, Forward) and route.action.fallback is None


def per_route(pool: Pool, route: Route) -> dict[str, Any]:
    """What a route or a share says to the filter."""
    if pool.affinity is None or not keeps(pool, route):
        return {}
    config = lua_pb2.LuaPerRoute()
    known = {replica_token.word(pool.name, item.name): str(item.address) for item in pool.replicas if _known(item)}
    config.filter_context.update({"cookie": pool.affinity.cookie, "replicas": known})
    return {FILTER: pack(config)}


def answer(pool: Pool, route: Route) -> list[dict[str, object]]:
    """`response_headers_to_add` of a route or a share."""
    if not keeps(pool, route):
        return []
    told = {"key": "set-cookie", "value": f"%UPSTREAM_METADATA({NAMESPACE}:{_COOKIE})%"}
    return [{"header": told, "append_action": "APPEND_IF_EXISTS_OR_ADD"}]


def mark(pool: Pool, replica: Replica, *, secure: bool) -> dict[str, str | bool]:
    """What the endpoint of a replica carries: its cookie; `secure`: for HTTPS alone."""
    if pool.affinity is None or not _known(replica):
        return {}
    kept = f"{pool.affinity.cookie}={replica_token.word(pool.name, replica.name)}; Path=/"
    words = f"{kept}; Max-Age={max(1, pool.affinity.ttl // 1000)}; HttpOnly; SameSite=Lax"
    return {_COOKIE: words + ("; Secure" if secure else "")}


def unknown(pool: Pool) -> bool:
    """Whether clients cannot be kept with some of the replicas: the script needs their addresses."""
    return pool.affinity is not None and (not pool.replicas or not all(map(_known, pool.replicas)))


def _known(replica: Replica) -> bool:
    return not replica.address.path and is_ip(replica.address.host)
