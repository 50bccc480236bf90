"""Authentication and client address lists as SecurityPolicies: one for each listener and route that needs one.

A rule of an HTTPRoute has at most one policy, which therefore contains everything. API keys and passwords are in
Secrets, which lbctl does not write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic
from lbctl.base.hosts import is_ip
from lbctl.ir.listeners import Listener
from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.routes import Access, ApiKeys, Auth, External, Jwt, Route, access
from lbctl.ir.snapshot import View
from lbctl.targets.client_identity import given, unmapped_networks
from lbctl.targets.envoy_gateway.context import API_VERSION, GROUP, Context, rule_reference
from lbctl.targets.jwks import has_usable_key
from lbctl.targets.key_hashes import of_route
from lbctl.targets.manifests.closing import Gap
from lbctl.targets.manifests.durations import duration
from lbctl.targets.manifests.findings import warning
from lbctl.targets.manifests.http_route import PlacedRule, path_of
from lbctl.targets.manifests.names import Parts, names, object_name
from lbctl.targets.manifests.objects import Objects, Tree
from lbctl.targets.target import Prerequisite

_POLICY, _BACKEND, _SECRET = object_name("SecurityPolicy"), object_name("Backend"), object_name("Secret")
FORWARDED_FOR = "x-forwarded-for"
_MAX_AUDIENCES, _MAX_ISSUER = 8, 253
"""Maximum number of audiences of a token, and maximum length of its issuer in characters."""
_STATUS_ON_ERROR = (1, 8)
"""First version that supports a status for failures of an external service."""


def add(objects: Objects, context: Context) -> None:
    """Add the policies, and the Backends of external services."""
    view = context.view
    named = _Names.of(view, context.objects)
    rules: dict[tuple[str, str], list[PlacedRule]] = {}
    for rule in context.placed:
        rules.setdefault((rule.listener.name, rule.way.route.name), []).append(rule)
    specs = {
        (view.proxy.name, *key): (placed[0], {"targetRefs": list(map(rule_reference, placed)), **settings})
        for key, placed in rules.items()
        if (settings := _settings(context, named, placed[0]))
    }
    by_parts = names(_POLICY, specs)
    for parts, (rule, spec) in specs.items():
        objects.add(API_VERSION, "SecurityPolicy", by_parts[parts], "route", path_of(rule.way.route), spec=spec)
    for route, name in named.services.items():
        external = _external(view.routes[route])
        assert external is not None
        place = {"address" if is_ip(external.address.host) else "hostname": external.address.host}
        endpoint = {"ip" if is_ip(external.address.host) else "fqdn": {**place, "port": external.address.port}}
        spec = {"type": "Endpoints", "endpoints": [endpoint]}
        objects.add(API_VERSION, "Backend", name, "route", ("routes", route), spec=spec)


def has_backends(context: Context) -> bool:
    """Return whether a policy needs Backends, which Envoy Gateway supports only if its configuration enables them."""
    return bool(_Names.of(context.view, context.objects).services)


def prerequisites(context: Context) -> Iterator[Prerequisite]:
    """Yield the Secrets that contain API keys and passwords.

    Envoy Gateway uses the content of a Secret unchanged. With `--from-env-file`, no newline becomes part of a key.
    """
    view = context.view
    for route, name in _Names.of(view, context.objects).secrets.items():
        words = ("kubectl", "-n", context.objects.namespace, "create", "secret", "generic", name)
        auth = view.routes[route].auth
        if auth is not None and auth.api_keys is not None and auth.api_keys.realm is not None:
            yield Prerequisite((*words, "--from-file=.htpasswd"))
        else:
            tenants = sorted({item.tenant for item in view.api_keys.get(route, ())})
            yield _keys(words, tenants)


def _keys(words: tuple[str, ...], tenants: list[str]) -> Prerequisite:
    """Return the Secret that contains the tenants' keys. Lines of a file cannot begin with a digit."""
    if any(tenant[0].isdigit() for tenant in tenants):
        files = (f"--from-file={tenant}=FILE-{index}" for index, tenant in enumerate(tenants, start=1))
        return Prerequisite((*words, *files), note="each file contains a key without a newline at its end")
    listed = f": {', '.join(tenants)}" if tenants else ""
    return Prerequisite((*words, "--from-env-file=FILE"), note=f"FILE has a line TENANT=KEY for each tenant{listed}")


