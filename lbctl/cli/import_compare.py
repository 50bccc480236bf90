"""`lbctl import --compare`, which prints a table of the results, with each request's route in the fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from lbctl.base.diagnostics import Diagnostic, Diagnostics
from lbctl.cli.proxy import unnamed
from lbctl.importer.compare.differences import ObservedRequest
from lbctl.importer.compare.processes import NotStartedError
from lbctl.importer.compare.run import ComparedRequest, MissingProxyError, compare
from lbctl.importer.compare.sandbox.confined import MAX_SECONDS, SandboxUnavailableError, TooSlowError
from lbctl.importer.compare.sources.removed import Removed
from lbctl.importer.draft import printable
from lbctl.importer.run import Imported
from lbctl.model.fleet import parse
from lbctl.model.load import SourceText
from lbctl.targets.load import complete
from lbctl.targets.reading import Message
from lbctl.targets.route_trace import explain


def report(
    kind: str, files: Sequence[str], imported: Imported, diagnostics: Diagnostics, *, allow_unsandboxed: bool
) -> int:
    """Print the table to standard error, and return the exit code (0 if requests were compared and all agree)."""
    try:
        compared = compare(kind, files, imported.draft, allow_unsandboxed=allow_unsandboxed)
    except MissingProxyError as error:
        click.echo(f"lbctl: {error}", err=True)
        return 4
    except SandboxUnavailableError as error:
        click.echo(f"lbctl: --compare cannot sandbox the proxies on this system: {error}", err=True)
        click.echo("lbctl: if you trust the configuration, add --allow-unsandboxed", err=True)
        return 4
    except TooSlowError:
        message, hint = f"the comparison did not end within {MAX_SECONDS:.0f} s", "import fewer routes at a time"
        diagnostics.add(Diagnostic("LB987", message, hint=hint))
        return 1
    except NotStartedError as error:
        diagnostics.add(Diagnostic("LB987", f"a proxy did not start on loopback: {error}"))
        return 1
    rows = compared.rows
    routes = _explained(kind, imported, rows)
    for line in (*table(rows, routes), *removed(compared.removed)):
        click.echo(line, err=True)
    for row in rows:
        if row.differences:
            origin = imported.draft.origins.get(("routes", row.sample.route))
            message = f"{row.sample.label}: {'; '.join(row.differences)}"
            path = ("routes", row.sample.route) if row.sample.route else ()
            diagnostics.add(Diagnostic("LB986", message, origin.position if origin else None, path))
    if all(row.skipped for row in rows):
        diagnostics.add(Diagnostic("LB987", "no request was compared", hint="see the table for the reasons"))
        return 1
    return 1 if any(row.differences for row in rows) else 0


def _explained(kind: str, imported: Imported, rows: Sequence[ComparedRequest]) -> list[str]:
    """Return the route that each request takes in the fleet, as in `lbctl explain route`."""
    source = parse([SourceText("import", imported.text.encode(), ".")], diagnostics := Diagnostics())
    own = {str(Path(name)): text.encode() for name, text in imported.own.items()}
    loaded = complete(replace(source, target_contents=own), diagnostics) if source is not None else None
    if loaded is None:
        return ["" for _ in rows]
    topology = loaded.compiled.topology
    listeners = {item.name: item for item in topology.listeners}
    version = unnamed(topology, kind).version
    routes = []
    for sample in (row.sample for row in rows):
        headers = tuple({"host": sample.host, **sample.headers}.items())
        path, _, query = sample.path.partition("?")
        message = Message(sample.method, sample.host, path, headers, sample.body.encode(), query)
        winner = explain(listeners[sample.listener], message, kind, version).winner
        routes.append(winner.route if winner is not None else "none")
    return routes


def table(rows: Sequence[ComparedRequest], routes: Sequence[str]) -> list[str]:
    """Return the table as lines, with the route, responses and differences of each request."""
    cells = [("request", "route", "before", "after", "")]
    cells += [(row.sample.label, route, *_answers(row), _verdict(row)) for row, route in zip(rows, routes, strict=True)]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = ["  ".join((*map(str.ljust, line[:4], widths), line[4])).rstrip() for line in cells]
    compared = [row for row in rows if not row.skipped]
    agree = sum(not row.differences for row in compared)
    return [
        *lines,
        f"{agree} of {len(compared)} compared requests agree, {len(rows) - len(compared)} were not compared",
    ]


def removed(items: Sequence[Removed]) -> list[str]:
    """Describe the directives that cause a route to be closed, and those left out of the comparison, by reason."""
    left_out: dict[str, dict[str, None]] = {}
    for item in items:
        if not item.closes:
            left_out.setdefault(item.reason, {})[printable(item.name)] = None
    named = {reason: ", ".join(filter(None, names)) for reason, names in left_out.items()}
    subjects = "; ".join(f"{reason} ({names})" if names else reason for reason, names in named.items())
    closing = dict.fromkeys(item.text for item in items if item.closes)
    return [
        *([f"not included in the comparison: {subjects}"] if subjects else []),
        *(f"closed in the comparison: {each}" for each in closing),
    ]


def _answers(row: ComparedRequest) -> tuple[str, str]:
    return ("", "") if row.skipped and not row.before.status else (_answer(row.before), _answer(row.after))


def _answer(observed: ObservedRequest) -> str:
    return f"{observed.status or 'no answer'}" + (f" {observed.replica}" if observed.replica else "")


def _verdict(row: ComparedRequest) -> str:
    return row.skipped or "; ".join(row.differences) or "agrees"
