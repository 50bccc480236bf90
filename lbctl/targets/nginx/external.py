"""Authentication by an external service, which nginx queries with a subrequest without a body.

Only accepted requests are forwarded: a 2xx from the service sets the accepted headers, 401 and 403 are passed to the
client, and everything else, including a timeout, becomes 503.
"""

from __future__ import annotations

from lbctl.ir.routes import External, Route
from lbctl.targets.nginx import names, quote
from lbctl.targets.nginx.location_blocks import Check, CheckLocation, Limit
from lbctl.targets.nginx.render_context import ListenerScope
from lbctl.targets.token import Token


def check(route: Route, number: int) -> Check | None:
    """Return how an external service checks a route's requests; None if the route has no service."""
    external = route.auth.external if route.auth else None
    if external is None:
        return None
    variables = [(Token(_accepted(number, index)), _answered(name)) for index, name in enumerate(external.accept)]
    if external.tenant_header is not None:
        variables.append((Token("$lb_tenant"), _answered(external.tenant_header)))
    return Check(quote.plain(_path(number)), tuple(variables))


def location(route: Route, number: int, scope: ListenerScope, limits: tuple[Limit, ...]) -> CheckLocation | None:
    """Return the location that queries the service.

    `limits`: limits that keep this location from counting the request.
    """
    external = route.auth.external if route.auth else None
    if external is None:
        return None
    sent = ((name, names.header(name)) for name in external.send)
    connect = max(1, external.timeout // 4)
    return CheckLocation(
        path=quote.plain(_path(number)),
        target=quote.value(f"http://{external.address}{external.path}", ("routes", route.name, "auth", "external")),
        forwarded_for=Token(scope.forwarded_for),
        headers=tuple((quote.plain(name), Token(source)) for name, source in sent if source is not None),
        limits=limits,
        connect=connect,
        answer=max(1, external.timeout - connect),
    )


def forwarded(route: Route, number: int) -> dict[str, Token]:
    """Map each header of the service's response that is passed to the replica to its variable."""
    external = route.auth.external if route.auth else None
    accepted: tuple[str, ...] = external.accept if external else ()
    return {name: Token(_accepted(number, index)) for index, name in enumerate(accepted)}


def tenant(external: External, number: int) -> Token | None:
    """Return the variable that contains the tenant from the service; None if the service does not name one."""
    if external.tenant_header is None:
        return None
    return Token(_accepted(number, external.accept.index(external.tenant_header)))


def _path(number: int) -> str:
    return f"/.lbctl/auth/{number}"


def _accepted(number: int, index: int) -> str:
    return f"$lb_r{number}_auth{index}"


def _answered(name: str) -> Token:
    return Token(f"$upstream_http_{name.replace('-', '_')}")
