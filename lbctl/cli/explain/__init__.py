"""`lbctl explain`: explains decisions.

`weight` explains how a replica's signals lead to the weight that the proxies received. `route` explains which route and
pool handle a request. `pick` explains which replica the picker chooses for a request.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import click

from lbctl.api import schema
from lbctl.api.client import ServeClient
from lbctl.base.diagnostics import did_you_mean
from lbctl.cli.command import Group
from lbctl.cli.explain.sentence import observed, sentence
from lbctl.cli.options import options_of, output_option
from lbctl.cli.output import age, show
from lbctl.cli.overrides import place
from lbctl.cli.server_options import server_options
from lbctl.pick.waiting import PRIORITIES
from lbctl.targets import TARGETS


@click.group("explain", cls=Group)
def command() -> None:
    """Explain routing, picking and weights."""


@command.command("weight", examples="lbctl explain weight llama/gpu-3")
@click.argument("replica", metavar="POOL/REPLICA")
@output_option("explain_weight")
@server_options()
def weight(replica: str, form: str, remote: ServeClient) -> int:
    """Explain the weight of a replica.

    The output shows every step from the signals to the proxies, with the age of each value.
    """
    pool, name = place(replica)
    of_pool, row = _row(remote, pool, name)
    peers = [item for item in remote.get("/api/v1/decisions", schema.Decisions).decisions if item.pool == pool]
    decision = next((item for item in peers if item.replica == name), None)
    explained = decision or _undecided(remote, pool, row)
    if form != "table":
        show(explained, form)
        return 0
    click.echo(_printable(sentence(row, of_pool)))
    lines = _few_lines(explained) if isinstance(explained, Undecided) else _lines(explained, peers)
    for label, text in (*lines, ("observed", observed(row, of_pool))):
        click.echo(f"{label:<14} {_printable(text)}")
    return 0


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]


route_option = options_of("explain_route")


@command.command("route", examples="lbctl explain route POST /v1/chat/completions --body request.json fleet.yaml")
@click.argument("method", metavar="METHOD")
@click.argument("url", metavar="URL")
@click.argument("paths", metavar="PATH…", nargs=-1, required=True)
@route_option("-H", "--header", "headers", metavar="'NAME: VALUE'", multiple=True, help="Request header (repeatable).")
@route_option("--body", metavar="FILE", help="File with the request body, from which some routes read the model.")
@route_option(
    "--listener", metavar="NAME", help="Listener that receives the request (default: the listener with the URL's port)."
)
@route_option("-t", "--target", "kind", type=click.Choice(TARGETS), help="Explain only this kind of proxy.")
@output_option("explain_route")
def route(
    method: str, url: str, paths: tuple[str, ...], headers: tuple[str, ...], body: str | None, listener: str | None,
    kind: str | None, form: str,
) -> int:  # fmt: skip
    """Explain which route and pool handle a request.

    URL is a complete URL or a path. lbctl does not send a request. For each kind of proxy, the output shows the
    matching routes, the criterion that selects one of them, and how the pool is chosen. It also shows each policy
    setting with its source line.
    """
    from lbctl.cli.explain.route import answer
    from lbctl.cli.explain.route_request import RouteQuery

    return answer(RouteQuery(method, url, headers, body, kind, listener, form), paths)


pick_option = options_of("explain_pick")


@command.command(
    "pick",
    examples="""
    lbctl explain pick llama --session user-42
    # With idle replicas, from the files:
    lbctl explain pick llama --body request.json fleet.yaml
    """,
)
@click.argument("pool", metavar="POOL")
@click.argument("paths", metavar="[PATH…]", nargs=-1)
@pick_option("--session", metavar="KEY", help="Value of the pool's first session key.")
@pick_option("--tenant", metavar="NAME", help="Tenant that sends the request.")
@pick_option(
    "--priority", metavar="PRIORITY", type=click.Choice(PRIORITIES), default="normal", show_default=True,
    help="Priority of the request in the queue, from its route or from a header: high, normal or low.",
)  # fmt: skip
@pick_option(
    "--body", metavar="FILE", help="File with the request body. lbctl sends only its beginning to a running picker."
)
@pick_option("--region", metavar="NAME", help="Region of the proxy.")
@pick_option("--zone", metavar="NAME", help="Zone of the proxy.")
@output_option("explain_pick")
@server_options()
def pick(
    pool: str,
    paths: tuple[str, ...],
    session: str | None,
    tenant: str | None,
    priority: Literal["high", "normal", "low"],
    body: str | None,
    region: str | None,
    zone: str | None,
    form: str,
    remote: ServeClient,
) -> int:
    """Explain which replica the picker selects.

    With PATH…, lbctl assumes that every replica is idle and has the capacity from the files. Without PATH, the running
    picker answers based on its current state and does not record the request.

    \b
    Columns:
      RATE    Weight of the replica, including slow start.
      WORK    Tokens in in-flight requests that have not yet been computed.
      CACHED  Prompt tokens that may be in the cache of the replica.
      WAIT    WORK divided by RATE, plus the request's own tokens
              divided by the weight.
    """
    from lbctl.cli.explain.pick import PickQuery, answer, explain_running

    query = PickQuery(pool, session, tenant, priority, body, region, zone, form)
    if not paths:
        return explain_running(query, remote)
    given = click.get_current_context().get_parameter_source
    line, environment = click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT
    if given("fleet") == line or (given("server") == line and given("fleet") != environment):
        raise click.UsageError("PATH… cannot be combined with --server or --fleet")
    return answer(query, paths)


@dataclass(frozen=True, slots=True)
class Undecided:
    """The weight of a replica in a pool without telemetry. The fields are the same as in `schema.Decision`."""

    pool: str
    replica: str
    capacity: float
    """The replica's capacity, relative to its pool."""
    published: float
    """Published weight, on the same scale as capacities."""
    sent: float
    """Deprecated: the old name of `published`, available until version 1.1."""
    share: float
    """The replica's share of the pool's requests, from 0 to 1."""
    ramp: float
    """lbctl's slow-start factor, from 0 to 1."""
    picker_ramp: float
    """Slow-start factor that the picker uses, from 0 to 1."""
    overrides: tuple[schema.Override, ...]
    """Manual overrides."""


