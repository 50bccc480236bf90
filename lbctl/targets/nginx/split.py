"""Chooses the pool of a request for a route: first by pins, then by the client's variant, and then by a draw.

The draw uses nginx's own `$request_id`, never a client's ID, because clients could use their own ID to choose the pool.

nginx fails on a variable that depends on a hundred nested variables, so pins are not a chain of maps. Each run of pins
on the same header or cookie is one map, and the first map with a value decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from lbctl.base.diagnostics import Path
from lbctl.ir.routes import Forward, Pin, Route, Share, StickySplit
from lbctl.targets.nginx import names, quote
from lbctl.targets.nginx.blocks import Draw
from lbctl.targets.nginx.render_context import RenderContext
from lbctl.targets.token import Token

_WHOLE = 10_000
"""Unit of split_clients: a hundredth of a percent."""
_TOGETHER = 100
"""Maximum number of variables in the source of a map, because it is a single token and tokens are short."""


def choice(context: RenderContext, route: Route, number: int) -> str:
    """Return the variable that contains a request's pool, or the pool's name itself if there is only one."""
    action = route.action
    assert isinstance(action, Forward)
    active = [share for share in action.shares if share.weight > 0]
    if len(active) == 1:
        chosen = active[0].pool
    else:
        chosen = _draw(context, route, number, active)
        if action.sticky is not None and action.sticky.kind == "cookie":
            chosen = _sticky_variant(context, number, action.sticky, active, chosen)
    return _pinned(context, route, number, chosen)


def sets_cookie(route: Route) -> bool:
    """Return whether the proxy sets a cookie that contains the client's variant."""
    action = route.action
    if not isinstance(action, Forward) or action.sticky is None or action.sticky.kind != "cookie":
        return False
    return sum(1 for share in action.shares if share.weight > 0) > 1


def cookie(context: RenderContext, route: Route, number: int, pool: str, secure: bool) -> str:
    """Return the variable that contains the Set-Cookie which keeps a client on `pool`.

    The variable is empty if the client already has the cookie or was pinned.
    """
    assert isinstance(route.action, Forward)
    sticky = route.action.sticky
    assert sticky is not None
    current_value = context.lookups.cookie(sticky.name)
    attributes = "; Path=/; HttpOnly; SameSite=Lax" + ("; Secure" if secure else "")
    text = f"{quote.embed(sticky.name)}={pool}; Max-Age={max(1, sticky.ttl // 1000)}{attributes}"
    variable = f"$lb_r{number}_cookie{len(context.maps)}"
    variant = f"$lb_r{number}_kept"
    every = [item.variable.text for item in context.maps if item.variable.text.startswith(f"$lb_r{number}_pin")]
    pins = _grouped(context, every)
    pinned, not_pinned = (f"{' '.join(pins)}\n", r" *\n") if pins else ("", "")
    entries = (
        (Token("default"), Token('""')),
        (quote.plain(rf"~^{not_pinned}{quote.literal(pool)}\n(?!{quote.literal(pool)}\z)"), quote.script(text)),
    )
    return context.map(f"{pinned}{variant}\n{current_value}", variable, entries)


def _draw(context: RenderContext, route: Route, number: int, active: Sequence[Share]) -> str:
    """Return the variable that contains the drawn pool.

    With a split sticky by header, the same value always draws the same pool; requests without the header are drawn at
    random.
    """
    assert isinstance(route.action, Forward)
    source, sticky = "$request_id", route.action.sticky
    if sticky is not None and sticky.kind == "header":
        header_variable = names.header(sticky.name)
        if header_variable is None:
            context.warn(
                "route.sticky_split.header",
                ("routes", route.name, "sticky_split", "header"),
                "nginx drops request headers with this name, so clients have no affinity",
            )
        else:
            entries = ((Token("default"), Token(header_variable)), (Token('""'), Token("$request_id")))
            source = context.map(header_variable, f"$lb_r{number}_client", entries)
    variable = f"$lb_r{number}_draw"
    path: Path = ("routes", route.name, "split")
    context.draws.append(Draw(quote.script(f"{source} {number}"), Token(variable), _entries(active, path)))
    return variable


