"""The `lbctl status` summary, with the published fleet, its files, and all irregularities."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lbctl.api import schema
from lbctl.base.printable import plain
from lbctl.cli.output import age
from lbctl.cli.rollout import place_of
from lbctl.cli.terminal import paint, wrapped
from lbctl.control.fitness import FIT

_SHORT = 12
"""Number of digits shown for a digest or commit."""
_ORIGINS = {"state": ", the last valid one from the state", "history": ", an earlier one after a rollback"}
_NAME = 11
"""Width of the label column."""


def summary_text(summary: schema.Status, rollouts: Sequence[schema.Rollout]) -> str:
    """Return the problems, the summary with a line for each rollout, and the errors and warnings in the files."""
    pairs = (*_lines(summary), *(("rollout", f"{row.route}: {place_of(row)}") for row in rollouts))
    lines = [_problem(item) for item in summary.problems]
    lines += [f"{name:<{_NAME - 1}} {wrapped(plain(text), _NAME)}" for name, text in pairs]
    serious = [item for item in summary.fleet.diagnostics if item.severity in ("error", "warning")]
    unique = dict.fromkeys((item.text, item.severity) for item in (*serious, *summary.fleet.shrink))
    colours = {"error": "red", "warning": "yellow"}
    lines += [paint(f"  {wrapped(plain(text), 4)}", colours.get(severity)) for text, severity in unique]
    return "\n".join(lines)


def _problem(item: schema.Problem) -> str:
    """Return the line about a problem, with the recommended command."""
    colour, name = ("red", "PROBLEM") if item.severity == "critical" else ("yellow", "warning")
    return paint(f"{name:<{_NAME - 1}} {wrapped(plain(f'{item.text}; run: {item.command}'), _NAME)}", colour)


def _lines(summary: schema.Status) -> Iterator[tuple[str, str]]:
    """Yield the label and text of each line."""
    fleet, listens = summary.fleet, summary.listens
    mode = " (dry run: nothing is published)" if summary.dry_run else ""
    yield "lbctl", f"{summary.version}, since {summary.since}{mode}"
    yield "xds", listens.xds or "-"
    yield "socket", listens.xds_socket or "-"
    yield "api", listens.api or "-"
    yield "state", listens.state or "-"
    if summary.member is not None:
        yield "member", _member(summary.member)
    if summary.picker is not None:
        yield "picker", _picker(summary.picker)
    yield "snapshot", _snapshot(summary.snapshot) if summary.snapshot else f"none: {summary.waiting}"
    if summary.served is not None:
        yield "serves", _served(summary.served)
    yield "files", _files(fleet)
    if summary.served is not None and summary.served.rollback is not None:
        yield "rollback", _rollback(summary.served, summary.served.rollback)
    if summary.replicas.total:
        yield "replicas", _replicas(summary.replicas)
    yield "proxies", ", ".join(f"{count} {state}" for state, count in summary.proxies.items()) or "none"
    yield from _details(summary)


def _replicas(row: schema.ReplicaCounts) -> str:
    """Describe how many replicas are available, and which are not."""
    fit = sum(count for state, count in row.states.items() if state in FIT)
    parts = [f"{fit} of {row.total} in"]
    for state, names in row.away.items():
        count = row.states[state]
        more = f" and {count - len(names)} more" if count > len(names) else ""
        parts.append(f"{count} {state}: {', '.join(names)}{more}")
    return ", ".join(parts)


def _member(row: schema.MemberStatus) -> str:
    """Describe this member by its name and role and, for a follower, by the leader and the age of its information."""
    if row.role != "follower":
        return f"{row.name}, {row.role}"
    leads = f"the leader is {row.leader}" if row.leader else "there is no leader"
    shown = "the last stored state" if row.age is None else f"at most {row.age:.1f} s old"
    return f"{row.name}, {row.role}: {leads}; this view is {shown}"


def _picker(row: schema.PickerStatus) -> str:
    if not row.running:
        return f"{row.listens}: NOT running: {row.reason or 'it is starting'}; the proxies fall back to `otherwise`"
    starts = f", started {row.starts} times" if row.starts > 1 else ""
    alone = ", a separate `lbctl picker`" if row.alone else ""
    unsaved = f"; it cannot save its memory: {row.unsaved}" if row.unsaved else ""
    return f"{row.listens}{alone}, since {row.since}{starts}, {_count(row.open, 'picked request')} in flight{unsaved}"


def _served(row: schema.ServedFiles) -> str:
    """Describe the published files by their digest, and by their commit if it is known."""
    commit = f"commit {row.commit[:_SHORT]}{' with changes' if row.dirty else ''}, " if row.commit else ""
    return f"{commit}digest {row.digest[:_SHORT]}, since {row.since}"


def _rollback(served: schema.ServedFiles, row: schema.Rollback) -> str:
    reason = f": {row.reason}" if row.reason else ""
    return (
        f"{served.digest[:_SHORT]} has been published since {row.since}, by {row.author}{reason}; the files "
        f"({row.ignored[:_SHORT]}) are ignored until they change"
    )


def _details(summary: schema.Status) -> Iterator[tuple[str, str]]:
    """Yield the lines about irregularities."""
    if summary.restart:
        yield "restart", f"takes effect after a restart: {', '.join(summary.restart)}"
    if summary.sources.total:
        yield "sources", _sources(summary.sources)
    for item in summary.control:
        if item.mode != "acting":
            yield "control", f"{item.pool}: {item.mode}, {item.reason}"
        for label, replicas in (("out", item.out), ("floor", item.floor)):
            yield from ((label, f"{item.pool}/{name}: {'; '.join(reasons)}") for name, reasons in replicas.items())
    yield from (("override", _override(item)) for item in summary.overrides)
    yield from (("unmatched", f"{item.node}: {item.reason}") for item in summary.unmatched)
    yield from (("name", f"{item.name}: {item.error}") for item in summary.names if item.error)


def _sources(row: schema.SourceCounts) -> str:
    pools = ", ".join(f"{count} of {pool}" for pool, count in row.pools.items())
    return f"{row.failing} of {row.total} failing" + (f": {pools} (lbctl status signals)" if pools else "")


def _override(item: schema.Override) -> str:
    about = "/".join(filter(None, (item.route, item.pool, item.replica)))
    value = f" {item.value:g}" if item.value is not None else ""
    value += "".join(f" {pool}={share}" for pool, share in item.shares.items())
    until = f", until {item.until}" if item.until else ""
    author = f", by {item.author}" if item.author else ""
    return f"{item.kind} {about}{value}{until}{author}" + (f": {item.reason}" if item.reason else "")


def _snapshot(row: schema.Snapshot) -> str:
    origin = _ORIGINS.get(row.origin, "")
    size = f"{_count(row.pools, 'pool')}, {_count(row.replicas, 'replica')}"
    return f"{row.version}, {age(row.age)} old, {size}{origin}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _files(fleet: schema.FleetFiles) -> str:
    names = ", ".join(fleet.paths)
    if fleet.read is None:
        return f"{names}: being read"
    if fleet.valid:
        count = sum(item.severity == "warning" for item in fleet.diagnostics)
        return f"{names}: served" + (f", {_count(count, 'warning')}" if count else "")
    return f"{names}: NOT served: {fleet.refused or 'they have errors'}"
