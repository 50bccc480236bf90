"""`lbctl simulate`: a load of requests replayed against a pool, for each algorithm of each proxy."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.base.errors import reason_of
from lbctl.cli.command import Command
from lbctl.cli.fleet import load, paths_argument, show
from lbctl.cli.options import options_of, output_option
from lbctl.cli.output import show as show_value
from lbctl.cli.output import table
from lbctl.cli.simulate.options import SimulationOptions, check, synthetic_load
from lbctl.cli.simulate.search import StudyResult, compare, search
from lbctl.cli.simulate.study import Study, studies_of
from lbctl.cli.simulate.text import HEAD, WIDE, row_of, wide_row_of
from lbctl.simulate import compiled, plot
from lbctl.simulate import trace as traces

_option = options_of("simulate")
_TRACE_WARNINGS = ("LB031", "LB033")
_tokens = click.FloatRange(1, 1_000_000)


@click.command(
    "simulate",
    cls=Command,
    examples="""
    lbctl simulate fleet.yaml --trace trace.csv --plot result.svg
    lbctl simulate fleet.yaml --rate 5/s --prompt 900 --answer 130 --duration 10m
    # How many replicas does this load need?
    lbctl simulate fleet.yaml --trace trace.csv \\
        --find replicas --slo 'ttft p99 < 2s, failed < 1%'
    """,
)
@paths_argument
@_option(
    "--trace",
    "trace_file",
    metavar="FILE",
    help="The requests: CSV (seconds) or JSON lines (milliseconds); docs/reference/simulate.md.",
)
@_option("--rate", metavar="R", help="Instead of a trace: Poisson arrivals, as 23.7/s or 90/m.")
@_option("--prompt", type=_tokens, help="With --rate: the mean prompt in tokens.")
@_option("--answer", type=_tokens, help="With --rate: the mean answer in tokens.")
@_option("--duration", metavar="D", help="With --rate: how long they arrive, as 10m.")
@_option("--burst", type=click.FloatRange(1, 10_000), help="With --rate: so many arrive together on average.")
@_option("--against", metavar="PATH", multiple=True, help="Another fleet, to be compared with PATH….")
@_option("--pool", metavar="NAME", help="The pool that gets the requests. Default: the only one.")
@_option("--policy", metavar="PROXY:ALGORITHM,…", help="The rows. Default: every algorithm of the fleet's proxies.")
@_option(
    "--speedup",
    type=click.FloatRange(1e-4, 1e4),
    default=1.0,
    show_default=True,
    help="Multiplies the rate of the load.",
)
@_option("--requests", type=click.IntRange(1), help="Only so many requests of the load.")
@_option("--proxies", type=click.IntRange(1, 1024), default=2, show_default=True, help="Proxies that share the load.")
@_option("--engine", metavar="FILE|KEY=VALUE,…", help="Costs of engines; the strongest: a, b, c, p, sequences, cache.")
@_option(
    "--model", metavar="NAME", help="Engines measured with this model, by GPU: llama-2-70b, llama-3.1-8b, mixtral-8x7b."
)
@_option("--calibrate", metavar="URL", help="Fit the strongest replica's engine to a live one's metrics page.")
@_option("--calibrate-for", metavar="D", default="60s", show_default=True, help="How long that page is watched.")
@_option(
    "--slow", metavar="REPLICA=FACTOR[@SECONDS]", multiple=True, help="Multiplies a replica's speed, from then on."
)
@_option(
    "--kill",
    metavar="REPLICA@SECONDS[-SECONDS]",
    multiple=True,
    help="A replica dies, and comes back where a second time is given.",
)
@_option("--join", metavar="REPLICA@SECONDS", multiple=True, help="A replica joins only then.")
@_option("--lose", metavar="REPLICA|largest|zone=Z", multiple=True, help="These replicas are never there.")
@_option(
    "--telemetry-delay",
    metavar="D",
    default="1s",
    show_default=True,
    help="The time from a sample of the engines to its use.",
)
@_option("--find", type=click.Choice(["rate", "replicas"]), help="The largest rate, or the fewest replicas, for --slo.")
@_option("--slo", metavar="LIMITS", help="For --find: 'ttft p99 < 2s, failed < 1%'.")
@_option("--gpu", metavar="[Nx]TYPE", multiple=True, help="For --find replicas: how many on N GPUs of this type.")
@_option(
    "--price", metavar="TYPE=PRICE", multiple=True, help="The price of one GPU for an hour: what is found has its cost."
)
@_option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The same seed gives the same figures.")
@_option("--plot", "plot_file", metavar="FILE", help="Write a picture of the figures as SVG.")
@output_option("simulate", ("table", "wide", "json", "yaml"))
def command(**values: Any) -> int:
    """Replay a load against a pool of the fleet, for each algorithm as each proxy implements it.

    Engines batch continuously, caches are bounded, replicas may fail, and weights follow the same control loop as in
    `serve`. Nothing is sent anywhere. Figures compare algorithms and fleets; docs/reference/simulate.md says how far
    they can be trusted as such.

    TOKENS/S and BUSY count until the last answer ends, the tail after the last arrival included.

    --against, --slow, --kill, --join, --lose, --gpu and --price may be given several times, and all of them count.
    SECONDS are those since the load began.
    """
    options = SimulationOptions(**values)
    check(options)
    if compiled.FAILURE:
        click.echo(
            f"warning: numba cannot be used, and the simulation is slower without it: {compiled.FAILURE}", err=True
        )
    diagnostics = Diagnostics()
    fleets = [load(paths, diagnostics) for paths in (options.paths, *((path,) for path in options.against))]
    trace = traces.read(options.trace_file, diagnostics) if options.trace_file else synthetic_load(options)
    loaded = [each for each in fleets if each is not None]
    studies = None
    if trace is not None and len(loaded) == len(fleets) and not diagnostics.failed:
        studies = studies_of(options, loaded, trace, diagnostics)
    show(item for item in diagnostics if item.severity == "error" or item.code in _TRACE_WARNINGS)
    if studies is None or diagnostics.failed:
        return 1
    result = search(options, studies) if options.find else compare(options, studies)
    _print(options.form, studies, result)
    is_drawn = not options.plot_file or _plot(options, studies, result)
    return 0 if result.is_found and is_drawn else 1


def _plot(options: SimulationOptions, studies: Sequence[Study], result: StudyResult) -> bool:
    assert options.plot_file is not None
    load = options.trace_file or f"{options.rate}, {options.prompt:g} + {options.answer:g} tokens"
    text = plot.svg(f"{studies[0].pool.name}: {load}", [(item.row, item) for item in result.summaries])
    try:
        Path(options.plot_file).write_text(text, encoding="utf-8")
    except OSError as error:
        show([Diagnostic("LB001", f"the picture cannot be written: {reason_of(error)}", Position(options.plot_file))])
        return False
    return True


def _known(load: float) -> float | None:
    """Return the load; None where all requests arrive at one time, or the one replica of --gpu is lost."""
    return load if 0 < load < math.inf else None


def _print(form: str, studies: Sequence[Study], result: StudyResult) -> None:
    if form in ("json", "yaml"):
        value: dict[str, Any] = {
            "pool": studies[0].pool.name,
            "load": _known(max(result.loads.values())),
            "loads": {name: _known(load) for name, load in result.loads.items() if name},
            "found": {answer.row: answer.value for answer in result.answers},
            "loads_found": {answer.row: answer.load for answer in result.answers},
            "cost_per_hour": {answer.row: answer.cost for answer in result.answers if answer.cost is not None},
            "policies": [asdict(item) for item in result.summaries],
            "summary": [sentence for sentence in result.sentences if sentence],
        }
        show_value(json.loads(json.dumps(value)), form)
        return
    is_wide = form == "wide"
    table(WIDE if is_wide else HEAD, [(wide_row_of if is_wide else row_of)(item) for item in result.summaries])
    for sentence in filter(None, result.sentences):
        click.echo(sentence)
