"""Authentication: API keys, JWTs, or either of them on a route that accepts both.

Every authenticated request has a tenant, which is passed on in the same way for both kinds of credentials. The filter
that determines the tenant writes it into an internal header, and the next filter moves it into the request's metadata.
Limits, the access log and `forward_tenant` read it from there. Clients cannot send this header, because it is removed
before anything reads the request. An external service names the tenant in a configurable header, which each route reads
separately. If the service also sends another route's header, that header has no effect.

Envoy decides which filters to run before it knows the final route, so no filter is disabled for a route. Instead, the
API key filter requires a key from every request. lbctl adds one to all requests, and protected routes require their own
keys.

A valid token may lack a tenant. A route that limits by tenant rejects such a request. Every route rejects a request
whose tenant contains control characters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from envoy.config.rbac.v3 import rbac_pb2
from envoy.extensions.filters.http.api_key_auth.v3 import api_key_auth_pb2
from envoy.extensions.filters.http.header_to_metadata.v3 import header_to_metadata_pb2
from envoy.extensions.filters.http.jwt_authn.v3 import config_pb2
from envoy.extensions.filters.http.lua.v3 import lua_pb2
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2 as rbac_filter_pb2
from google.protobuf.any_pb2 import Any

from lbctl.ir.listeners import Listener
from lbctl.ir.routes import Jwt, Route
from lbctl.ir.secrets import ApiKey
from lbctl.ir.snapshot import View
from lbctl.targets import client_identity, websocket_key
from lbctl.targets.client_identity import INTERNAL_PREFIX as INTERNAL
from lbctl.targets.envoy import external
from lbctl.targets.envoy.protos import extension, pack
from lbctl.targets.envoy.sources import NAMESPACE
from lbctl.targets.jwks import has_usable_key

TENANT = "tenant"
"""Key of the tenant in the request's metadata."""
_JWT = "envoy.filters.http.jwt_authn"
_KEYS = "envoy.filters.http.api_key_auth"
_RBAC = "envoy.filters.http.rbac"
_ANSWERED_TENANT = "lbctl.answered_tenant"
"""Filter that reads the tenant from an authorization service's response, on routes whose service names a tenant."""
_TENANTS = "envoy.filters.http.header_to_metadata"
_TENANT_HEADER = f"{INTERNAL}tenant"
_TENANT_METADATA = {"metadata_namespace": NAMESPACE, "key": TENANT, "type": "STRING"}
_OWN_TENANT = {"header": _TENANT_HEADER, "on_header_present": _TENANT_METADATA, "remove": True}
"""Rule that moves the tenant from the internal header into the metadata."""
_TOKEN_HEADER = f"{INTERNAL}token"
"""Header that is present once a token has been verified."""
_PROTOCOLS = "lbctl.websocket_key"
"""Filter that reads the key from a WebSocket's subprotocols, on routes that configure it."""
_PROTOCOL_SCRIPT = (
    r"""
function envoy_on_request(handle)
  local context, headers = handle:filterContext(), handle:headers()
  local names, key, others = context:get('headers'), nil, {}
  if not names then return end
  for item in (headers:get('PROTOCOLS') or ''):gmatch('[^,]+') do
    local protocol = item:match('^%s*(.-)%s*$')
    if protocol:sub(1, #'ITEM.'):lower() == 'ITEM.' then
      key = protocol:sub(#'ITEM.' + 1)
    else
      others[#others + 1] = protocol
    end
  end
  if not key then return end
  local upgrades, sent = (headers:get('upgrade') or ''):lower() == 'websocket', ''
  for name in names:gmatch('[^,]+') do sent = sent .. (headers:get(name) or '') end
  if upgrades and sent == '' then headers:replace(names:match('[^,]+'), key) end
  if not context:get('removes_key') then return end
  headers:remove('PROTOCOLS')
  if #others > 0 then headers:add('PROTOCOLS', table.concat(others, ', ')) end
end
""".lstrip()
    .replace("PROTOCOLS", websocket_key.HEADER)
    .replace("ITEM", websocket_key.ITEM)
)
_ANYONE = f"{INTERNAL}anyone"
_SKEW = 1
"""Seconds for which a token is still accepted after it has expired. Envoy defaults to a minute, and treats 0 as the
default."""
_TOKEN = r"^[Bb]earer +[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+$"
"""Matches a token in its header. Envoy also accepts additional dots, and text before the scheme and after the token."""
_PRINTABLE = r"[^\x00-\x1f\x7f]+"

Gate = tuple[list[dict[str, object]], dict[str, Any]]
"""One accepted kind of credentials: additional header conditions, and the configuration of the filters that check
it."""


def keys(view: View, route: Route) -> tuple[ApiKey, ...]:
    """Return the route's API keys that Envoy can compare. Envoy cannot compare hashes."""
    return tuple(item for item in view.api_keys.get(route.name, ()) if item.key)


