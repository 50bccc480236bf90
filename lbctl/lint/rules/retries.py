"""What is tried again, how often, and what that multiplies to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod

from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.matching import overlaps
from lbctl.ir.routes import Forward, Route
from lbctl.lint.rule import Edit, Found, rule
from lbctl.lint.sample import sample
from lbctl.lint.subject import Subject, is_loopback

_MOST_ATTEMPTS = 2
_SPARE = """\
spare:
  replicas:
    - {name: c, address: "10.0.0.3:8000", gpu: L4}
    - {name: d, address: "10.0.0.4:8000", gpu: L4}
"""


def _route(name: str, retry: str, more: str = "") -> str:
    path = "/v1/chat" if name == "chat" else "/v1/embeddings"
    return f"{name}: {{match: {{path_prefix: {path}}}, pool: llama, retry: {retry}{more}}}\n"


@rule(
    "LB313",
    "warning",
    "more than two further tries",
    what="A route may try a request more than twice again.",
    why="When several replicas are away, further tries only move the crowd to those that are left; the third one "
    "seldom finds what two did not, and each takes its backoff from the time to the first token.",
    before=sample(routes=_route("chat", "{attempts: 5, budget: 20%}")),
    after=sample(routes=_route("chat", "{attempts: 2, budget: 20%}")),
    ignore="The pool has very many replicas of which many go at once (spot).",
)
def too_many(fleet: Subject) -> Iterator[Found]:
    for route, _ in fleet.forwards:
        if route.retry.attempts > _MOST_ATTEMPTS:
            path = ("routes", route.name, "retry", "attempts")
            message = f"{route.retry.attempts} further tries: two find a replica that is there, more add load"
            yield Found(path, message, "attempts: 2", Edit(path, _MOST_ATTEMPTS))


@rule(
    "LB314",
    "warning",
    "a generation may be repeated after the model has seen it",
    what="A route to a generative model says `idempotent: true`.",
    why="The request may have run for a minute before the connection broke. The repeat burns a second GPU for the same "
    "answer, and under load every reset doubles the work of the pool that was already too slow.",
    before=sample(routes=_route("chat", "{idempotent: true, budget: 20%}")),
    after=sample(routes=_route("chat", "{idempotent: false, budget: 20%}")),
    ignore="Answers are short, and the sampling is fixed by a seed.",
)
def repeats_generation(fleet: Subject) -> Iterator[Found]:
    for route, _ in fleet.forwards:
        if route.retry.idempotent and route.retry.attempts and fleet.streams(route):
            path = ("routes", route.name, "retry", "idempotent")
            yield Found(path, "a generation that was cut off is run again from its start", "false", Edit(path, False))


@rule(
    "LB315",
    "warning",
    "retries without a budget",
    what="A route retries what the model may have seen, or more than twice, and has no `retry.budget`.",
    why="Without a budget a pool that is slow gets as much again in repeats: the overload feeds itself and stays when "
    "its cause is gone.",
    before=sample(routes=_route("embed", "{attempts: 1, idempotent: true}")),
    after=sample(routes=_route("embed", "{attempts: 1, idempotent: true, budget: 20%}")),
    ignore="The pool's `circuit_breaker.max_retries` is small enough to be the budget.",
)
def unbounded(fleet: Subject) -> Iterator[Found]:
    for route, _ in fleet.forwards:
        retry = route.retry
        risky = (retry.idempotent and retry.attempts > 0) or retry.attempts > _MOST_ATTEMPTS
        if risky and retry.budget is None:
            path = ("routes", route.name, "retry", "budget")
            yield Found(path, "nothing bounds how much repeats add to an overload", "budget: 20%")


@rule(
    "LB316",
    "note",
    "one request that may become many",
    what="Tries × fallback × the proxies of the fleet that stand behind one another, multiplied: how many requests "
    "one of a client's may become at worst. It is shown from 4 on where the model may have seen them, else from 7 on.",
    why="Each layer looks modest. Multiplied, they are what a fleet gets at the worst time: when its replicas fail.",
    before=sample(
        routes=_route("embed", "{attempts: 2, idempotent: true, budget: 20%}", ", fallback: spare"), pools=_SPARE
    ),
    after=sample(routes=_route("embed", "{attempts: 1, budget: 20%}", ", fallback: spare"), pools=_SPARE),
    ignore="The product is known, and the pools' breakers are sized for it.",
)
def amplified(fleet: Subject) -> Iterator[Found]:
    for route, action in fleet.forwards:
        factors = _factors(fleet, route, action, frozenset())
        product = _product(factors)
        if product > (3 if route.retry.idempotent else 6):
            shown = " × ".join(f"{number} ({words})" for number, words in factors)
            message = f"one request may become {product}: {shown}"
            yield Found(("routes", route.name, "retry"), message, "fewer tries, in one layer alone")


def _factors(fleet: Subject, route: Route, action: Forward, seen: frozenset[str]) -> list[tuple[int, str]]:
    found = [(1 + route.retry.attempts, "tries")]
    if action.fallback:
        found.append((2, "with the fallback"))
    inner = [
        _factors(fleet, behind, below, seen | {route.name})
        for behind, below in _behind(fleet, route, action)
        if behind.name not in seen | {route.name}
    ]
    worst = max(inner, key=_product, default=[])
    return [*found, *((number, f"{words} of the next proxy") for number, words in worst if number > 1)]


def _product(factors: Iterable[tuple[int, str]]) -> int:
    return prod(number for number, _ in factors)


def _behind(fleet: Subject, route: Route, action: Forward) -> Iterator[tuple[Route, Forward]]:
    """Routes that may take its requests on those of the fleet's own listeners that stand where a pool's replicas
    should."""
    inner = [rule for listener in _doors(fleet, action) for rule in listener.rules]
    if not inner:
        return iter(())
    moved = route.rewrite is not None and route.rewrite.path_prefix is not None
    asked = [rule for listener in fleet.topology.listeners for rule in listener.rules if rule.route == route.name]
    names = {rule.route for rule in inner if moved or any(_meet(rule, own) for own in asked)}
    return ((other, below) for other, below in fleet.forwards if other.name in names)


def _meet(one: Rule, other: Rule) -> bool:
    """Whatever the hosts: the first proxy may change them."""
    return overlaps(replace(one, host=""), replace(other, host=""))


def _doors(fleet: Subject, action: Forward) -> list[Listener]:
    listeners = fleet.topology.listeners
    binds, ports = {item.bind for item in listeners}, {item.bind.port for item in listeners}
    there = {
        item.address
        for name in action.pools
        for item in fleet.pool(name).replicas
        if item.address in binds or (item.address.port in ports and is_loopback(item.address))
    }
    anywhere = {item.port for item in there if is_loopback(item)}
    return [
        item
        for item in listeners
        if item.bind in there or (item.bind.host in ("0.0.0.0", "::") and item.bind.port in anywhere)
    ]
