"""The locations of a route: one for each pool that it may reach, or one in which the proxy answers itself.

A location holds everything that its pool and its route ask for: nginx inherits headers and error pages only into a
block that has none of its own. The listener decides the location once, by name; nothing is matched again here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.routes import Forward, Redirect, Respond, Route, retry_after
from lbctl.targets.assess import CLOSED
from lbctl.targets.nginx import auth, limits, names, quote, split
from lbctl.targets.nginx.blocks import Answer, Forwarding, Limit, Location, Mirrored
from lbctl.targets.nginx.forward import Inlet, forwarding
from lbctl.targets.nginx.pool import Upstreams
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.token import Token

NO_REPLICA = json.dumps({"error": {"message": "no replica available", "type": "unavailable"}}, separators=(",", ":"))
_MEAN_A_LOCATION = frozenset({301, 302, 303, 307, 308})


@dataclass(slots=True)
class Routes:
    """Makes the locations of a view's routes; `numbers` gives each route its own variables."""

    book: RenderContext
    upstreams: Upstreams
    numbers: dict[str, int]
    targets: dict[str, str]
    """Route → the name of its location, which may hold the variable of its choice."""

    @classmethod
    def of(cls, book: RenderContext, upstreams: Upstreams) -> Routes:
        numbers = {name: index for index, name in enumerate(book.view.routes)}
        targets = {name: _target(book, route, numbers[name]) for name, route in book.view.routes.items()}
        return cls(book, upstreams, numbers, targets)

    def locations(self, listener: Listener, inlet: Inlet) -> tuple[Location, ...]:
        """Those of all routes that `listener` leads to, by name."""
        used = sorted({rule.route for rule in listener.rules})
        return tuple(item for name in used for item in self._of_route(listener, inlet, self.book.view.routes[name]))

    def mirrors(self, listener: Listener, inlet: Inlet) -> tuple[Mirrored, ...]:
        """The locations to which requests of `listener` are copied."""
        used = sorted({rule.route for rule in listener.rules})
        made = (self._mirror(listener, inlet, self.book.view.routes[name]) for name in used)
        return tuple(item for item in made if item is not None)

    def _of_route(self, listener: Listener, inlet: Inlet, route: Route) -> list[Location]:
        action = route.action
        if isinstance(action, Respond):
            return _answering(route, action)
        if isinstance(action, Redirect):
            return [Location(_name(route), _variables(route), _response_headers(route), redirect=True)]
        rule = _rule(listener, route)
        return [self._forwarding(listener, inlet, route, rule, pool) for pool in _reached(action)]

    def _forwarding(self, listener: Listener, inlet: Inlet, route: Route, rule: Rule, pool: str) -> Location:
        action = route.action
        assert isinstance(action, Forward)
        variables = (*_variables(route, pool, self.book), *_retry_after(route))
        if limits.uncountable(self.book, route):
            return _unavailable(route, pool, variables, CLOSED.body)
        upstream = self.upstreams.of(pool, route.regions)
        spare = action.fallback if action.fallback != pool else None
        if upstream is None:
            if spare is not None:
                return Location(_name(route, pool), variables, elsewhere=_at(route, spare))
            return _unavailable(route, pool, variables)
        found = forwarding(self.book, inlet, route, rule, self.book.view.pools[pool], upstream)
        if found is None:
            return _unavailable(route, pool, variables)
        most = self.upstreams.size(pool, route.regions)
        found = self._with_spare(route, found, spare, most)
        return Location(
            name=_name(route, pool),
            variables=variables,
            response_headers=(*_response_headers(route), *self._cookie(listener, route, pool)),
            limits=(*self._limits(listener, inlet, route), limits.breaker(self.book, self.book.view.pools[pool])),
            tenant=auth.tenant(self.book, route, self.numbers[route.name]),
            refusal=429 if any(item.concurrent for item in route.rate_limits) else 503,
            forwarding=found,
            mirror=Token(_mirror_path(self.numbers[route.name])) if action.mirror and self._copies(route) else None,
        )

    def _limits(self, listener: Listener, inlet: Inlet, route: Route) -> tuple[Limit, ...]:
        own = limits.of_route(self.book, route, self.numbers[route.name])
        if listener.max_connections is None:
            return own
        return (*own, limits.listener(self.book, inlet.number, listener.max_connections))

    def _cookie(self, listener: Listener, route: Route, pool: str) -> tuple[tuple[Token, Token], ...]:
        action = route.action
        if not split.sets_cookie(route) or not isinstance(action, Forward):
            return ()
        if pool not in {share.pool for share in action.shares if share.weight > 0}:
            return ()
        secure = listener.tls is not None
        variable = split.cookie(self.book, route, self.numbers[route.name], pool, secure)
        return ((Token("Set-Cookie"), Token(variable)),)

    def _with_spare(self, route: Route, found: Forwarding, spare: str | None, replicas: int) -> Forwarding:
        """A request that no replica got goes on to the fallback pool; every replica is tried before."""
        if spare is None:
            return found
        number = self.numbers[route.name]
        elsewhere = quote.plain(names.location(route.name, spare))
        for status in ("502", "504"):
            variable = f"$lb_r{number}_{status}"
            if all(item.variable != Token(variable) for item in self.book.maps):
                entries = ((Token("default"), Token(f"$lb_on_{status}")), (Token("lb_503"), elsewhere))
                self.book.map(f"$lb_on_{status}", variable, entries, volatile=True)
        return replace(
            found,
            tries=max(found.tries, replicas) if found.conditions != Token("off") else found.tries,
            on_502=Token(f"@$lb_r{number}_502"),
            on_504=Token(f"@$lb_r{number}_504"),
        )

    def _copies(self, route: Route) -> bool:
        action = route.action
        if not isinstance(action, Forward) or action.mirror is None:
            return False
        return action.mirror.percent > 0 and self.upstreams.of(action.mirror.pool, route.regions) is not None

    def _mirror(self, listener: Listener, inlet: Inlet, route: Route) -> Mirrored | None:
        action = route.action
        if not isinstance(action, Forward) or action.mirror is None or not self._copies(route):
            return None
        pool = self.book.view.pools[action.mirror.pool]
        upstream = self.upstreams.of(pool.name, route.regions)
        assert upstream is not None
        number = self.numbers[route.name]
        found = forwarding(self.book, inlet, route, _rule(listener, route), pool, upstream, copy=True)
        if found is None:
            return None
        draw = split.sample(self.book, number, action.mirror.percent)
        return Mirrored(Token(_mirror_path(number)), Token(draw) if draw else None, found)