def admits_nobody(view: View, route: Route) -> bool:
    """Return whether the route is protected but has neither usable API keys nor a usable JWKS."""
    if route.auth is None or route.auth.external is not None:
        return False
    return not keys(view, route) and not _has_usable_jwks(view, route)


def holds_keys(view: View, listener: Listener) -> bool:
    """Return whether the configuration of the listener contains API keys."""
    return any(keys(view, route) for route in _protected(view, listener))


def gates(view: View, route: Route) -> Iterator[Gate]:
    """Yield the gates of a route, one for each kind of credentials that it accepts.

    If the route accepts only tokens, requests without a well-formed token do not match any gate (`demands_token`). If
    it accepts both, a valid token makes Envoy select the route again, and the newly selected route does not require a
    key.
    """
    token_filters = {_JWT: pack(config_pb2.PerRouteConfig(requirement_name=route.name)), **_tenant_check(route)}
    token: dict[str, object] = {"name": "authorization", "string_match": {"safe_regex": {"regex": _TOKEN}}}
    if not keys(view, route):
        yield ([token], token_filters) if _has_usable_jwks(view, route) else ([], _answered_tenant(route))
        return
    key_filters = {_KEYS: pack(_route_keys(view, route))}
    if _has_usable_jwks(view, route):
        yield [token, {"name": _TOKEN_HEADER, "present_match": True}], token_filters | _protocols(route)
        key_filters |= token_filters
    yield [], key_filters | _protocols(route)


def demands_token(view: View, route: Route) -> bool:
    """Return whether a route accepts only tokens."""
    return route.auth is not None and not keys(view, route) and _has_usable_jwks(view, route)


