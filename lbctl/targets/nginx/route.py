"""The locations of a route: one for each pool that it may reach, or one with nginx's own response.

A location contains everything that its pool and route require, because a block inherits headers and error pages only if
it has none itself. The listener's table chooses the location by name; no matching happens here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.routes import Forward, Redirect, Respond, Route, access, retry_after
from lbctl.targets import own_lines, picker, response_bodies
from lbctl.targets.assess import CLOSED
from lbctl.targets.nginx import access as clients
from lbctl.targets.nginx import auth, busy, external, header_text, limits, names, pick, quote, split
from lbctl.targets.nginx.forward import forwarding
from lbctl.targets.nginx.location_blocks import (
    Answer,
    CheckLocation,
    Forwarding,
    Limit,
    Location,
    Mirrored,
    PickSubrequest,
)
from lbctl.targets.nginx.own_lines import lines_of
from lbctl.targets.nginx.pool import Upstreams
from lbctl.targets.nginx.render_context import ListenerScope, RenderContext
from lbctl.targets.response_bodies import NO_REPLICA
from lbctl.targets.token import Token

_CONTENT_TYPE = "content-type"
"""nginx adds such a header in addition to its own `Content-Type`, so `Content-Type` itself is set in nginx's own
responses."""
_COUNTING = frozenset({"limit_req", "limit_conn"})
"""Directives that count requests."""
Pairs = tuple[tuple[Token, Token], ...]
"""(name, value) pairs of variables or headers."""
_MEAN_A_LOCATION = frozenset({301, 302, 303, 307, 308})


@dataclass(slots=True)
class Routes:
    """Builds the locations of a view's routes."""

    context: RenderContext
    upstreams: Upstreams
    numbers: dict[str, int]
    """Maps each route to the number in its variable names."""
    targets: dict[str, str]
    """Maps each route to the name of its location, which may contain the variable that chooses the pool."""

    @classmethod
    def of(cls, context: RenderContext, upstreams: Upstreams) -> Routes:
        """Return the builder for all routes of the context's view."""
        numbers = {name: index for index, name in enumerate(context.view.routes)}
        targets = {name: _target(context, route, numbers[name]) for name, route in context.view.routes.items()}
        return cls(context, upstreams, numbers, targets)

    def locations(self, listener: Listener, scope: ListenerScope) -> tuple[Location, ...]:
        """Return the locations of all routes of `listener`, sorted by name."""
        used = sorted({rule.route for rule in listener.rules})
        return tuple(item for name in used for item in self._of_route(listener, scope, self.context.view.routes[name]))

    def only_location(self, listener: Listener, scope: ListenerScope) -> Location | None:
        """Return the location of a listener that treats all requests alike, so that none has to be chosen.

        All requests go to the same pool. Return None for any other listener.
        """
        action = self.context.view.routes[listener.rules[0].route].action if listener.rules else None
        is_one = len(listener.rules) == 1 and listener.rules[0] == Rule(listener.rules[0].route)
        if not is_one or not isinstance(action, Forward) or len(_reached(action)) != 1 or action.pins or action.mirror:
            return None
        locations = self.locations(listener, scope)
        return locations[0] if len(locations) == 1 and locations[0].forwarding is not None else None

    def _headers(self, scope: ListenerScope, route: Route, pool: str = "") -> Pairs:
        """Return the response headers that the route sets."""
        path = ("routes", route.name, "headers", "response", "set")
        return tuple(
            (quote.plain(name), header_text.token(self.context, scope, route, pool, text, (*path, name)))
            for name, text in route.response_headers.set
        )

    def mirrors(self, listener: Listener, scope: ListenerScope) -> tuple[Mirrored, ...]:
        """Return the locations that receive copies of requests of `listener`."""
        used = sorted({rule.route for rule in listener.rules})
        mirrors = (self._mirror(listener, scope, self.context.view.routes[name]) for name in used)
        return tuple(item for item in mirrors if item is not None)

    def _of_route(self, listener: Listener, scope: ListenerScope, route: Route) -> list[Location]:
        if clients.unknown(self.context, listener, route):
            pools = _reached(route.action) if isinstance(route.action, Forward) else [""]
            headers = self._headers(scope, route)
            return [_unavailable(route, pool, _variables(route), headers, CLOSED.body) for pool in pools]
        refused = clients.conditions(self.context, listener, access(listener).of(route), scope.trusted)
        return [replace(item, refused=refused) for item in self._locations(listener, scope, route)]

    def _locations(self, listener: Listener, scope: ListenerScope, route: Route) -> list[Location]:
        action = route.action
        if isinstance(action, Respond):
            body = response_bodies.body_of(action, listener, self.context.view)
            answering = _answering(route, replace(action, body=body), self._headers(scope, route))
            return self._guarded(route, answering[0]) if route.needs_credentials else answering
        if isinstance(action, Redirect):
            return [Location(_name(route), _variables(route), self._headers(scope, route), redirect=True)]
        rule = _rule(listener, route)
        return [item for pool in _reached(action) for item in self._to_pool(listener, scope, route, rule, pool)]

    def _guarded(self, route: Route, answering: Location) -> list[Location]:
        """Return a location with nginx's own response that requires credentials.

        nginx would respond before it queries an authorization service, so in this case the response is in a second
        location.
        """
        number = self.numbers[route.name]
        check = external.check(route, number)
        if check is None:
            return [replace(answering, tenant=auth.tenant(self.context, route, number))]
        name = _name(route, "answer")
        return [_guard(replace(answering, answer=None, check=check), name.text, ()), replace(answering, name=name)]

    def _to_pool(self, listener: Listener, scope: ListenerScope, route: Route, rule: Rule, pool: str) -> list[Location]:
        """Return the locations that route to the pool.

        The forwarding location follows a location that queries the picker, or in which requests leave busy replicas.
        nginx performs certain steps only once per location and in a fixed order. For this reason, separate locations
        query an external service before the picker is queried or a tenant is limited, and read the body for the picker.
        """
        location = self._forwarding(listener, scope, route, rule, pool)
        picked = self._picked(scope, route, rule, pool, location)
        first = self._when_busy(route, pool, picked or location)
        if picked is None and (first is location or route.retry.idempotent or not _reconnects(route)):
            return self._in_steps(route, pool, first)
        again = quote.plain(f"@{names.location(route.name, pool)}{names.AGAIN}")
        variables = (*location.variables, pick.UNREACHED) if picked else location.variables
        last = replace(location, name=again, variables=variables, check=None)
        return [*self._in_steps(route, pool, first), last]

    def _in_steps(self, route: Route, pool: str, location: Location) -> list[Location]:
        """Return the location as a sequence of locations that a request passes through."""
        late = _counted_by_tenant(route) if location.check is not None else frozenset()
        checks = location.check is not None and (location.question is not None or bool(late))
        name = f"@{names.location(route.name, pool)}"
        steps, rest = list[Location](), location
        if checks:
            early = tuple(item for item in rest.limits if item.directive not in late)
            checking = replace(rest, limits=(*early, *self._uncounted(late)))
            steps.append(_guard(checking, name + names.CHECKED, self._own_lines(route, _COUNTING - late)))
            counted = tuple(item for item in rest.limits if item.directive in late)
            rest = replace(rest, name=quote.plain(name + names.CHECKED), limits=counted, check=None)
        if location.question is not None and pick.reads_body(self.context.view.pools[pool]):
            own = self._own_lines(route, (late if checks else _COUNTING) | {"client_"})
            steps.append(_guard(replace(rest, reads_body=True), name + names.READ, own))
            variables = (pick.LEFT, pick.REACHED, pick.BODY)
            rest = replace(rest, name=quote.plain(name + names.READ), variables=variables, limits=(), tenant=None)
        return [*steps, rest]

    def _uncounted(self, directives: frozenset[str]) -> tuple[Limit, ...]:
        """Return limits of these kinds that leave counting to a later location."""
        found = limits.uncounted(self.context) if directives else ()
        return tuple(item for item in found if item.directive in directives)

    def _own_lines(self, route: Route, prefixes: frozenset[str]) -> tuple[Token, ...]:
        """Return the operator's lines with directives that have one of the prefixes.

        The lines are for a location that needs no other lines.
        """
        wanted = partial(lines_of, prefixes=tuple(prefixes))
        return own_lines.tokens(self.context.view.proxy, "location", route.name, wanted)

    def _when_busy(self, route: Route, pool: str, location: Location) -> Location:
        """Return the location, with retries on another replica after a busy response if the route configures them."""
        statuses = busy.statuses_of_route(route, self.context.view.pools[pool])
        if location.forwarding is None or not statuses:
            return location
        directives = busy.going_on(location.forwarding, route.retry, statuses)
        if not route.retry.idempotent and (_reconnects(route) or location.question is not None):
            prefix = f"$lb_r{self.numbers[route.name]}_busy{list(self.context.view.pools).index(pool)}"
            again = names.location(route.name, pool) + names.AGAIN
            directives = busy.falling_back(self.context, directives, prefix, again)
        return replace(location, forwarding=directives)

    def _picked(self, scope: ListenerScope, route: Route, rule: Rule, pool: str, location: Location) -> Location | None:
        """Return the location that queries the picker before `location`; None if the pool does not use the picker."""
        upstream = self.upstreams.of(pool, route.regions)
        replicas = self.upstreams.replicas(pool, route.regions) if self._picks(pool) else ()
        if location.forwarding is None or upstream is None or not replicas:
            return None
        chosen = pick.picked(self.context, self.context.view.pools[pool], upstream, replicas)
        again = names.location(route.name, pool) + names.AGAIN
        forwarded = forwarding(self.context, scope, route, rule, self.context.view.pools[pool], chosen.upstream)
        assert forwarded is not None
        forwarded = replace(forwarded, on_502=location.forwarding.on_502, on_504=location.forwarding.on_504)
        number = self.numbers[route.name]
        return replace(
            location,
            variables=(*location.variables, pick.LEFT, pick.REACHED),
            question=quote.plain(pick.question_path(number, pool)),
            picker_rejects=picker.may_reject(self.context.view.pools[pool], route),
            may_wait=self.context.view.pools[pool].balance.queue is not None,
            forwarding=pick.falling_back(self.context, forwarded, chosen, number, again),
        )

    def _picks(self, pool: str) -> bool:
        return self.context.view.picker is not None and self.context.view.pools[pool].balance.pick is not None

    def checks(self, listener: Listener, scope: ListenerScope) -> tuple[CheckLocation, ...]:
        """Return the locations that query external services about requests of `listener`."""
        routes = [self.context.view.routes[name] for name in sorted({rule.route for rule in listener.rules})]
        checked = (route for route in routes if route.auth and route.auth.external)
        checks = (
            external.location(route, self.numbers[route.name], scope, self._uncounted(_counted_by_tenant(route)))
            for route in checked
        )
        return tuple(item for item in checks if item is not None)

    def questions(self, listener: Listener) -> tuple[PickSubrequest, ...]:
        """Return the locations that query the picker for requests of `listener`."""
        routes = [self.context.view.routes[name] for name in sorted({rule.route for rule in listener.rules})]
        return tuple(
            item
            for route in routes
            if isinstance(route.action, Forward)
            for pool in _reached(route.action)
            if self._picks(pool)
            for item in self._questions(route, pool)
        )

    def _questions(self, route: Route, pool: str) -> Iterator[PickSubrequest]:
        number = self.numbers[route.name]
        tenant = auth.tenant(self.context, route, number)
        return pick.questions(route, number, self.context.view.pools[pool], self.context.view, tenant)

    def _forwarding(self, listener: Listener, scope: ListenerScope, route: Route, rule: Rule, pool: str) -> Location:
        action = route.action
        assert isinstance(action, Forward)
        variables = (*_variables(route, pool, self.context), *_retry_after(route))
        if limits.uncountable(self.context, route):
            return _unavailable(route, pool, variables, self._headers(scope, route, pool), CLOSED.body)
        upstream = self.upstreams.of(pool, route.regions)
        fallback = action.fallback if action.fallback != pool else None
        if upstream is None:
            if fallback is not None:
                return Location(_name(route, pool), variables, elsewhere=_at(route, fallback))
            return _unavailable(route, pool, variables, self._headers(scope, route, pool))
        directives = forwarding(self.context, scope, route, rule, self.context.view.pools[pool], upstream)
        if directives is None:
            return _unavailable(route, pool, variables, self._headers(scope, route, pool))
        number = self.numbers[route.name]
        replicas = self.upstreams.size(pool, route.regions)
        directives = self._with_fallback(route, directives, fallback, replicas)
        return Location(
            name=_name(route, pool),
            variables=variables,
            response_headers=(*self._headers(scope, route, pool), *self._cookie(listener, route, pool)),
            limits=(*self._limits(listener, scope, route), limits.breaker(self.context, self.context.view.pools[pool])),
            tenant=auth.tenant(self.context, route, number) if not (route.auth and route.auth.external) else None,
            check=external.check(route, number),
            refusal=429 if any(item.concurrent for item in route.rate_limits) else 503,
            forwarding=directives,
            refuses_upgrade=not route.websocket,
            mirror=Token(_mirror_path(self.numbers[route.name])) if action.mirror and self._copies(route) else None,
            keeps_uri=action.mirror is not None and self.context.view.pools[action.mirror.pool].protocol == "grpc",
            own_lines=own_lines.tokens(self.context.view.proxy, "location", route.name),
        )

    def _limits(self, listener: Listener, scope: ListenerScope, route: Route) -> tuple[Limit, ...]:
        route_limits = limits.of_route(self.context, route, self.numbers[route.name])
        if listener.max_connections is None:
            return route_limits
        return (*route_limits, limits.listener(self.context, scope.number, listener.max_connections))

    def _cookie(self, listener: Listener, route: Route, pool: str) -> tuple[tuple[Token, Token], ...]:
        action = route.action
        if not split.sets_cookie(route) or not isinstance(action, Forward):
            return ()
        if pool not in {share.pool for share in action.shares if share.weight > 0}:
            return ()
        secure = listener.tls is not None
        variable = split.cookie(self.context, route, self.numbers[route.name], pool, secure)
        return ((Token("Set-Cookie"), Token(variable)),)

    def _with_fallback(self, route: Route, directives: Forwarding, fallback: str | None, replicas: int) -> Forwarding:
        """Return the directives with the fallback pool as the last resort.

        A request that no replica accepted continues in the fallback pool, after all replicas were tried.
        """
        if fallback is None:
            return directives
        number = self.numbers[route.name]
        fallback_location = quote.plain(names.location(route.name, fallback))
        for status in ("502", "504"):
            variable = f"$lb_r{number}_{status}"
            if not self.context.has_map(variable):
                entries = ((Token("default"), Token(f"$lb_on_{status}")), (Token("lb_503"), fallback_location))
                self.context.map(f"$lb_on_{status}", variable, entries, volatile=True)
        return replace(
            directives,
            tries=max(directives.tries, replicas) if directives.conditions != Token("off") else directives.tries,
            on_502=Token(f"@$lb_r{number}_502"),
            on_504=Token(f"@$lb_r{number}_504"),
        )

    def _copies(self, route: Route) -> bool:
        action = route.action
        if not isinstance(action, Forward) or action.mirror is None:
            return False
        return action.mirror.percent > 0 and self.upstreams.of(action.mirror.pool, route.regions) is not None

    def _mirror(self, listener: Listener, scope: ListenerScope, route: Route) -> Mirrored | None:
        action = route.action
        if not isinstance(action, Forward) or action.mirror is None or not self._copies(route):
            return None
        pool = self.context.view.pools[action.mirror.pool]
        upstream = self.upstreams.of(pool.name, route.regions)
        assert upstream is not None
        number = self.numbers[route.name]
        directives = forwarding(self.context, scope, route, _rule(listener, route), pool, upstream, copy=True)
        if directives is None:
            return None
        draw = split.sample(self.context, number, action.mirror.percent)
        return Mirrored(Token(_mirror_path(number)), Token(draw) if draw else None, directives)