def _row(remote: ServeClient, pool: str, replica: str) -> tuple[schema.Pool, schema.Replica]:
    """Return a replica's row and its pool's row. Raises ClickException if either does not exist."""
    pools = remote.get("/api/v1/pools", schema.Pools).pools
    rows = {(each.name, row.name): (each, row) for each in pools for row in each.replicas}
    if (pool, replica) not in rows:
        near = did_you_mean(f"{pool}/{replica}", ["/".join(names) for names in rows])
        raise click.ClickException(f"unknown replica {pool}/{replica}" + (f" ({near})" if near else ""))
    return rows[pool, replica]


def _undecided(remote: ServeClient, pool: str, row: schema.Replica) -> Undecided:
    """Return the weight of a replica in a pool without telemetry."""
    overrides = remote.get("/api/v1/overrides", schema.Overrides).overrides
    return Undecided(
        pool=pool,
        replica=row.name,
        capacity=row.capacity,
        published=row.weight,
        sent=row.weight,
        share=row.share,
        ramp=row.ramp,
        picker_ramp=row.picker_ramp,
        overrides=tuple(item for item in overrides if item.pool == pool and item.replica in (None, row.name)),
    )


def _few_lines(row: Undecided) -> Iterator[tuple[str, str]]:
    yield "replica", f"{row.pool}/{row.replica}, capacity {row.capacity:g}"
    yield "strategy", "none: the pool has no telemetry, so weights equal capacities"
    yield from _override_lines(row)
    yield "published", _sent(row)
    yield from _ramp(row)


