"""`lbctl simulate`: a trace of requests replayed against a pool, for each algorithm of each proxy."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.base.errors import reason_of
from lbctl.cli.api_client import show as show_value
from lbctl.cli.api_client import table
from lbctl.cli.fleet import load, paths_argument, show
from lbctl.cli.options import options_of
from lbctl.cli.simulate_search import StudyResult, compare, search
from lbctl.cli.simulate_study import SimulationOptions, Study, study_of
from lbctl.cli.simulate_text import HEAD, row_of
from lbctl.simulate import plot
from lbctl.simulate import trace as traces

_option = options_of("simulate")


@click.command("simulate")
@paths_argument
@_option("--trace", "trace_file", metavar="FILE", required=True, help="Requests: CSV or JSON lines; docs/simulate.md.")
@_option("--pool", metavar="NAME", help="The pool that gets them. Default: the only one.")
@_option("--policy", metavar="PROXY:ALGORITHM,…", help="Default: every algorithm of the fleet's proxies.")
@_option("--speedup", type=click.FloatRange(1e-4, 1e4), default=1.0, show_default=True, help="Times the trace's rate.")
@_option("--requests", type=click.IntRange(1), help="Only so many requests of the trace.")
@_option("--proxies", type=click.IntRange(1, 1024), default=2, show_default=True, help="Proxies that share the load.")
@_option("--engine", metavar="KEY=VALUE,…", help="Costs of the strongest replica: a, b, c, p, sequences, cache.")
@_option("--slow", metavar="REPLICA=FACTOR[@SECONDS]", multiple=True, help="A replica's real speed, from then on.")
@_option("--lose", metavar="REPLICA|largest|zone=Z", help="Without these replicas.")
@_option("--find", type=click.Choice(["rate", "replicas"]), help="The largest rate, or the fewest replicas, for --slo.")
@_option("--slo", metavar="LIMITS", help="For --find: 'ttft p99 < 2s, failed < 1%'.")
@_option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The same seed gives the same figures.")
@_option("--plot", "plot_file", metavar="FILE", help="Write the times to the first token as an SVG picture.")
@_option(
    "-o", "output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True, help="The form."
)
def command(**values: Any) -> int:
    """Replay a trace against a pool of the fleet, for each algorithm as each proxy implements it.

    Engines batch continuously, caches are bounded, and weights follow the same control loop as in `serve`. Nothing is
    sent anywhere. Figures compare algorithms and fleets; docs/simulate.md says how far they can be trusted as such.
    """
    options = SimulationOptions(**values)
    diagnostics = Diagnostics()
    loaded = load(options.paths, diagnostics)
    trace = traces.read(options.trace_file, diagnostics)
    show(item for item in diagnostics if item.severity == "error" or item.code == "LB031")
    if loaded is None or trace is None or diagnostics.failed:
        return 1
    study = study_of(options, loaded.compiled.topology, trace)
    result = search(options, study) if options.find else compare(study)
    if options.plot_file:
        text = plot.svg(f"{study.pool.name}: {options.trace_file}", [(item.policy, item) for item in result.summaries])
        try:
            Path(options.plot_file).write_text(text, encoding="utf-8")
        except OSError as error:
            show(
                [Diagnostic("LB001", f"the picture cannot be written: {reason_of(error)}", Position(options.plot_file))]
            )
            return 1
    _print(options.output, study, result)
    return 0 if result.is_found else 1


def _print(form: str, study: Study, result: StudyResult) -> None:
    if form != "table":
        rows = [asdict(item) for item in result.summaries]
        value = {"pool": study.pool.name, "load": result.load, "found": dict(result.answers), "policies": rows}
        show_value(json.loads(json.dumps(value)), form)
        return
    table(HEAD, [row_of(item) for item in result.summaries])
    for sentence in filter(None, result.sentences):
        click.echo(sentence)