def _rule(listener: Listener, route: Route) -> Rule:
    """Return the first rule of a route; all rules of a route have the same path."""
    return next(item for item in listener.rules if item.route == route.name)


def _mirror_path(number: int) -> str:
    return f"/.lbctl/mirror/{number}"


def _target(context: RenderContext, route: Route, number: int) -> str:
    if not isinstance(route.action, Forward):
        return names.location(route.name)
    return names.location(route.name, split.choice(context, route, number))


def _reached(action: Forward) -> list[str]:
    """Return the pools that need a location: all pools that may be chosen, and the fallback."""
    live = {share.pool for share in action.shares if share.weight > 0}
    return sorted(live | {pin.pool for pin in action.pins} | ({action.fallback} if action.fallback else set()))


def _reconnects(route: Route) -> bool:
    """Return whether a request that cannot connect is retried."""
    return "connect_failure" in route.retry.when and route.retry.attempts > 0


def _name(route: Route, pool: str = "") -> Token:
    return quote.plain(f"@{names.location(route.name, pool)}", ("routes", route.name))


def _at(route: Route, pool: str) -> Token:
    return quote.plain(f"@{names.location(route.name, pool)}")


def _variables(route: Route, pool: str = "", context: RenderContext | None = None) -> Pairs:
    """Return the variables for the access log, with their values in JSON."""
    variables = [(Token("$lb_route"), _json(route.name))]
    if context is not None:
        variables.append((Token("$lb_pool"), _json(pool)))
        action = route.action
        if isinstance(action, Forward) and len(action.shares) > 1:
            model = context.view.pools[pool].model
            variables.append((Token("$lb_variant"), _json((model and model.version) or pool)))
    return tuple(variables)


