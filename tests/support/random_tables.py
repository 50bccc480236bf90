"""Random tables of rules, and the route of each request by lbctl's order."""

from __future__ import annotations

import random
from collections.abc import Iterator

from lbctl.ir.address import Address
from lbctl.ir.listeners import Certificate, Listener, ListenerTls, PathMatch, Rule
from lbctl.ir.matching import Request, matches, order
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Forward, Pin, Route, Share
from lbctl.ir.snapshot import Snapshot, View, view
from lbctl.ir.topology import Topology

_HOSTS = ("", "", "*.example.com", "a.example.com", "*.b.example.com")
_PATHS = (
    PathMatch("prefix", "/"),
    PathMatch("prefix", "/v1"),
    PathMatch("prefix", "/v1/chat"),
    PathMatch("prefix", "/v2"),
    PathMatch("exact", "/v1/chat"),
    PathMatch("exact", "/v1"),
    PathMatch("regex", "/v1/c[a-z]+"),
)
_MODELS = (("llama",), ("llama-3", "qwen"), ("llama*",), ("llama-3*", "qwen"))
_HEADERS = ("a", "b", "x-c")


def _rule(rng: random.Random, route: str) -> Rule:
    headers = tuple((name, rng.choice("12")) for name in _HEADERS if rng.random() < 0.3)
    methods = tuple(sorted(rng.sample(("GET", "HEAD", "POST"), rng.choice((0, 0, 0, 1, 2)))))
    models = rng.choice(_MODELS) if rng.random() < 0.3 else ()
    path = rng.choices(_PATHS, (4, 4, 3, 1, 2, 1, 1))[0]
    return Rule(route, rng.choice(_HOSTS), path, methods, headers, models)


def random_view(rng: random.Random, proxy: Proxy) -> View:
    """Return the view of a proxy for a random listener. Each route has one pool, and some pin requests to another."""
    names = [f"r{index}" for index in range(rng.randint(2, 7))]
    rules = tuple(sorted((_rule(rng, name) for name in names for _ in range(rng.choice((1, 1, 2)))), key=order))
    pools = tuple(Pool(name, (Replica("one", Address("10.0.0.1", 80)),)) for name in ("p", "q"))
    pins = (Pin("header", "x-pin", "1", "q"), Pin("cookie", "beta", "1", "q"), Pin("header", "a", "1", "q"))
    routes = tuple(
        Route(name, Forward((Share("p", 1),), rng.choice(((), (), pins[:1], pins[1:2], pins[2:])))) for name in names
    )
    hosts = rng.choice((None, ((),), (("a.example.com",), ("*.example.com",)), ((), ("*.b.example.com", "other.org"))))
    certificates = tuple(Certificate(f"{index}.crt", f"{index}.key", names) for index, names in enumerate(hosts or ()))
    tls = ListenerTls(certificates) if certificates else None
    listener = Listener("public", Address("0.0.0.0", 80), tls, rules=rules)
    return view(Snapshot(Topology((listener,), routes, pools, (proxy,))), proxy)


def random_requests(rng: random.Random, count: int) -> Iterator[Request]:
    """Yield requests that many of the rules match."""
    for _ in range(count):
        headers = {name: (rng.choice("12"),) for name in _HEADERS if rng.random() < 0.5}
        headers |= {"x-pin": ("1",)} if rng.random() < 0.3 else {}
        headers |= (
            {"cookie": (rng.choice(("beta=1", "x=y; beta=1; z=1", "beta=10", "abeta=1")),)}
            if rng.random() < 0.3
            else {}
        )
        model = rng.choice((None, "llama", "llama-3", "llama-3.1", "qwen"))
        yield Request(
            rng.choice(("GET", "HEAD", "POST", "PUT")),
            rng.choice(("a.example.com", "z.example.com", "x.b.example.com", "other.org")),
            rng.choice(("/", "/v1", "/v1/chat", "/v1/chat/x", "/v1/cc", "/v2/x", "/v1x")),
            headers | ({"x-model": (model,)} if model else {}),
            model,
        )  # fmt: skip


def expected(view: View, request: Request) -> str:
    """Return the route by lbctl's order, with `pin` if a pin selects the pool; empty for 404."""
    won = next((item for item in view.listeners[0].rules if matches(item, request)), None)
    if won is None:
        return ""
    action = view.routes[won.route].action
    assert isinstance(action, Forward)
    cookies = [pair.strip() for value in request.headers.get("cookie", ()) for pair in value.split(";")]
    pinned = any(
        f"{pin.name}={pin.value}" in cookies if pin.kind == "cookie" else pin.value in request.headers.get(pin.name, ())
        for pin in action.pins
    )
    return f"{won.route}.pin" if pinned else won.route
