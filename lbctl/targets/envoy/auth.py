"""Who may come in: API keys, JWTs, or either of them where a route knows both.

Whoever is let in has a tenant, and it goes one way whatever let him in: the filter that knows it writes it into a
header of lbctl's own, the next one moves it from there to the request's metadata, and limits, the log and
`forward_tenant` read it there. No client can send that header: it is removed before anything looks at the request.

Envoy decides which filters a request passes before it knows the final route, so none is switched off for a route: the
filter of keys asks every request for a key that lbctl itself gives to all of them, and protected routes ask for theirs.

A good token may name no tenant. Where a route's limit is by tenant such a request is forbidden; so is everywhere one
whose tenant could not stand in a header.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from envoy.config.rbac.v3 import rbac_pb2
from envoy.extensions.filters.http.api_key_auth.v3 import api_key_auth_pb2
from envoy.extensions.filters.http.header_to_metadata.v3 import header_to_metadata_pb2
from envoy.extensions.filters.http.jwt_authn.v3 import config_pb2
from envoy.extensions.filters.http.rbac.v3 import rbac_pb2 as rbac_filter_pb2
from google.protobuf.any_pb2 import Any

from lbctl.ir.listeners import Listener
from lbctl.ir.routes import Auth, Forward, Jwt, Route
from lbctl.ir.secrets import ApiKey
from lbctl.ir.snapshot import View
from lbctl.targets import client_headers
from lbctl.targets.client_headers import INTERNAL_PREFIX as INTERNAL
from lbctl.targets.envoy.protos import extension, pack
from lbctl.targets.envoy.sources import NAMESPACE

TENANT = "tenant"
"""In the request's metadata."""
_JWT = "envoy.filters.http.jwt_authn"
_KEYS = "envoy.filters.http.api_key_auth"
_RBAC = "envoy.filters.http.rbac"
_TENANT_HEADER = f"{INTERNAL}tenant"
_TOKEN_HEADER = f"{INTERNAL}token"
"""There once a token was found good."""
_ANYONE = f"{INTERNAL}anyone"
_SKEW = 1
"""Seconds that a token is good for after its end; Envoy's own choice is a minute, and 0 means that, too."""
_PLAIN = r"[^\x00-\x1f\x7f]+"
_PARTS = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
"""What a public key of a JWKS must have; Envoy starts with no set that holds none."""

Gate = tuple[list[dict[str, object]], dict[str, Any]]
"""One way into a route: further header conditions, and what the filters do there."""


def keys(view: View, route: Route) -> tuple[ApiKey, ...]:
    """Those that Envoy can compare: it knows no hashes."""
    return tuple(item for item in view.api_keys.get(route.name, ()) if item.key)


def shut(view: View, route: Route) -> bool:
    """Whether nobody can come in: the route is protected, and no key of any kind is known."""
    return route.auth is not None and not keys(view, route) and not _jwks(view, route)


def holds_keys(view: View, listener: Listener) -> bool:
    return any(keys(view, route) for route in _protected(view, listener))


def gates(view: View, route: Route) -> Iterator[Gate]:
    """With both, a good token makes the route be looked up again, and the way that it then finds asks for no key."""
    asks_token = {_JWT: pack(config_pb2.PerRouteConfig(requirement_name=route.name)), **_asks_tenant(route)}
    if not keys(view, route):
        yield [], asks_token if _jwks(view, route) else {}
        return
    asks_key = {_KEYS: pack(_known_keys(view, route))}
    if _jwks(view, route):
        yield [{"name": _TOKEN_HEADER, "present_match": True}], asks_token
        asks_key |= asks_token
    yield [], asks_key


def http_filters(view: View, listener: Listener) -> list[dict[str, object]]:
    protected = _protected(view, listener)
    tokens = [route for route in protected if _jwks(view, route)]
    found = [extension(_JWT, _authentication(view, tokens))] if tokens else []
    if holds_keys(view, listener):
        anyone = api_key_auth_pb2.ApiKeyAuth(
            credentials=[{"key": "anyone", "client": "anyone"}], key_sources=[{"header": _ANYONE}]
        )
        found.append(extension(_KEYS, anyone))
    if any(map(_asks_tenant, tokens)):
        return [*found, _tenants(), extension(_RBAC, rbac_filter_pb2.RBAC())]
    return [*found, _tenants()] if found else []


def first_words(view: View, listener: Listener) -> list[dict[str, object]]:
    """Mutations of every request before anything looks at it."""
    found = [without(client_headers.forgeries(_claimed_headers(view)))]
    if holds_keys(view, listener):
        found.append({"append": {"header": {"key": _ANYONE, "value": "anyone"}}})
    return found


def without(expression: str) -> dict[str, object]:
    return {"remove_on_match": {"key_matcher": {"safe_regex": {"regex": expression}}}}


def own_headers(view: View, listener: Listener) -> list[str]:
    """What a request carries on its way through the filters, and no replica needs to see."""
    return [_ANYONE, _TOKEN_HEADER] if holds_keys(view, listener) else []


