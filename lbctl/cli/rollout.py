"""`lbctl rollout`, which shows the progress and evidence of rollouts and controls their steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from lbctl.api import schema
from lbctl.api.client import ApiError, ServeClient
from lbctl.base.printable import plain
from lbctl.cli.command import Group
from lbctl.cli.options import options_of, output_option
from lbctl.cli.output import as_text, table_text
from lbctl.cli.overrides import AWAY, WAIT_HELP, await_proxies, warn
from lbctl.cli.server_options import server_options

_PATH = "/api/v1/rollouts"
_DEGRADED = 3
_LOOK_INTERVAL = 0.5
"""Seconds between polls of `--wait`."""
_SHOWN = 5
"""Number of evaluations shown per rollout."""
_EVALUATIONS = ("ROUTE", "AT", "STEP", "VERDICT", "NEW", "OLD", "METRICS", "WHY")
_HEAD = ("ROUTE", "TO", "MODE", "PHASE", "STEP", "SHARE", "OBSERVED", "SINCE", "NEXT", "SPLIT", "REASON")
_Command = Callable[..., int]


@click.group("rollout", cls=Group)
def command() -> None:
    """Shift a route's traffic to one pool in steps.

    `abort` takes precedence over all other operations.
    """


@command.command("status", examples="lbctl rollout status chat --wait")
@click.argument("route", required=False)
@output_option("rollout")
@options_of("rollout")(
    "--wait", is_flag=True, help="With ROUTE: report each step on standard error until the rollout ends."
)
@server_options()
def status(route: str | None, form: str, wait: bool, remote: ServeClient) -> int:
    """Show rollouts with their analysis.

    For each rollout, show the phase, the step, the current split, and the last evaluations.
    """
    if wait and route is None:
        raise click.UsageError("--wait needs a ROUTE")
    code = _await_end(remote, rollouts_of(remote, route)[0]) if wait else 0
    click.echo(rollouts_text(rollouts_of(remote, route), form))
    return code


def _percent(ctx: click.Context, param: click.Parameter, value: str) -> float:
    """Parse a percentage such as `30` or `30%`. Raises BadParameter."""
    try:
        number = float(value.removesuffix("%"))
    except ValueError:
        number = math.nan
    if not 0 <= number <= 100:
        raise click.BadParameter(f"{value!r} is not a percentage from 0 to 100, for example 30 or 30%", ctx, param)
    return number


def _options(*, wait: str) -> Callable[[_Command], _Command]:
    option = options_of("rollout")

    def decorate(function: _Command) -> _Command:
        function = server_options(writes=True)(function)
        function = option("--reason", metavar="TEXT", help="Reason, shown in status and audit log.")(function)
        function = option("--wait", is_flag=True, help=wait)(function)
        return click.argument("route")(function)

    return decorate


_TO_ITS_END = (
    "Wait until an automatic rollout ends, or until all connected proxies have applied a manual step. "
    "Exit with 3 if the rollout is not promoted, or on timeout."
)


def _allow_unavailable(function: _Command) -> _Command:
    text = "Move requests to the pool even if none of its replicas is available; recorded in the audit log."
    return options_of("rollout")("--allow-unavailable", is_flag=True, help=text)(function)


@command.command("start", examples="lbctl rollout start chat --wait")
@_options(wait=_TO_ITS_END)
@_allow_unavailable
def start(route: str, wait: bool, **more: Any) -> int:
    """Start a rollout, or restart a rollout that has ended."""
    return _act(route, "start", wait, **more)


@command.command("promote", examples="lbctl rollout promote chat")
@_options(wait=_TO_ITS_END)
@_allow_unavailable
def promote(route: str, wait: bool, **more: Any) -> int:
    """Promote a rollout to the next step now."""
    return _act(route, "promote", wait, **more)


@command.command(
    "pause",
    examples="""
    lbctl rollout pause chat --reason "error rate"
    """,
)
@_options(wait=WAIT_HELP)
def pause(route: str, wait: bool, **more: Any) -> int:
    """Pause a rollout at its current share."""
    return _act(route, "pause", wait, **more)


@command.command("resume", examples="lbctl rollout resume chat")
@_options(wait=_TO_ITS_END)
@_allow_unavailable
def resume(route: str, wait: bool, **more: Any) -> int:
    """Resume a paused rollout.

    The hold time of the current step continues from where it was paused.
    """
    return _act(route, "resume", wait, **more)


@command.command("abort", examples="lbctl rollout abort chat --wait")
@_options(wait=WAIT_HELP)
def abort(route: str, wait: bool, **more: Any) -> int:
    """Abort a rollout and restore the split in the files.

    You can abort a rollout at any step, and after the last one.
    """
    return _act(route, "abort", wait, **more)


@command.command("set", examples="lbctl rollout set chat 25%")
@_options(wait=WAIT_HELP)
@_allow_unavailable
@click.argument("percent", callback=_percent)
def set_(route: str, percent: float, wait: bool, **more: Any) -> int:
    """Set the share of the new pool, and pause the rollout.

    PERCENT is the new share. Use `resume` or `promote` to continue the rollout.
    """
    return _act(route, "set", wait, percent=percent, **more)


def _act(
    route: str, action: schema.RolloutAction, wait: bool, reason: str | None, remote: ServeClient,
    percent: float | None = None, allow_unavailable: bool = False,
) -> int:  # fmt: skip
    request = schema.RolloutRequest(route, action, percent, reason, allow_unavailable or None)
    answer = remote.post(_PATH, request, schema.RolloutResult)
    row = answer.rollout
    click.echo(f"lbctl: {_sentence(row)}", err=True)
    warn(answer.warnings)
    if not wait:
        return 0
    if action in ("pause", "set", "abort"):
        return await_proxies(remote)
    return _await_end(remote, row)


def _await_end(remote: ServeClient, row: schema.Rollout) -> int:
    """Report every step and its evidence until the rollout ends, or until an operator must continue it."""
    reported = _last(row)
    while _moves_by_itself(row):
        time.sleep(_LOOK_INTERVAL)
        latest = _look(remote, row.route)
        reported = _report(row, latest, reported)
        row = latest
    if row.phase in ("aborted", "rolled_back", "superseded") or (row.phase == "paused" and row.mode != "manual"):
        return _DEGRADED
    return await_proxies(remote)


def _moves_by_itself(row: schema.Rollout) -> bool:
    if row.phase == "waiting":
        return row.mode != "manual"
    return row.phase == "progressing" and (row.next_at is not None or row.hold_waits_for is not None)


def _look(remote: ServeClient, route: str) -> schema.Rollout:
    """Return the rollout. If `serve` restarts, wait until it is available again.

    Raises ApiError or ClickException on timeout.
    """
    deadline = time.monotonic() + AWAY
    while True:
        try:
            (row,) = rollouts_of(remote, route)
            return row
        except (ApiError, click.ClickException):
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_INTERVAL)


def _report(
    before: schema.Rollout, after: schema.Rollout, reported: schema.RolloutEvaluation | None
) -> schema.RolloutEvaluation | None:
    """Print the changes, and return the last printed evaluation.

    An evaluation is printed if its verdict has changed or the step has ended, but never more than once. If an
    evaluation is inconclusive, the missing evidence is listed.
    """
    moved = (after.phase, after.step, after.percent) != (before.phase, before.step, before.percent)
    last = _last(after)
    if last is not None and last != reported and (moved or reported is None or last.verdict != reported.verdict):
        click.echo(f"lbctl: step {last.step} is {_evidence(last)}", err=True)
        reported = last
    if moved:
        click.echo(f"lbctl: {_sentence(after)}", err=True)
    return reported


def _last(row: schema.Rollout) -> schema.RolloutEvaluation | None:
    return row.analysis.evaluations[-1] if row.analysis and row.analysis.evaluations else None


def _evidence(item: schema.RolloutEvaluation) -> str:
    reason = f", {item.reason}" if item.reason else ""
    metrics = f"; {_metrics(item)}" if item.metrics else ""
    return f"{item.verdict}{reason}: new {_counts(item.new)}, old {_counts(item.old)}{metrics}"


def rollouts_of(remote: ServeClient, route: str | None) -> tuple[schema.Rollout, ...]:
    """Return all of the running `serve`'s rollouts, or one route's rollout.

    Raises ClickException if the route has no rollout.
    """
    rows = remote.get(_PATH, schema.Rollouts).rollouts
    selected = tuple(row for row in rows if route in (None, row.route))
    if route is not None and not selected:
        names = ", ".join(row.route for row in rows) or "none"
        raise click.ClickException(f"route {route!r} has no rollout; routes with a rollout: {names}")
    return selected


def rollouts_text(rows: tuple[schema.Rollout, ...], form: str) -> str:
    """Format rollouts as tables with their last evaluations, or as JSON or YAML."""
    if form in ("json", "yaml"):
        return as_text(rows, form)
    waiting = [
        f"{row.route} is waiting for: {row.analysis.waits_for}"
        for row in rows
        if row.analysis and row.analysis.waits_for
    ]
    held = [
        f"{row.route}: the split is overridden by {row.held_by}; `lbctl split unset {row.route}` restores "
        "the split of the rollout"
        for row in rows
        if row.held_by
    ]
    still = [
        f"{row.route}: the hold time of step {row.step} is paused and waits for {row.hold_waits_for}"
        for row in rows
        if row.hold_waits_for
    ]
    unavailable = [f"{row.route} waits: {row.unavailable}" for row in rows if row.unavailable]
    evaluations = [(row, item) for row in rows if row.analysis for item in row.analysis.evaluations[-_SHOWN:]]
    table = table_text(_EVALUATIONS, (_evaluation_cells(row, item) for row, item in evaluations))
    rest = ["", table] if evaluations else []
    return "\n".join(
        [table_text(_HEAD, map(_cells, rows)), *map(plain, (*unavailable, *held, *still, *waiting)), *rest]
    )


def _evaluation_cells(row: schema.Rollout, item: schema.RolloutEvaluation) -> tuple[str, ...]:
    sides = (_counts(item.new), _counts(item.old))
    return (row.route, item.at, str(item.step), item.verdict, *sides, _metrics(item) or "-", item.reason or "")


def _counts(counts: schema.RolloutCounts) -> str:
    rate = "" if counts.rate is None else f" ({100 * counts.rate:.2f} %)"
    return f"{counts.errors} of {counts.requests}{rate}"


def _metrics(item: schema.RolloutEvaluation) -> str:
    return "; ".join(f"{metric.name} {_number(metric.new)} against {_number(metric.old)}" for metric in item.metrics)


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4g}"


def _cells(row: schema.Rollout) -> tuple[str, ...]:
    share = "-" if row.percent is None else f"{row.percent:g} %"
    step = f"{row.step} of {len(row.steps)}" if row.percent is not None else "-"
    observed = "-" if row.observed is None else f"{row.observed * 100:.1f} %"
    place = (row.route, row.to, row.mode, row.phase, step, share, observed)
    return (*place, row.since or "-", row.next_at or "-", split_of(row), row.reason or "")


def split_of(row: schema.Rollout) -> str:
    """Format a split as in a fleet file."""
    return "{" + ", ".join(f"{pool}: {share}" for pool, share in row.split.items()) + "}"


def _sentence(row: schema.Rollout) -> str:
    return f"the rollout of {row.route} is {place_of(row)}"


def place_of(row: schema.Rollout) -> str:
    """Describe the rollout's progress, beginning with its phase."""
    return ", ".join(_clauses(row))


def _clauses(row: schema.Rollout) -> Iterator[str]:
    yield row.phase
    if row.percent is None:
        reason = row.reason or row.unavailable
        yield f"the split in the files applies: {split_of(row)}" + (f": {reason}" if reason else "")
        return
    yield f"step {row.step} of {len(row.steps)}: {row.to} has {row.percent:g} %"
    if row.phase == "promoted":
        yield f"add to the file: split: {split_of(row)}"
    elif row.phase == "paused" and row.reason:
        yield f"until it is resumed or promoted: {row.reason}"
    elif row.next_at is not None:
        yield f"until {row.next_at}" + (" or later" if row.analysis else "")
    elif row.hold_waits_for:
        yield f"its hold time waits for {row.hold_waits_for}"
    else:
        yield "until `lbctl rollout promote`" if row.phase == "progressing" else "until it is resumed or promoted"