def needed(context: Context) -> Iterator[tuple[str, str]]:
    """Yield (kind, name) of the Secrets."""
    return (("Secret", name) for name in _Names.of(context.view, context.objects).secrets.values())


@dataclass(frozen=True, slots=True)
class _Names:
    """The names of the objects that policies need to authenticate requests, by route."""

    secrets: dict[str, str]
    """Maps each route to the Secret with its API keys or passwords."""
    services: dict[str, str]
    """Maps each route to the Backend of its external service."""

    @staticmethod
    def of(view: View, objects: KubernetesObjects) -> _Names:
        """Return the names for a closed view."""
        routes = _authenticated(view, objects)
        secrets: dict[Parts, str] = {
            (view.proxy.name, route.name, "users" if keys.realm is not None else "api-keys"): route.name
            for route in routes
            if (keys := _api_keys(route)) is not None
        }
        services = {(view.proxy.name, route.name, "auth"): route.name for route in routes if _external(route)}
        # Pools also have Backends.
        backends = names(_BACKEND, [*services, *((view.proxy.name, pool) for pool in view.pools)])
        return _Names(
            {secrets[parts]: name for parts, name in names(_SECRET, secrets).items()},
            {route: backends[parts] for parts, route in services.items()},
        )


def _api_keys(route: Route) -> ApiKeys | None:
    return route.auth.api_keys if route.auth is not None else None


def _external(route: Route) -> External | None:
    return route.auth.external if route.auth is not None else None


# ── Settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _settings(context: Context, named: _Names, rule: PlacedRule) -> Tree:
    """Return the policy settings for a route's rules on a listener; empty if none are needed."""
    view, route = context.view, rule.way.route
    tree: Tree = {}
    if is_authenticated(view, context.objects, route):
        assert route.auth is not None
        tree |= _authentication(view, named, route, route.auth)
    lists = access(rule.listener).of(route)
    if lists.is_limited and finds_clients(rule.listener, context.objects):
        tree["authorization"] = _authorization(lists)
    return tree


def _authorization(lists: Access) -> Tree:
    """Return the client address lists. A client in both lists is rejected, because the first matching rule decides."""
    rules = [
        {"name": action.lower(), "action": action, "principal": {"clientCIDRs": list(unmapped_networks(networks))}}
        for action, networks in (("Deny", lists.deny), ("Allow", lists.allow or ()))
        if networks
    ]
    return {"defaultAction": "Allow" if lists.allow is None else "Deny", **({"rules": rules} if rules else {})}


def _authentication(view: View, named: _Names, route: Route, auth: Auth) -> Tree:
    if auth.external is not None:
        return {"extAuth": _ext_auth(view, named.services[route.name], auth.external)}
    if auth.jwt is not None:
        return {"jwt": {"providers": [_provider(view, route, auth.jwt)]}}
    assert auth.api_keys is not None
    secret = {"name": named.secrets[route.name]}
    if auth.api_keys.realm is not None:
        header = {"forwardUsernameHeader": auth.forward_tenant} if auth.forward_tenant else {}
        return {"basicAuth": {"users": secret, **header}}
    header = {"forwardClientIDHeader": auth.forward_tenant} if auth.forward_tenant else {}
    sources = [{"headers": list(auth.api_keys.headers)}]
    sanitize = not auth.forward_credentials
    return {"apiKeyAuth": {"credentialRefs": [secret], "extractFrom": sources, **header, "sanitize": sanitize}}