def told(route: Route) -> dict[str, object] | None:
    """The header that tells the replica the tenant: a `HeaderValueOption`; none where there is no tenant."""
    if route.auth is None or route.auth.forward_tenant is None:
        return None
    value = f"%DYNAMIC_METADATA({NAMESPACE}:{TENANT})%"
    return {
        "header": {"key": route.auth.forward_tenant, "value": value},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }


def presented(auth: Auth | None) -> list[str]:
    """The headers that hold what a client proves itself with, where no replica may see them."""
    if auth is None or auth.forward_credentials:
        return []
    return sorted({*([auth.api_keys.header] if auth.api_keys else []), *(["authorization"] if auth.jwt else [])})


def _protected(view: View, listener: Listener) -> list[Route]:
    """By name, each once; what Envoy answers by itself is for everybody."""
    routes = (view.routes[name] for name in sorted({rule.route for rule in listener.rules}))
    return [route for route in routes if route.auth and isinstance(route.action, Forward)]


def _claimed_headers(view: View) -> list[str]:
    """Names under which tenants are told to replicas: no client may send them, on any listener."""
    auths = [route.auth for route in view.routes.values()]
    return sorted({auth.forward_tenant for auth in auths if auth and auth.forward_tenant})


def _known_keys(view: View, route: Route) -> api_key_auth_pb2.ApiKeyAuthPerRoute:
    """Envoy takes a `Bearer ` off by itself, as it is written; some clients write it small."""
    auth = route.auth
    assert auth is not None
    assert auth.api_keys is not None
    words = [(prefix + item.key, item.tenant) for item in keys(view, route) for prefix in ("", "bearer ")]
    return api_key_auth_pb2.ApiKeyAuthPerRoute(
        credentials=[{"key": key, "client": tenant} for key, tenant in words],
        key_sources=[{"header": auth.api_keys.header}],
        forwarding={"header": _TENANT_HEADER},
    )


def _tenants() -> dict[str, object]:
    where = {"metadata_namespace": NAMESPACE, "key": TENANT, "type": "STRING"}
    rule = {"header": _TENANT_HEADER, "on_header_present": where, "remove": True}
    return extension("envoy.filters.http.header_to_metadata", header_to_metadata_pb2.Config(request_rules=[rule]))


def _asks_tenant(route: Route) -> dict[str, Any]:
    """A key always has a tenant, a token that was found good may have none."""
    if route.auth is None or route.auth.jwt is None or route.auth.jwt.tenant_claim is None:
        return {}
    plain = _tenant({"string_match": {"safe_regex": {"regex": _PLAIN}}})
    nobody = {"not_rule": {"metadata": _tenant({"present_match": True})}}
    limited = any(limit.by == "tenant" for limit in route.rate_limits)
    fits = [{"metadata": plain}, *([] if limited else [nobody])]
    policy = rbac_pb2.Policy(permissions=fits, principals=[{"any": True}])
    rules = rbac_pb2.RBAC(action="ALLOW", policies={"tenant": policy})
    return {_RBAC: pack(rbac_filter_pb2.RBACPerRoute(rbac={"rules": rules}))}


def _tenant(value: dict[str, object]) -> dict[str, object]:
    """A `MetadataMatcher`."""
    return {"filter": NAMESPACE, "path": [{"key": TENANT}], "value": value}


def _authentication(view: View, routes: Sequence[Route]) -> config_pb2.JwtAuthentication:
    """A provider for each route. The token stays on the request: limits and hashes may ask for its header, and the
    route takes it off at the end."""
    return config_pb2.JwtAuthentication(
        providers={route.name: _provider(view, route) for route in routes},
        requirement_map={route.name: _requirement(view, route) for route in routes},
    )


def _requirement(view: View, route: Route) -> config_pb2.JwtRequirement:
    wanted = config_pb2.JwtRequirement(provider_name=route.name)
    if not keys(view, route):
        return wanted
    otherwise = config_pb2.JwtRequirement(allow_missing_or_failed={})
    return config_pb2.JwtRequirement(requires_any={"requirements": [wanted, otherwise]})


def _provider(view: View, route: Route) -> config_pb2.JwtProvider:
    auth = route.auth
    assert auth is not None
    assert auth.jwt is not None
    either = bool(keys(view, route))
    return config_pb2.JwtProvider(
        issuer=auth.jwt.issuer,
        audiences=auth.jwt.audiences,
        local_jwks={"inline_string": view.jwks[route.name]},
        from_headers=[{"name": "authorization", "value_prefix": "Bearer "}],
        forward=True,
        claim_to_headers=list(_claims(auth.jwt, either)),
        clear_route_cache=either,
        require_expiration=True,
        clock_skew_seconds=_SKEW,
    )


def _claims(jwt: Jwt, either: bool) -> Iterator[dict[str, str]]:
    if jwt.tenant_claim:
        yield {"header_name": _TENANT_HEADER, "claim_name": jwt.tenant_claim}
    if either:
        yield {"header_name": _TOKEN_HEADER, "claim_name": "iss"}


def _jwks(view: View, route: Route) -> bool:
    """Whether Envoy finds a key in the set that it could check a token with."""
    if route.auth is None or route.auth.jwt is None:
        return False
    found = json.loads(view.jwks.get(route.name, '{"keys": []}'))["keys"]
    return any(all(item.get(part) for part in _PARTS.get(item["kty"], ("",))) for item in found)
