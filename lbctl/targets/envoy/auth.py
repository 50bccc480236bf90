"""Who may come in: JWTs, checked against keys in a file that Envoy reads."""

from __future__ import annotations

from collections.abc import Iterable

from envoy.extensions.filters.http.jwt_authn.v3 import config_pb2

from lbctl.ir.listeners import Listener
from lbctl.ir.routes import Auth, Jwt, Route
from lbctl.ir.snapshot import View

FILTER = "envoy.filters.http.jwt_authn"
PAYLOAD = "jwt"
"""Where the filter leaves a good token's claims, in its own metadata."""


def routes_with_jwt(view: View, listener: Listener) -> list[tuple[Route, Auth, Jwt]]:
    """By name, each once."""
    names = sorted({rule.route for rule in listener.rules})
    found = [(view.routes[name], view.routes[name].auth) for name in names]
    return [(route, auth, auth.jwt) for route, auth in found if auth and auth.jwt]


def authentication(protected: Iterable[tuple[Route, Auth, Jwt]]) -> config_pb2.JwtAuthentication:
    """A provider for each route: what it forwards is the route's own choice."""
    items = list(protected)
    return config_pb2.JwtAuthentication(
        providers={route.name: _provider(auth, jwt) for route, auth, jwt in items},
        requirement_map={route.name: config_pb2.JwtRequirement(provider_name=route.name) for route, _, _ in items},
    )


def required(route: Route) -> config_pb2.PerRouteConfig:
    return config_pb2.PerRouteConfig(requirement_name=route.name)


def claimed_headers(view: View, listener: Listener) -> list[str]:
    """Names under which tenants are told to replicas: no client may send them."""
    auths = [view.routes[rule.route].auth for rule in listener.rules]
    return sorted({auth.forward_tenant for auth in auths if auth and auth.forward_tenant})


def _provider(auth: Auth, jwt: Jwt) -> config_pb2.JwtProvider:
    told = []
    if auth.forward_tenant and jwt.tenant_claim:
        told = [{"header_name": auth.forward_tenant, "claim_name": jwt.tenant_claim}]
    return config_pb2.JwtProvider(
        issuer=jwt.issuer,
        audiences=jwt.audiences,
        local_jwks={"filename": jwt.jwks_file},
        forward=auth.forward_credentials,
        claim_to_headers=told,
        payload_in_metadata=PAYLOAD,
        require_expiration=True,
    )
