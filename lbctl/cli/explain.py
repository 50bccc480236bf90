"""`lbctl explain`: why something is as it is.

`weight`: from a replica's signals to what the proxies were told; `route`: from a request to its route and pool."""

from __future__ import annotations

from collections.abc import Iterator
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
@server_options("explain_weight")
def weight(replica: str, form: str, server: str, token_file: str | None, tls_ca: str | None) -> int:
    """Why a replica has its weight: every number on the way from its signals to the proxies, with ages."""
    pool, name = place(replica)
    rows: list[Row] = Server(server, token_file, tls_ca).get("/api/v1/decisions")["decisions"]
    found = next((row for row in rows if (row["pool"], row["replica"]) == (pool, name)), None)
    if found is None:
        near = did_you_mean(replica, [f"{row['pool']}/{row['replica']}" for row in rows])
        hint = f"; {near}" if near else "; a pool without telemetry runs on its capacities"
        click.echo(f"lbctl: nothing is decided about {replica}{hint}", err=True)
        return 1
    if form != "table":
        show(found, form)
        return 0
    for label, text in _lines(found):
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


def _lines(row: Row) -> Iterator[tuple[str, str]]:
    yield "replica", f"{row['pool']}/{row['replica']}, capacity {row['capacity']:g}"
    yield "strategy", f"{row['strategy']}, {row['mode']}" + (f": {row['mode_words']}" if row["mode_words"] else "")
    for name, item in row["signals"].items():
        yield "signal", f"{name} = {item['value']:.6g} {item['unit']}, {age(item['age'])} old"
    if not row["signals"]:
        yield "signal", "none has ever been read"
    yield "evidence", f"{age(row['evidence_age'])} old" if row["evidence_age"] is not None else "none"
    yield "speed", _number(row["speed"], "per capacity")
    yield "normalised", f"{row['normalised']:+.3f} against its peers, {row['across_types']:+.3f} for its GPU type (ln)"
    yield "wished", _percent(row["wished"])
    yield "clamped", _percent(row["clamped"])
    yield "damped", f"{_percent(row['damped'])}, beyond the deadband {_percent(row['beyond_deadband'])}"
    yield "decided", f"{row['decided']:g}"
    for item in row["overrides"]:
        value = f" {item['value']:g}" if item["value"] is not None else ""
        until = f", until {item['until']}" if item["until"] else ""
        yield "by hand", f"{item['kind']}{value}{until}" + (f": {item['reason']}" if item["reason"] else "")
    yield "sent", f"{row['sent']:g}, {row['share'] * 100:.1f}% of the pool's weight"
    yield "of which", _parts(row)
    yield (
        "quantised",
        ", ".join(f"{kind}: {value}" for kind, value in row["quantised"].items()) or "it gets nothing new",
    )
    told = row["acknowledged"]
    waiting = f"; not yet: {', '.join(told['waiting'])}" if told["waiting"] else ""
    yield "acknowledged", f"by {told['have_it']} of {told['proxies']} proxies{waiting}"
    yield "health", row["verdict"] + (f": {'; '.join(row['words'])}" if row["words"] else "")


def _parts(row: Row) -> str:
    return f"room {row['room']:g}, {row['of_peers_speed']:.0%} of its peers' speed, held at {row['held']:.0%}"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{value * 100:.1f}% of its capacity"


def _number(value: float | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:.6g} {unit}"