def _lines(row: schema.Decision, peers: Iterable[schema.Decision]) -> Iterator[tuple[str, str]]:
    """Yield the label and text of each line about a decision.

    `peers` contains the decisions for all replicas in its pool.
    """
    yield "replica", f"{row.pool}/{row.replica}, capacity {row.capacity:g}"
    yield "strategy", f"{row.strategy}, {row.mode}" + (f": {row.mode_words}" if row.mode_words else "")
    for name, item in row.signals.items():
        yield "signal", f"{name} = {item.value:.6g} {item.unit}, {age(item.age)} old"
    if not row.signals:
        yield "signal", "no signal has been read yet"
    if row.sampled_by:
        yield "scraped by", row.sampled_by
    yield "evidence", f"{age(row.evidence_age)} old" if row.evidence_age is not None else "none"
    quantity = "load" if row.strategy == "composite" else "speed"
    yield quantity, _measure(row.load if quantity == "load" else row.speed, "per capacity")
    yield "normalised", f"{row.normalised:+.3f} against its peers, {row.across_types:+.3f} for its GPU type (ln)"
    yield "proposed", _percent(row.proposed)
    yield "clamped", _percent(row.clamped)
    yield "limited", f"{_percent(row.limited)}, beyond the deadband {_percent(row.beyond_deadband)}"
    yield "decided", f"{row.decided:g}" + (", not published: the weight is overridden" if _by_hand(row) else "")
    yield from _override_lines(row)
    yield "published", _sent(row)
    yield "factors", _parts(row)
    yield from _ramp(row)
    yield "quantised", _quantised(row, peers)
    yield from (("note", note) for note in row.notes)
    acknowledged = row.acknowledged
    waiting = f"; not yet: {', '.join(acknowledged.waiting)}" if acknowledged.waiting else ""
    yield "acknowledged", f"by {acknowledged.have_it} of {acknowledged.proxies} proxies{waiting}"
    yield "health", row.verdict + (f": {'; '.join(row.reasons)}" if row.reasons else "")


def _override_lines(row: schema.Decision | Undecided) -> Iterator[tuple[str, str]]:
    for item in row.overrides:
        value = f" {item.value:g}" if item.value is not None else ""
        until = f", until {item.until}" if item.until else ""
        yield "override", f"{item.kind}{value}{until}" + (f": {item.reason}" if item.reason else "")


def _ramp(row: schema.Decision | Undecided) -> Iterator[tuple[str, str]]:
    """Yield the lines about slow start, which lbctl implements for the picker and for proxies that lack it."""
    if row.picker_ramp < 1:
        yield "slow start", f"the picker uses {row.picker_ramp:.0%} of the weight so far"
    if row.ramp < 1:
        yield (
            "slow start",
            f"nginx uses {row.ramp:.0%} of the weight so far; Envoy and HAProxy apply slow start themselves",
        )


def _by_hand(row: schema.Decision | Undecided) -> bool:
    return any(item.kind == "weight" for item in row.overrides)


def _sent(row: schema.Decision | Undecided) -> str:
    return f"{row.published:g}{' by override' if _by_hand(row) else ''}, {row.share * 100:.1f}% of the pool's weight"


def _quantised(row: schema.Decision, peers: Iterable[schema.Decision]) -> str:
    """Return the weight for each kind of proxy with the pool's total, because a weight is meaningless without it."""
    own = row.quantised
    sums = {kind: sum(peer.quantised.get(kind, 0) for peer in peers) for kind in own}
    parts = [f"{kind}: {value} of {sums[kind]}" for kind, value in own.items()]
    return f"{', '.join(parts)}; each kind has its own scale" if parts else "it gets no new requests"


def _parts(row: schema.Decision) -> str:
    return f"room {row.room:g}, {row.of_peers_speed:.0%} of its peers' speed, limited to {row.held:.0%}"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value * 100:.1f}% of its capacity"


def _measure(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.6g} {unit}"
