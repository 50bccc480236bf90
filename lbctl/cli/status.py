"""`lbctl status`: what a running `serve` does, what each proxy has of it, and how the pools stand.

It shows what `serve` knows and judges nothing itself, but for `--check`: that everything is as the files say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TypeVar

import click

from lbctl.base.diagnostics import did_you_mean
from lbctl.cli.api_client import Server, age, form_choice, server_options, show, table
from lbctl.cli.options import options_of
from lbctl.cli.rollout import print_rollouts, rollouts_of
from lbctl.serve.api import schema

option = options_of("status")
T = TypeVar("T")
_FINE = frozenset({"SYNCED", "GONE", "NOT DRIVEN"})
_DEGRADED = 3
_SHORT = 12
"""Characters of a version that distinguish it from others."""


@click.command("status")
@click.argument("what", required=False, type=click.Choice(["proxies", "pools", "signals", "rollouts"]))
@option("--check", is_flag=True, help="Exit code 3 unless the files are served and every proxy has them.")
@option("-o", "form", type=form_choice, default="table", show_default=True, help="The form.")
@option("--pool", metavar="NAME", help="With pools or signals: this pool alone.")
@server_options()
def command(
    what: str | None, check: bool, form: str, pool: str | None, server: str, token_file: str | None, tls_ca: str | None
) -> int:
    """What a running `lbctl serve` does: a summary, its proxies type by type, its pools, signals or rollouts."""
    if pool is not None and what not in ("pools", "signals"):
        raise click.UsageError("--pool goes with pools or signals")
    remote = Server(server, token_file, tls_ca)
    summary = remote.get("/api/v1/status", schema.Status) if check or what is None else None
    proxies = remote.get("/api/v1/proxies", schema.Proxies).proxies if check or what == "proxies" else ()
    if what == "proxies":
        _show(proxies, form, _PROXIES, _proxy)
    elif what == "pools":
        pools = remote.get("/api/v1/pools", schema.Pools).pools
        _show(_of_pool(remote, pools, [item.name for item in pools], pool), form, _POOLS, _pool)
    elif what == "signals":
        signals = remote.get("/api/v1/signals", schema.Signals).signals
        _show(_of_pool(remote, signals, [item.pool for item in signals], pool), form, _SIGNALS, _signal)
    elif what == "rollouts":
        print_rollouts(rollouts_of(remote, None), form)
    elif summary is not None and form != "table":
        show(summary, form)
    elif summary is not None:
        _print_summary(summary)
    if not check or summary is None:
        return 0
    problems = [*_problems(summary), *_proxy_problems(proxies)]
    for problem in problems:
        click.echo(f"lbctl: {problem}", err=True)
    return _DEGRADED if problems else 0


def _show(rows: Sequence[T], form: str, head: Sequence[str], lines: Callable[[T], Iterator[tuple[str, ...]]]) -> None:
    if form == "table":
        table(head, (line for row in rows for line in lines(row)))
    else:
        show(rows, form)


def _of_pool(remote: Server, rows: Sequence[T], names: Sequence[str], pool: str | None) -> Sequence[T]:
    """Return the rows whose name is that pool, or all. Raises ClickException for a pool that does not exist."""
    if pool is None:
        return rows
    selected = [row for row, name in zip(rows, names, strict=True) if name == pool]
    pools = () if selected else [item.name for item in remote.get("/api/v1/pools", schema.Pools).pools]
    if not selected and pool not in pools:
        near = did_you_mean(pool, pools)
        raise click.ClickException(f"there is no pool {pool!r}" + (f"; {near}" if near else ""))
    if not selected:
        click.echo(f"lbctl: nothing is read of {pool}: it has no telemetry", err=True)
    return selected


# ── Judging ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _problems(summary: schema.Status) -> Iterator[str]:
    if not summary.ready:
        yield f"not ready: {summary.waiting}"
    if not summary.fleet.valid:
        yield f"the files are not served: {summary.fleet.refused or 'they have errors'}"
    for item in summary.fleet.shrink:
        yield item.text


def _proxy_problems(proxies: Sequence[schema.Proxy]) -> Iterator[str]:
    for item in proxies:
        if item.state not in _FINE and item.kind != "reader":
            yield f"{item.node} is {item.state}" + (f": {item.reason}" if item.reason else "")


# ── Showing ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_PROXIES = ("NODE", "PROXY", "TYPE", "STATE", "VERSION", "ACKED", "LAST GOOD", "SINCE", "WORDS")
_POOLS = ("POOL", "REPLICA", "ADDRESS", "WEIGHT", "SHARE", "PRIORITY", "ZONE", "STATE")
_SIGNALS = ("POOL", "REPLICA", "SIGNAL", "VALUE", "UNIT", "AGE", "SOURCE", "WORDS")


def _print_summary(summary: schema.Status) -> None:
    fleet, listens = summary.fleet, summary.listens
    mode = " (dry run: nothing is sent)" if summary.dry_run else ""
    lines = [
        ("lbctl", f"{summary.version}, since {summary.since}{mode}"),
        ("xds", listens.xds or "-"),
        ("socket", listens.xds_socket or "-"),
        ("api", listens.api or "-"),
        ("state", listens.state or "-"),
        ("snapshot", _snapshot(summary.snapshot) if summary.snapshot else f"none: {summary.waiting}"),
        ("files", _files(fleet)),
        ("proxies", ", ".join(f"{count} {state}" for state, count in summary.proxies.items()) or "none"),
        *_details(summary),
    ]
    for name, text in lines:
        click.echo(f"{name:<10} {_one_line(text)}")
    serious = [item for item in fleet.diagnostics if item.severity in ("error", "warning")]
    for text in dict.fromkeys(item.text for item in (*serious, *fleet.shrink)):
        click.echo(f"  {_one_line(text)}")


def _details(summary: schema.Status) -> Iterator[tuple[str, str]]:
    """Yield the lines about what is not as usual."""
    if summary.restart:
        yield "restart", f"taken at the next start alone: {', '.join(summary.restart)}"
    if summary.sources.total:
        yield "sources", _sources(summary.sources)
    for item in summary.control:
        if item.mode != "acting":
            yield "control", f"{item.pool}: {item.mode}, {item.words}"
        for label, replicas in (("out", item.out), ("floor", item.floor)):
            yield from ((label, f"{item.pool}/{name}: {'; '.join(reasons)}") for name, reasons in replicas.items())
    yield from (("by hand", _override(item)) for item in summary.overrides)
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
    origin = "" if row.origin == "files" else ", the last good one of the state"
    size = f"{_count(row.pools, 'pool')}, {_count(row.replicas, 'replica')}"
    return f"{row.version}, {age(row.age)} old, {size}{origin}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _files(fleet: schema.FleetFiles) -> str:
    names = ", ".join(fleet.paths)
    if fleet.valid:
        count = sum(item.severity == "warning" for item in fleet.diagnostics)
        return f"{names}: served" + (f", {_count(count, 'warning')}" if count else "")
    return f"{names}: NOT served: {fleet.refused or 'not read yet'}"


def _proxy(row: schema.Proxy) -> Iterator[tuple[str, ...]]:
    """Yield a line for each type, or a single line for a node that has requested nothing."""
    identity = (row.node, "(reader)" if row.kind == "reader" else row.proxy or "-")
    good = row.last_good[:_SHORT] or "-"
    if not row.types or row.reason:
        yield (*identity, "-", row.state, "-", "-", good, _since(row.since), row.reason)
        return
    for kind in row.types:
        state = kind.state if row.connected else "GONE"
        versions = (kind.offered[:_SHORT] or "-", kind.acked[:_SHORT] or "-")
        yield (*identity, kind.type, state, *versions, good, _since(kind.since), _rejection(row, kind))


def _since(since: schema.Timestamp | None) -> str:
    return age(time.time() - datetime.fromisoformat(since).timestamp() if since else None)


def _rejection(row: schema.Proxy, kind: schema.ResourceTypeStatus) -> str:
    """Return why a proxy rejected a type, with its places in the YAML where those are known."""
    if kind.state != "NACKED":
        return ""
    last = next((item for item in row.nacks if item.type == kind.type), None)
    return " ".join(last.findings) if last and last.findings else kind.message


def _pool(row: schema.Pool) -> Iterator[tuple[str, ...]]:
    if not row.replicas:
        yield (row.name, "-", "-", "-", "-", "-", "-", "-")
    for item in row.replicas:
        state = f"{item.state}: {item.state_reason}" if item.state_reason else item.state
        yield (
            row.name, item.name, item.address, f"{item.weight:g}", f"{item.share * 100:.1f}%",
            str(item.priority), item.zone or item.region or "-", state,
        )  # fmt: skip


def _signal(row: schema.ReplicaSignals) -> Iterator[tuple[str, ...]]:
    """Yield a line for each signal, and one for each page that gives none, however many metrics of it are sources."""
    identity = (row.pool, row.replica)
    for name, signal in row.signals.items():
        staleness = "" if signal.fresh else "stale: not counted"
        yield (*identity, name, f"{signal.value:.6g}", signal.unit, age(signal.age), signal.source, staleness)
    failing: dict[tuple[str, str], list[schema.Source]] = {}
    for item in row.sources:
        if item.reason or item.age is None:
            failing.setdefault((item.kind, item.url), []).append(item)
    for (kind, url), items in failing.items():
        problems = "; ".join(dict.fromkeys(item.words or "not looked at yet" for item in items))
        newest = min((item.age for item in items if item.age is not None), default=None)
        yield (*identity, "-", "-", "-", age(newest), kind, f"{url}: {problems}")
    if not row.signals and not failing:
        kinds = ", ".join(dict.fromkeys(item.kind for item in row.sources)) or "-"
        yield (*identity, "-", "-", "-", "-", kinds, "no signal yet: what was read needs requests between two looks")


def _one_line(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]