def _provider(view: View, route: Route, jwt: Jwt) -> Tree:
    """Return how to verify tokens. By default, Envoy would also accept a token in the query string."""
    tree: Tree = {"name": "jwt", "issuer": jwt.issuer}
    if jwt.audiences:
        tree["audiences"] = list(jwt.audiences)
    tree["localJWKS"] = {"type": "Inline", "inline": view.jwks[route.name]}
    tree["extractFrom"] = {"headers": [{"name": "authorization", "valuePrefix": "Bearer "}]}
    header = route.auth.forward_tenant if route.auth is not None else None
    if header is not None and jwt.tenant_claim is not None:
        tree["claimToHeaders"] = [{"claim": jwt.tenant_claim, "header": header}]
    return tree


def _ext_auth(view: View, backend: str, external: External) -> Tree:
    """Return the query to a service. Envoy appends the client's path to the path of the service."""
    http: Tree = {
        "backendRefs": [{"group": GROUP, "kind": "Backend", "name": backend}],
        "path": f"{external.path}?uri=",
    }
    if external.accept:
        http["headersToBackend"] = list(external.accept)
    tree: Tree = {
        "http": http,
        "headersToExtAuth": sorted({*external.send, FORWARDED_FOR}),
        "timeout": duration(external.timeout),
        "failOpen": False,
    }
    if view.proxy.version >= _STATUS_ON_ERROR:
        tree["statusOnError"] = 503
    return tree


# ── Findings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def is_authenticated(view: View, objects: KubernetesObjects, route: Route) -> bool:
    """Return whether a policy authenticates the requests of a route. Other components may do so instead."""
    return route.needs_credentials and next(_gaps(view, objects, route), None) is None


def _authenticated(view: View, objects: KubernetesObjects) -> list[Route]:
    return [route for route in view.routes.values() if is_authenticated(view, objects, route)]


def reserved_headers(view: View, objects: KubernetesObjects) -> list[str]:
    """Return the headers that only policies may set, so that no client may send them."""
    return given(_authenticated(view, objects))


def gaps(view: View, objects: KubernetesObjects) -> Iterator[Gap]:
    """Yield the authentication and client address lists that no policy can express."""
    for route in view.routes.values():
        if route.needs_credentials:
            yield from _gaps(view, objects, route)
    for listener in view.listeners:
        if not finds_clients(listener, objects):
            yield from _unknown_clients(view, listener)


def finds_clients(listener: Listener, objects: KubernetesObjects) -> bool:
    """Return whether the gateway can determine the addresses of the listener's clients, as address lists require."""
    client = listener.client_address
    return client is None or (objects.gateway is None and client.header == FORWARDED_FOR)


def _unknown_clients(view: View, listener: Listener) -> Iterator[Gap]:
    reason = f"the gateway cannot determine the client addresses of listener {listener.name}"
    hint = "use `client_address` with the header x-forwarded-for, and `gateway_class`"
    if access(listener).is_limited:
        key = "allow_from" if listener.allow_from is not None else "deny_from"
        yield Gap("listener.access", "listener", listener.name, ("listeners", listener.name, key), reason, hint)
    for name in dict.fromkeys(rule.route for rule in listener.rules):
        route = view.routes[name]
        if access(listener).of(route).is_limited and (route.allow_from is not None or route.deny_from is not None):
            key = "allow_from" if route.allow_from is not None else "deny_from"
            yield Gap("route.access", "route", name, (*path_of(route), key), reason, hint)


def _gaps(view: View, objects: KubernetesObjects, route: Route) -> Iterator[Gap]:
    auth = route.auth
    assert auth is not None
    found = _reason(view, objects, route, auth)
    if found is not None:
        feature, key, reason, hint = found
        yield Gap(f"route.auth.{feature}", "route", route.name, ("routes", route.name, "auth", *key), reason, hint)


_Reason = tuple[str, Sequence[str], str, str]
"""Feature, key below `auth`, reason and hint."""


