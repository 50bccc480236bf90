"""`lbctl simulate`, which replays a load of requests against a pool, for each algorithm of each proxy."""

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
from lbctl.cli.simulate.text import HEAD, QUEUE_HEAD, WIDE, queue_rows, row_of, wide_row_of
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
    help="Request trace as CSV (times in seconds) or JSON lines (times in milliseconds). See "
    "docs/reference/simulate.md.",
)
@_option("--rate", metavar="RATE", help="Generate Poisson arrivals instead of a trace, for example 23.7/s or 90/m.")
@_option("--prompt", type=_tokens, help="With --rate: mean prompt length in tokens.")
@_option("--answer", type=_tokens, help="With --rate: mean answer length in tokens.")
@_option("--duration", metavar="DURATION", help="With --rate: duration of the load, for example 10m.")
@_option("--burst", type=click.FloatRange(1, 10_000), help="With --rate: mean number of requests that arrive together.")
@_option(
    "--tenant",
    metavar="NAME=SHARE[:PRIORITY]",
    multiple=True,
    help="With --rate: share of the requests that a tenant sends, and their priority (high, normal or low), for a pool "
    "with a queue.",
)
@_option("--against", metavar="PATH", multiple=True, help="Another fleet to compare with PATH….")
@_option("--pool", metavar="NAME", help="Pool that receives the requests (default: the only pool).")
@_option(
    "--policy",
    metavar="PROXY:ALGORITHM,…",
    help="Algorithms to compare (default: all algorithms of the fleet's proxies).",
)
@_option(
    "--speedup",
    type=click.FloatRange(1e-4, 1e4),
    default=1.0,
    show_default=True,
    help="Multiply the request rate by this factor.",
)
@_option("--requests", type=click.IntRange(1), help="Maximum number of requests.")
@_option(
    "--proxies",
    type=click.IntRange(1, 1024),
    default=2,
    show_default=True,
    help="Number of proxies that share the load.",
)
@_option(
    "--engine",
    metavar="FILE|KEY=VALUE,…",
    help="Cost model of the engines: a file, or values for the strongest replica (a, b, c, p, sequences, cache).",
)
@_option(
    "--model",
    metavar="NAME",
    help="Model whose measured speed on each GPU is used: llama-2-70b, llama-3.1-8b or mixtral-8x7b.",
)
@_option(
    "--calibrate", metavar="URL", help="Fit the strongest replica's cost model to the metrics of a running engine."
)
@_option(
    "--calibrate-for",
    metavar="DURATION",
    default="60s",
    show_default=True,
    help="With --calibrate: how long to observe the metrics.",
)
@_option(
    "--slow",
    metavar="REPLICA=FACTOR[@SECONDS]",
    multiple=True,
    help="Multiply the speed of a replica by FACTOR, starting at SECONDS.",
)
@_option(
    "--kill",
    metavar="REPLICA@SECONDS[-SECONDS]",
    multiple=True,
    help="Stop a replica at the first time, and restart it at the second time, if given.",
)
@_option("--join", metavar="REPLICA@SECONDS", multiple=True, help="Add a replica at this time.")
@_option(
    "--lose", metavar="REPLICA|largest|zone=Z", multiple=True, help="Run the whole simulation without these replicas."
)
@_option(
    "--telemetry-delay",
    metavar="DURATION",
    default="1s",
    show_default=True,
    help="Delay between an engine sample and its use.",
)
@_option(
    "--find",
    type=click.Choice(["rate", "replicas"]),
    help="Find the highest rate, or the fewest replicas, that meet --slo.",
)
@_option("--slo", metavar="LIMITS", help="With --find: limits, for example 'ttft p99 < 2s, failed < 1%'.")
@_option(
    "--gpu", metavar="[Nx]TYPE", multiple=True, help="With --find replicas: simulate replicas with N GPUs of this type."
)
@_option(
    "--price",
    metavar="TYPE=PRICE",
    multiple=True,
    help="Price of one GPU per hour; adds the cost to the result of --find.",
)
@_option(
    "--seed",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Random seed; the same seed gives the same results.",
)
@_option("--plot", "plot_file", metavar="FILE", help="Write a chart of the results as SVG.")
@output_option("simulate", ("table", "wide", "json", "yaml"))
def command(**values: Any) -> int:
    """Simulate how a pool handles a request trace.

    lbctl replays the load once for each algorithm, as implemented by each proxy. The simulated engines use continuous
    batching and bounded caches. Replicas can fail, and weights follow serve's control loop. lbctl does not send
    requests to the replicas. Use the results to compare algorithms and fleets; docs/reference/simulate.md describes
    their accuracy.

    TOKENS/S and BUSY cover the time until the last response ends, including the tail after the last arrival.

    --tenant, --against, --slow, --kill, --join, --lose, --gpu and --price can be repeated. SECONDS are measured
    from the beginning of the load.
    """
    options = SimulationOptions(**values)
    check(options)
    if compiled.FAILURE:
        click.echo(f"warning: numba is not available, so the simulation is slower: {compiled.FAILURE}", err=True)
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
        show([Diagnostic("LB001", f"the chart cannot be written: {reason_of(error)}", Position(options.plot_file))])
        return False
    return True


def _known(load: float) -> float | None:
    """Return the load, or None if it is undefined.

    The load is undefined if all requests arrive at the same time, or if the only --gpu replica is lost.
    """
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
    if rows := [row for item in result.summaries for row in queue_rows(item)]:
        table(QUEUE_HEAD, rows)
    for sentence in filter(None, result.sentences):
        click.echo(sentence)