def _rule(listener: Listener, route: Route) -> Rule:
    """The first of a route: its rules have the same path."""
    return next(item for item in listener.rules if item.route == route.name)


def _mirror_path(number: int) -> str:
    return f"/.lbctl/mirror/{number}"


def _target(book: RenderContext, route: Route, number: int) -> str:
    if not isinstance(route.action, Forward):
        return names.location(route.name)
    return names.location(route.name, split.choice(book, route, number))


def _reached(action: Forward) -> list[str]:
    """The pools for which there must be a location: those that the choice can name, and the fallback."""
    live = {share.pool for share in action.shares if share.weight > 0}
    return sorted(live | {pin.pool for pin in action.pins} | ({action.fallback} if action.fallback else set()))


def _name(route: Route, pool: str = "") -> Token:
    return quote.plain(f"@{names.location(route.name, pool)}", ("routes", route.name))


def _at(route: Route, pool: str) -> Token:
    return quote.plain(f"@{names.location(route.name, pool)}")


def _variables(route: Route, pool: str = "", book: RenderContext | None = None) -> tuple[tuple[Token, Token], ...]:
    """What the access log says of a request: each as it stands in JSON."""
    found = [(Token("$lb_route"), _json(route.name))]
    if book is not None:
        found.append((Token("$lb_pool"), _json(pool)))
        action = route.action
        if isinstance(action, Forward) and len(action.shares) > 1:
            model = book.view.pools[pool].model
            found.append((Token("$lb_variant"), _json((model and model.version) or pool)))
    return tuple(found)


def _retry_after(route: Route) -> list[tuple[Token, Token]]:
    seconds = retry_after(route.rate_limits)
    return [(Token("$lb_retry_after"), Token(str(seconds)))] if seconds > 1 else []


def _json(text: str) -> Token:
    return quote.value(json.dumps(text))


def _unavailable(
    route: Route, pool: str, variables: tuple[tuple[Token, Token], ...], body: str = NO_REPLICA
) -> Location:
    answer = Answer(503, quote.value("application/json"), (), quote.value(body))
    return Location(_name(route, pool), variables, answer=answer)


def _answering(route: Route, action: Respond) -> list[Location]:
    """nginx takes the text of a redirect for an address: there the status and the text come from two locations."""
    path = ("routes", route.name, "respond", "body")
    texts = tuple(quote.value(part, path) for part in quote.chunks(action.body))
    body = quote.script("".join(f"$lb_text{index}" for index in range(len(texts))))
    answer = Answer(action.status, quote.plain(action.content_type), texts, body)
    found = Location(_name(route), _variables(route), _response_headers(route), answer=answer)
    if action.status not in _MEAN_A_LOCATION:
        return [found]
    name = _name(route, "answer")
    said = replace(found, name=name, answer=replace(answer, status=200))
    return [Location(found.name, found.variables, elsewhere=name, status=action.status), said]


def _response_headers(route: Route) -> tuple[tuple[Token, Token], ...]:
    path = ("routes", route.name, "headers", "response", "set")
    return tuple((quote.plain(name), quote.value(text, (*path, name))) for name, text in route.response_headers.set)