def _entries(active: Sequence[Share], path: Path) -> tuple[tuple[Token, Token], ...]:
    parts = _parts(active)
    lines = [
        (Token(f"{part // 100}.{part % 100:02}%"), quote.plain(share.pool, (*path, share.pool)))
        for share, part in zip(active[:-1], parts, strict=False)
    ]
    return (*lines, (Token("*"), quote.plain(active[-1].pool, (*path, active[-1].pool))))


def _parts(active: Sequence[Share]) -> list[int]:
    """Return the shares in hundredths of a percent, each at least 1, with a sum of 10,000."""
    total = sum(share.weight for share in active)
    exact = [share.weight * _WHOLE / total for share in active]
    parts = [max(1, int(item)) for item in exact]
    largest = parts.index(max(parts))
    order = sorted(range(len(parts)), key=lambda i: (int(exact[i]) - exact[i], i))
    for index in order[: max(0, _WHOLE - sum(parts))]:
        parts[index] += 1
    parts[largest] -= sum(parts) - _WHOLE
    return parts


def _sticky_variant(
    context: RenderContext, number: int, sticky: StickySplit, active: Sequence[Share], chosen: str
) -> str:
    current_value = context.lookups.cookie(sticky.name)
    lines = [(quote.plain(f"~^{quote.literal(share.pool)}\\z"), quote.plain(share.pool)) for share in active]
    return context.map(current_value, f"$lb_r{number}_kept", ((Token("default"), Token(chosen)), *lines))


def _pinned(context: RenderContext, route: Route, number: int, otherwise: str) -> str:
    """Return the variable that contains the pool of the first matching pin, or else `otherwise`."""
    assert isinstance(route.action, Forward)
    runs = [
        (source, list(pins))
        for source, pins in groupby(route.action.pins, lambda pin: _pin_source(context, route, pin))
    ]
    pin_variables = [
        _run(context, route, source, pins, f"$lb_r{number}_pin{index}")
        for index, (source, pins) in enumerate(runs)
        if source is not None
    ]
    return _first(context, _grouped(context, pin_variables), otherwise) if pin_variables else otherwise


def _grouped(context: RenderContext, variables: Sequence[str]) -> Sequence[str]:
    """Combine the variables into few enough for a token.

    If any of them is not empty, one of the results is not empty.
    """
    while len(variables) > _TOGETHER:
        groups = [variables[start : start + _TOGETHER] for start in range(0, len(variables), _TOGETHER)]
        variables = [_first(context, group, '""') for group in groups]
    return variables


def _pin_source(context: RenderContext, route: Route, pin: Pin) -> str | None:
    """Return the variable that a pin compares, or None if it never exists in nginx."""
    source = names.header(pin.name) if pin.kind == "header" else context.lookups.cookie(pin.name)
    if source is None:
        path = ("routes", route.name, "pin")
        context.warn(
            "route.pin.header", path, f"nginx drops request headers named {pin.name!r}, so this pin never matches"
        )
    return source


def _run(context: RenderContext, route: Route, source: str, pins: Sequence[Pin], variable: str) -> str:
    """Return the variable that contains the pool of the first matching pin, or is empty.

    All `pins` compare `source`.
    """
    path = ("routes", route.name, "pin")
    lines = [(quote.plain(f"~^{quote.literal(pin.value)}\\z", path), quote.plain(pin.pool)) for pin in pins]
    return context.map(source, variable, ((Token("default"), Token('""')), *lines))


def _first(context: RenderContext, variables: Sequence[str], otherwise: str) -> str:
    """Return a variable that contains the first value of `variables` that is not empty, or else `otherwise`."""
    variable = f"$lb_p{len(context.maps)}"
    key = quote.plain(f"~^ *{names.group(variable, '[^ ]+')}")
    entries = ((Token("default"), Token(otherwise)), (key, Token(names.captured(variable))))
    return context.map(" ".join(variables), variable, entries)


def sample(context: RenderContext, number: int, percent: float) -> str | None:
    """Return the variable that is 1 for `percent` of the requests, otherwise 0; None for all requests."""
    part = min(_WHOLE, max(1, round(percent * 100)))
    if part == _WHOLE:
        return None
    variable = f"$lb_r{number}_copied"
    if all(item.variable != Token(variable) for item in context.draws):
        entries = ((Token(f"{part // 100}.{part % 100:02}%"), Token("1")), (Token("*"), Token("0")))
        context.draws.append(Draw(quote.script(f"$request_id copy {number}"), Token(variable), entries))
    return variable
