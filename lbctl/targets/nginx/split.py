"""To which pool a request of a route goes: pins first, then a variant that the client was given, then the draw.

The draw is by nginx's own `$request_id`, never by the one a client may have sent: that would let clients choose.

nginx gives up where a variable needs a hundred others within each other, so pins are not a chain of maps: each run of
pins that look at the same header or cookie is one map, and the first of these that says something is the pool.
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
"""split_clients counts in hundredths of a percent."""
_TOGETHER = 100
"""Variables that are put together in the source of one map: it is one token, and those are short."""


def choice(book: RenderContext, route: Route, number: int) -> str:
    """The pool of a request: a variable, or the name itself where there is only one."""
    action = route.action
    assert isinstance(action, Forward)
    live = [share for share in action.shares if share.weight > 0]
    if len(live) == 1:
        chosen = live[0].pool
    else:
        chosen = _draw(book, route, number, live)
        if action.sticky is not None and action.sticky.kind == "cookie":
            chosen = _kept(book, number, action.sticky, live, chosen)
    return _pinned(book, route, number, chosen)


def sets_cookie(route: Route) -> bool:
    """Whether the proxy gives the client a cookie with its variant."""
    action = route.action
    if not isinstance(action, Forward) or action.sticky is None or action.sticky.kind != "cookie":
        return False
    return sum(1 for share in action.shares if share.weight > 0) > 1


def cookie(book: RenderContext, route: Route, number: int, pool: str, secure: bool) -> str:
    """The variable with the Set-Cookie that keeps a client with `pool`: empty where it has it, or was pinned."""
    assert isinstance(route.action, Forward)
    sticky = route.action.sticky
    assert sticky is not None
    has = book.lookups.cookie(sticky.name)
    end = "; Path=/; HttpOnly; SameSite=Lax" + ("; Secure" if secure else "")
    text = f"{quote.embed(sticky.name)}={pool}; Max-Age={max(1, sticky.ttl // 1000)}{end}"
    variable = f"$lb_r{number}_cookie{len(book.maps)}"
    drawn = f"$lb_r{number}_kept"
    entries = (
        (Token("default"), Token('""')),
        (quote.plain(rf"~^{quote.literal(pool)}\n(?!{quote.literal(pool)}\z)"), quote.script(text)),
    )
    return book.map(f"{drawn}\n{has}", variable, entries)


def _draw(book: RenderContext, route: Route, number: int, live: Sequence[Share]) -> str:
    """Sticky by header: the same value draws the same pool; a request without it is drawn for itself."""
    assert isinstance(route.action, Forward)
    source, sticky = "$request_id", route.action.sticky
    if sticky is not None and sticky.kind == "header":
        given = names.header(sticky.name)
        if given is None:
            book.warn(
                "route.sticky_split.header",
                ("routes", route.name, "sticky_split", "header"),
                "nginx drops request headers of that name: nothing is kept",
            )
        else:
            entries = ((Token("default"), Token(given)), (Token('""'), Token("$request_id")))
            source = book.map(given, f"$lb_r{number}_client", entries)
    variable = f"$lb_r{number}_draw"
    path: Path = ("routes", route.name, "split")
    book.draws.append(Draw(quote.script(f"{source} {number}"), Token(variable), _entries(live, path)))
    return variable


def _entries(live: Sequence[Share], path: Path) -> tuple[tuple[Token, Token], ...]:
    parts = _parts(live)
    lines = [
        (Token(f"{part // 100}.{part % 100:02}%"), quote.plain(share.pool, (*path, share.pool)))
        for share, part in zip(live[:-1], parts, strict=False)
    ]
    return (*lines, (Token("*"), quote.plain(live[-1].pool, (*path, live[-1].pool))))


def _parts(live: Sequence[Share]) -> list[int]:
    """Hundredths of a percent, each at least 1, the sum 10,000."""
    total = sum(share.weight for share in live)
    exact = [share.weight * _WHOLE / total for share in live]
    parts = [max(1, int(item)) for item in exact]
    largest = parts.index(max(parts))
    order = sorted(range(len(parts)), key=lambda i: (int(exact[i]) - exact[i], i))
    for index in order[: max(0, _WHOLE - sum(parts))]:
        parts[index] += 1
    parts[largest] -= sum(parts) - _WHOLE
    return parts


def _kept(book: RenderContext, number: int, sticky: StickySplit, live: Sequence[Share], chosen: str) -> str:
    has = book.lookups.cookie(sticky.name)
    lines = [(quote.plain(f"~^{quote.literal(share.pool)}\\z"), quote.plain(share.pool)) for share in live]
    return book.map(has, f"$lb_r{number}_kept", ((Token("default"), Token(chosen)), *lines))


def _pinned(book: RenderContext, route: Route, number: int, otherwise: str) -> str:
    """The pool of the first pin that holds, else `otherwise`."""
    assert isinstance(route.action, Forward)
    runs = [(source, list(pins)) for source, pins in groupby(route.action.pins, lambda pin: _seen(book, route, pin))]
    said = [
        _run(book, route, source, pins, f"$lb_r{number}_pin{index}")
        for index, (source, pins) in enumerate(runs)
        if source is not None
    ]
    while len(said) > _TOGETHER:
        parts = [said[at : at + _TOGETHER] for at in range(0, len(said), _TOGETHER)]
        said = [_first(book, part, '""') for part in parts]
    return _first(book, said, otherwise) if said else otherwise


def _seen(book: RenderContext, route: Route, pin: Pin) -> str | None:
    """The variable that a pin looks at; None where nginx never has it."""
    source = names.header(pin.name) if pin.kind == "header" else book.lookups.cookie(pin.name)
    if source is None:
        path = ("routes", route.name, "pin")
        book.warn("route.pin.header", path, f"nginx drops request headers named {pin.name!r}: that pin never holds")
    return source


def _run(book: RenderContext, route: Route, source: str, pins: Sequence[Pin], variable: str) -> str:
    """The pool of the first of `pins` that holds, else empty; all of them look at `source`."""
    path = ("routes", route.name, "pin")
    lines = [(quote.plain(f"~^{quote.literal(pin.value)}\\z", path), quote.plain(pin.pool)) for pin in pins]
    return book.map(source, variable, ((Token("default"), Token('""')), *lines))


def _first(book: RenderContext, variables: Sequence[str], otherwise: str) -> str:
    """The value of the first of `variables` that is not empty, else `otherwise`."""
    entries = ((Token("default"), Token(otherwise)), (quote.plain("~^ *([^ ]+)"), Token("$1")))
    return book.map(" ".join(variables), f"$lb_p{len(book.maps)}", entries)


def sample(book: RenderContext, number: int, percent: float) -> str | None:
    """The variable that is 1 for `percent` of the requests, else 0; None where that is all of them."""
    part = min(_WHOLE, max(1, round(percent * 100)))
    if part == _WHOLE:
        return None
    variable = f"$lb_r{number}_copied"
    if all(item.variable != Token(variable) for item in book.draws):
        entries = ((Token(f"{part // 100}.{part % 100:02}%"), Token("1")), (Token("*"), Token("0")))
        book.draws.append(Draw(quote.script(f"$request_id copy {number}"), Token(variable), entries))
    return variable