def _retry_after(route: Route) -> list[tuple[Token, Token]]:
    seconds = retry_after(route.rate_limits)
    return [(Token("$lb_retry_after"), Token(str(seconds)))] if seconds > 1 else []


def _json(text: str) -> Token:
    return quote.value(json.dumps(text))


def _counted_by_tenant(route: Route) -> frozenset[str]:
    """Return the directives of the limits that need the tenant."""
    by_tenant = (limit for limit in route.rate_limits if limit.by == "tenant")
    return frozenset("limit_conn" if limit.concurrent else "limit_req" for limit in by_tenant)


def _guard(location: Location, name: str, own: tuple[Token, ...]) -> Location:
    """Return the location as a check that does not forward: requests that pass it continue in `name`."""
    variables = tuple(item for item in location.variables if item not in (pick.LEFT, pick.REACHED))
    return replace(
        location, variables=variables, response_headers=(), forwarding=None, question=None, picker_rejects=False,
        mirror=None, keeps_uri=False, own_lines=own, onward=quote.plain(name),
    )  # fmt: skip


def _unavailable(route: Route, pool: str, variables: Pairs, headers: Pairs, body: str = NO_REPLICA) -> Location:
    answer = Answer(503, quote.value("application/json"), (), quote.value(body))
    return Location(_name(route, pool), variables, headers, answer=answer)


def _answering(route: Route, action: Respond, own_headers: Pairs) -> list[Location]:
    """Return one or two locations that respond with the action's status and text.

    nginx treats the text of a redirect as an address, so its status and text come from two locations.
    """
    path = ("routes", route.name, "respond", "body")
    texts = tuple(quote.value(part, path) for part in quote.chunks(action.body))
    body = quote.script("".join(f"$lb_text{index}" for index in range(len(texts))))
    content_type = dict(route.response_headers.set).get(_CONTENT_TYPE, action.content_type)
    answer = Answer(action.status, quote.plain(content_type), texts, body)
    headers = tuple(item for item in own_headers if item[0].text != _CONTENT_TYPE)
    location = Location(_name(route), _variables(route), headers, answer=answer)
    if action.status not in _MEAN_A_LOCATION:
        return [location]
    name = _name(route, "answer")
    text_location = replace(location, name=name, answer=replace(answer, status=200))
    return [Location(location.name, location.variables, elsewhere=name, status=action.status), text_location]
