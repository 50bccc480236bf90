"""`lbctl explain`: why something is as it is.

`weight`: from a replica's signals to what the proxies were told; `route`: from a request to its route and pool."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import click

from lbctl.base.diagnostics import did_you_mean
from lbctl.cli.options import options_of
from lbctl.cli.overrides import place
from lbctl.cli.remote import Server, age, form_choice, server_options, show
from lbctl.targets import KINDS

option = options_of("explain_weight")
Row = dict[str, Any]


@click.group("explain")
def command() -> None:
    """Why a request takes its route, and why a weight is what it is."""


@command.command("weight")
@click.argument("replica", metavar="POOL/REPLICA")
@option("-o", "form", type=form_choice, default="table", show_default=True, help="The form.")
@server_options()
def weight(replica: str, form: str, server: str, token_file: str | None, tls_ca: str | None) -> int:
    """Why a replica has its weight: every number on the way from its signals to the proxies, with ages."""
    pool, name = place(replica)
    remote = Server(server, token_file, tls_ca)
    rows: list[Row] = remote.get("/api/v1/decisions")["decisions"]
    peers = [row for row in rows if row["pool"] == pool]
    found = next((row for row in peers if row["replica"] == name), None) or _undecided(remote, pool, name)
    if form != "table":
        show(found, form)
        return 0
    for label, text in _lines(found, peers) if "strategy" in found else _few_lines(found):
        click.echo(f"{label:<14} {text if text.isprintable() else ascii(text)[1:-1]}")
    return 0


route_option = options_of("explain_route")


@command.command("route")
@click.argument("method", metavar="METHOD")
@click.argument("url", metavar="URL")
@click.argument("paths", metavar="PATH…", nargs=-1, required=True)
@route_option(
    "-H", "--header", "headers", metavar="'NAME: VALUE'", multiple=True, help="A header; several may be given."
)
@route_option("--body", metavar="FILE", help="The request's body: some routes look for the model in it.")
@route_option("--listener", metavar="NAME", help="Where the request comes in; default: by the URL's port.")
@route_option("-t", "--target", "kind", type=click.Choice(KINDS), help="On that kind of proxy alone.")
@route_option("-o", "form", type=form_choice, default="table", show_default=True, help="The form.")
def route(
    method: str, url: str, paths: tuple[str, ...], headers: tuple[str, ...], body: str | None, listener: str | None,
    kind: str | None, form: str,
) -> int:  # fmt: skip
    """Which route and pool of the fleet in PATH… a request takes, and why, on each kind of proxy.

    URL is a whole one, or a path. Nothing is sent: what would match, what decides between routes, the pin or the draw,
    and the policy, each setting with the line that it came from.
    """
    from lbctl.cli.explain_route import Asked, answer

    return answer(Asked(method, url, headers, body, kind, listener, form), paths)


def _undecided(remote: Server, pool: str, replica: str) -> Row:
    """What is known of a replica of a pool without telemetry. ClickException for one that is not there."""
    rows = {
        (each["name"], row["name"]): row for each in remote.get("/api/v1/pools")["pools"] for row in each["replicas"]
    }
    if (pool, replica) not in rows:
        near = did_you_mean(f"{pool}/{replica}", ["/".join(names) for names in rows])
        raise click.ClickException(f"there is no replica {pool}/{replica}" + (f"; {near}" if near else ""))
    held = [row for row in remote.get("/api/v1/overrides")["overrides"] if row["pool"] == pool]
    row = rows[pool, replica]
    return {
        "pool": pool,
        "replica": replica,
        "capacity": row["capacity"],
        "sent": row["weight"],
        "share": row["share"],
        "overrides": [item for item in held if item["replica"] in (None, replica)],
    }


def _few_lines(row: Row) -> Iterator[tuple[str, str]]:
    yield "replica", f"{row['pool']}/{row['replica']}, capacity {row['capacity']:g}"
    yield "strategy", "none: nothing is read of this pool, so its weights are its capacities"
    yield from _hands(row)
    yield "sent", _sent(row)


def _lines(row: Row, peers: Iterable[Row]) -> Iterator[tuple[str, str]]:
    """`peers`: the rows of its pool."""
    yield "replica", f"{row['pool']}/{row['replica']}, capacity {row['capacity']:g}"
    yield "strategy", f"{row['strategy']}, {row['mode']}" + (f": {row['mode_words']}" if row["mode_words"] else "")
    for name, item in row["signals"].items():
        yield "signal", f"{name} = {item['value']:.6g} {item['unit']}, {age(item['age'])} old"
    if not row["signals"]:
        yield "signal", "none has ever been read"
    yield "evidence", f"{age(row['evidence_age'])} old" if row["evidence_age"] is not None else "none"
    what = "load" if row["strategy"] == "composite" else "speed"
    yield what, _number(row[what], "per capacity")
    yield "normalised", f"{row['normalised']:+.3f} against its peers, {row['across_types']:+.3f} for its GPU type (ln)"
    yield "wished", _percent(row["wished"])
    yield "clamped", _percent(row["clamped"])
    yield "damped", f"{_percent(row['damped'])}, beyond the deadband {_percent(row['beyond_deadband'])}"
    yield "decided", f"{row['decided']:g}" + (", not sent: a weight is held by hand" if _by_hand(row) else "")
    yield from _hands(row)
    yield "sent", _sent(row)
    yield "of which", _parts(row)
    yield "quantised", _quantised(row, peers)
    yield from (("note", note) for note in row["notes"])
    told = row["acknowledged"]
    waiting = f"; not yet: {', '.join(told['waiting'])}" if told["waiting"] else ""
    yield "acknowledged", f"by {told['have_it']} of {told['proxies']} proxies{waiting}"
    yield "health", row["verdict"] + (f": {'; '.join(row['words'])}" if row["words"] else "")


def _hands(row: Row) -> Iterator[tuple[str, str]]:
    for item in row["overrides"]:
        value = f" {item['value']:g}" if item["value"] is not None else ""
        until = f", until {item['until']}" if item["until"] else ""
        yield "by hand", f"{item['kind']}{value}{until}" + (f": {item['reason']}" if item["reason"] else "")


def _by_hand(row: Row) -> bool:
    return any(item["kind"] == "weight" for item in row["overrides"])


def _sent(row: Row) -> str:
    return f"{row['sent']:g}{' by hand' if _by_hand(row) else ''}, {row['share'] * 100:.1f}% of the pool's weight"


def _quantised(row: Row, peers: Iterable[Row]) -> str:
    """Each proxy's own number beside the sum of its pool: alone it says nothing."""
    own: dict[str, int] = row["quantised"]
    sums = {kind: sum(peer["quantised"].get(kind, 0) for peer in peers) for kind in own}
    parts = [f"{kind}: {value} of {sums[kind]}" for kind, value in own.items()]
    return f"{', '.join(parts)}; each kind counts on a scale of its own" if parts else "it gets nothing new"


def _parts(row: Row) -> str:
    return f"room {row['room']:g}, {row['of_peers_speed']:.0%} of its peers' speed, held at {row['held']:.0%}"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value * 100:.1f}% of its capacity"


def _number(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.6g} {unit}"
