"""`lbctl status`, which shows the state of a running `serve`, its proxies and its pools.

It shows the state that `serve` reports. With `--check`, it also verifies that the state matches the files.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import click

from lbctl.api import schema
from lbctl.api.client import ServeClient
from lbctl.base.diagnostics import did_you_mean
from lbctl.base.quantities import QuantityError, parse_duration
from lbctl.cli.command import Command
from lbctl.cli.options import options_of, output_option
from lbctl.cli.output import as_text
from lbctl.cli.rollout import rollouts_of, rollouts_text
from lbctl.cli.server_options import server_options
from lbctl.cli.status import tables
from lbctl.cli.status.check import StatusCheck
from lbctl.cli.status.summary import summary_text
from lbctl.cli.watch import watch as watch_text

option = options_of("status")
T = TypeVar("T")


@click.command(
    "status",
    cls=Command,
    examples="""
    lbctl status
    lbctl status pools --pool llama -o wide
    # In a deployment script:
    lbctl status --check --wait 1m --expect 2
    """,
)
@click.argument("what", required=False, type=click.Choice(["proxies", "pools", "signals", "rollouts", "members"]))
@option(
    "--check",
    is_flag=True,
    help="Exit with 3 unless the files are published, all proxies are in sync and the picker is running.",
)
@option("--wait", metavar="DURATION", help="With --check: wait up to this time for success, for example 1m.")
@option("--expect", metavar="N", type=click.IntRange(0), help="With --check: require at least N proxies in sync.")
@option("--watch", is_flag=True, help="Refresh every two seconds until Ctrl-C.")
@output_option("status", ("table", "wide", "json", "yaml"))
@option("--pool", metavar="NAME", help="With pools or signals: show only this pool.")
@server_options()
def command(
    what: str | None,
    check: bool,
    wait: str | None,
    expect: int | None,
    watch: bool,
    form: str,
    pool: str | None,
    remote: ServeClient,
) -> int:
    """Show the state of serve, its proxies and its pools.

    Without an argument, show a summary. OBSERVED is the share of requests in the last minute, so a drained replica
    keeps a share for up to one minute.

    --check verifies that the files are published, that all proxies have applied them, and that a required picker is
    running. Add --wait to repeat the check until it succeeds, for example after the next reload of a proxy. The exit
    code is 3 if the check fails, and 4 if serve does not respond.
    """
    if pool is not None and what not in ("pools", "signals"):
        raise click.UsageError("--pool requires pools or signals")
    if not check and (wait is not None or expect is not None):
        raise click.UsageError("--wait and --expect require --check")
    if check and watch:
        raise click.UsageError("--watch cannot be combined with --check (use --wait)")
    if watch:
        watch_text(lambda: _text(remote, what, form, pool))
    seconds = _seconds(wait)
    problems = StatusCheck(remote, expect).run(seconds) if check else ()
    click.echo(_text(remote, what, form, pool))
    for problem in problems:
        click.echo(f"lbctl: {problem}", err=True)
    return 3 if problems else 0


def _seconds(wait: str | None) -> float:
    try:
        return 0.0 if wait is None else parse_duration(wait) / 1000
    except QuantityError as error:
        raise click.UsageError(f"--wait: {error} ({error.hint})") from None


def _text(remote: ServeClient, what: str | None, form: str, pool: str | None) -> str:
    """Return the output of the command."""
    if what == "proxies":
        return tables.proxies(remote.get("/api/v1/proxies", schema.Proxies).proxies, form)
    if what == "pools":
        pools = remote.get("/api/v1/pools", schema.Pools).pools
        return tables.pools(_of_pool(remote, pools, [item.name for item in pools], pool), form)
    if what == "signals":
        signals = remote.get("/api/v1/signals", schema.Signals).signals
        return tables.signals(_of_pool(remote, signals, [item.pool for item in signals], pool), form)
    if what == "rollouts":
        return rollouts_text(rollouts_of(remote, None), form)
    if what == "members":
        return tables.members(remote.get("/api/v1/members", schema.Members), form)
    summary = remote.get("/api/v1/status", schema.Status)
    if form in ("json", "yaml"):
        return as_text(summary, form)
    return summary_text(summary, rollouts_of(remote, None))


def _of_pool(remote: ServeClient, rows: Sequence[T], names: Sequence[str], pool: str | None) -> Sequence[T]:
    """Return the rows for the named pool, or all rows. Raises ClickException if the pool does not exist."""
    if pool is None:
        return rows
    selected = [row for row, name in zip(rows, names, strict=True) if name == pool]
    pools = () if selected else [item.name for item in remote.get("/api/v1/pools", schema.Pools).pools]
    if not selected and pool not in pools:
        near = did_you_mean(pool, pools)
        raise click.ClickException(f"unknown pool {pool!r}" + (f" ({near})" if near else ""))
    if not selected:
        click.echo(f"lbctl: pool {pool} has no telemetry", err=True)
    return selected