def http_filters(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the filters that authenticate the requests of a listener; empty if no route is protected."""
    protected = _protected(view, listener)
    tokens = [route for route in protected if _has_usable_jwks(view, route)]
    extensions = [extension(_JWT, _authentication(view, tokens))] if tokens else []
    if any(map(_protocols, protected)):
        extensions.append(extension(_PROTOCOLS, lua_pb2.Lua(default_source_code={"inline_string": _PROTOCOL_SCRIPT})))
    if holds_keys(view, listener):
        any_key = api_key_auth_pb2.ApiKeyAuth(
            credentials=[{"key": "anyone", "client": "anyone"}], key_sources=[{"header": _ANYONE}]
        )
        extensions.append(extension(_KEYS, any_key))
    if extensions:
        extensions.append(extension(_TENANTS, header_to_metadata_pb2.Config(request_rules=[_OWN_TENANT])))
    if any(map(_tenant_check, tokens)):
        extensions.append(extension(_RBAC, rbac_filter_pb2.RBAC()))
    if any(map(_answered_tenant, protected)):
        extensions.append(extension(_ANSWERED_TENANT, header_to_metadata_pb2.Config()))
    return extensions


def early_mutations(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the header mutations that apply to every request before anything reads it."""
    forged = [client_identity.forgeries(_claimed_headers(view)), *client_identity.lookalikes(view.routes.values())]
    mutations = list(map(header_removal, forged))
    if holds_keys(view, listener):
        mutations.append({"append": {"header": {"key": _ANYONE, "value": "anyone"}}})
    return mutations


def header_removal(expression: str) -> dict[str, object]:
    """Return the header mutation that removes every header whose name matches the regular expression."""
    return {"remove_on_match": {"key_matcher": {"safe_regex": {"regex": expression}}}}


def own_headers(view: View, listener: Listener) -> list[str]:
    """Return the headers that lbctl adds for its filters.

    These headers are removed before a replica gets the request.
    """
    own = [_ANYONE, _TOKEN_HEADER] if holds_keys(view, listener) else []
    return [*own, *external.own_headers(view, listener)]


def tenant_header(route: Route) -> dict[str, object] | None:
    """Return the `HeaderValueOption` that forwards the tenant to the replica, or None if it is not forwarded."""
    if route.auth is None or route.auth.forward_tenant is None:
        return None
    value = f"%DYNAMIC_METADATA({NAMESPACE}:{TENANT})%"
    return {
        "header": {"key": route.auth.forward_tenant, "value": value},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }


def _protected(view: View, listener: Listener) -> list[Route]:
    """Return the listener's protected routes, sorted by name."""
    routes = (view.routes[name] for name in sorted({rule.route for rule in listener.rules}))
    return [route for route in routes if route.needs_credentials]


def _claimed_headers(view: View) -> list[str]:
    """Return the headers that carry tenants to replicas. No client may send them on any listener."""
    return client_identity.given(view.routes.values())


def _route_keys(view: View, route: Route) -> api_key_auth_pb2.ApiKeyAuthPerRoute:
    """Return the keys that a route accepts.

    Envoy strips the prefix `Bearer ` only in this capitalization, but some clients send `bearer `.
    """
    auth = route.auth
    assert auth is not None
    assert auth.api_keys is not None
    prefixes = ("", "bearer ") if auth.api_keys.realm is None else ("Basic ", "basic ", "BASIC ")
    credentials = [(prefix + item.key, item.tenant) for item in keys(view, route) for prefix in prefixes]
    return api_key_auth_pb2.ApiKeyAuthPerRoute(
        credentials=[{"key": key, "client": tenant} for key, tenant in credentials],
        key_sources=[{"header": name} for name in auth.api_keys.headers],
        forwarding={"header": _TENANT_HEADER},
    )


def _protocols(route: Route) -> dict[str, Any]:
    """Return the filter configuration that moves a key from the subprotocols to the first of the key headers."""
    keys = route.auth.api_keys if route.auth else None
    if route.auth is None or keys is None or not keys.websocket_protocol:
        return {}
    config = lua_pb2.LuaPerRoute()
    config.filter_context.update({"headers": ",".join(keys.headers), "removes_key": not route.auth.forward_credentials})
    return {_PROTOCOLS: pack(config)}


def _answered_tenant(route: Route) -> dict[str, Any]:
    """Return the filter configuration that reads the tenant from the header of the route's authorization service."""
    service = route.auth.external if route.auth else None
    if service is None or service.tenant_header is None:
        return {}
    rule = {"header": service.tenant_header, "on_header_present": _TENANT_METADATA}
    return {_ANSWERED_TENANT: pack(header_to_metadata_pb2.Config(request_rules=[rule]))}


def _tenant_check(route: Route) -> dict[str, Any]:
    """Return the filter configuration that checks a token's tenant.

    A key always has a tenant; a valid token may have none.
    """
    if route.auth is None or route.auth.jwt is None or route.auth.jwt.tenant_claim is None:
        return {}
    printable = _tenant({"string_match": {"safe_regex": {"regex": _PRINTABLE}}})
    absent = {"not_rule": {"metadata": _tenant({"present_match": True})}}
    permissions = [{"metadata": printable}, *([] if route.limits_by_tenant else [absent])]
    policy = rbac_pb2.Policy(permissions=permissions, principals=[{"any": True}])
    rules = rbac_pb2.RBAC(action="ALLOW", policies={"tenant": policy})
    return {_RBAC: pack(rbac_filter_pb2.RBACPerRoute(rbac={"rules": rules}))}


def _tenant(value: dict[str, object]) -> dict[str, object]:
    """Return a `MetadataMatcher` for the tenant."""
    return {"filter": NAMESPACE, "path": [{"key": TENANT}], "value": value}


def _authentication(view: View, routes: Sequence[Route]) -> config_pb2.JwtAuthentication:
    """Return the JWT filter, with one provider for each route.

    The token stays in the request, because limits and hash keys may use its header. The route removes it last.
    """
    return config_pb2.JwtAuthentication(
        providers={route.name: _provider(view, route) for route in routes},
        requirement_map={route.name: _requirement(view, route) for route in routes},
    )


def _requirement(view: View, route: Route) -> config_pb2.JwtRequirement:
    token = config_pb2.JwtRequirement(provider_name=route.name)
    if not keys(view, route):
        return token
    optional = config_pb2.JwtRequirement(allow_missing_or_failed={})
    return config_pb2.JwtRequirement(requires_any={"requirements": [token, optional]})


def _provider(view: View, route: Route) -> config_pb2.JwtProvider:
    auth = route.auth
    assert auth is not None
    assert auth.jwt is not None
    accepts_keys = bool(keys(view, route))
    return config_pb2.JwtProvider(
        issuer=auth.jwt.issuer,
        audiences=auth.jwt.audiences,
        local_jwks={"inline_string": view.jwks[route.name]},
        from_headers=[{"name": "authorization", "value_prefix": "Bearer "}],
        forward=True,
        claim_to_headers=list(_claims(auth.jwt, accepts_keys)),
        clear_route_cache=accepts_keys,
        require_expiration=True,
        clock_skew_seconds=_SKEW,
    )


def _claims(jwt: Jwt, accepts_keys: bool) -> Iterator[dict[str, str]]:
    if jwt.tenant_claim:
        yield {"header_name": _TENANT_HEADER, "claim_name": jwt.tenant_claim}
    if accepts_keys:
        yield {"header_name": _TOKEN_HEADER, "claim_name": "iss"}


def _has_usable_jwks(view: View, route: Route) -> bool:
    """Return whether the route's JWKS contains a key with which Envoy can verify tokens."""
    if route.auth is None or route.auth.jwt is None:
        return False
    return has_usable_key(view.jwks.get(route.name, '{"keys": []}'))