def _reason(view: View, objects: KubernetesObjects, route: Route, auth: Auth) -> _Reason | None:
    headers = given([route])
    kind = _kind(auth)
    if objects.gateway is not None and headers:
        reason = f"lbctl does not render this Gateway, so clients could send the header {headers[0]} themselves"
        return kind, (), reason, "set `gateway_class`, or do not forward this header"
    if auth.external is not None and auth.external.address.on_loopback:
        reason = f"a Backend cannot contain {auth.external.address}, which only one machine can reach"
        return kind, ("external", "url"), reason, "use an address that the gateway can reach"
    if auth.api_keys is not None and auth.jwt is not None:
        reason = "a SecurityPolicy with API keys and tokens requires both of them, not just one"
        return kind, (), reason, "use only one of them, or separate routes"
    if auth.api_keys is not None and auth.api_keys.realm is None:
        return _reason_about_keys(view, route, auth.api_keys)
    return _reason_about_tokens(view, route, auth.jwt) if auth.jwt is not None else None


def _kind(auth: Auth) -> str:
    if auth.external is not None:
        return "external"
    if auth.api_keys is None:
        return "jwt"
    return "api_keys" if auth.api_keys.realm is None else "basic"


def _reason_about_keys(view: View, route: Route, api_keys: ApiKeys) -> _Reason | None:
    keys = view.api_keys.get(route.name, ())
    key = ("api_keys", "file")
    hashes = of_route(route.name, keys)
    if hashes is not None:
        reason = f"a Secret needs the keys, but {api_keys.file} contains only the hashes of {hashes.count} keys"
        return "api_keys", key, reason, "run lbctl key new TENANT --plain -f FILE"
    several = [tenant for tenant, count in Counter(item.tenant for item in keys).items() if count > 1]
    if several:
        reason = f"a Secret has one key for each tenant, but {several[0]} has several"
        return "api_keys", key, reason, "use one key for each tenant"
    return None


def _reason_about_tokens(view: View, route: Route, jwt: Jwt) -> _Reason | None:
    if not has_usable_key(view.jwks.get(route.name, '{"keys": []}')):
        reason = f"{jwt.jwks_file} has no usable key here, and Envoy rejects a listener with such a file"
        return "jwt", ("jwt", "jwks_file"), reason, "render where the file is readable"
    if len(jwt.audiences) > _MAX_AUDIENCES:
        reason = f"a SecurityPolicy has at most {_MAX_AUDIENCES} audiences"
        return "jwt", ("jwt", "audiences"), reason, "use fewer audiences"
    if len(jwt.issuer) > _MAX_ISSUER:
        reason = f"an issuer has at most {_MAX_ISSUER} characters in a SecurityPolicy"
        return "jwt", ("jwt", "issuer"), reason, "use a shorter issuer"
    return None


def diagnostics(context: Context) -> Iterator[Diagnostic]:
    """Yield the authentication settings that policies do not support."""
    for route in _authenticated(context.view, context.objects):
        auth, path = route.auth, ("routes", route.name, "auth")
        assert auth is not None
        if auth.api_keys is not None and auth.api_keys.websocket_protocol:
            message = "the gateway does not read keys in Sec-WebSocket-Protocol, so it rejects these requests"
            place = (*path, "api_keys", "websocket_protocol")
            yield warning("route.auth.api_keys", message, place, "let clients send a header")
        if auth.external is not None:
            message = (
                "the service gets the path of the request only in its query, as `uri`, without the headers "
                "x-original-uri and x-original-method"
            )
            yield warning("route.auth.external", message, (*path, "external"), "let the service read the query")
            named = auth.external.tenant_header
            if auth.forward_tenant and auth.forward_tenant != named:
                message = f"the gateway cannot rename the header {named}, so replicas do not get {auth.forward_tenant}"
                yield warning("route.auth.external", message, (*path, "forward_tenant"), f"forward_tenant: {named}")
