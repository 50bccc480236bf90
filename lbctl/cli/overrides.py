"""`drain`, `undrain`, `weight`, `freeze`, `unfreeze` and `split`, which set manual overrides in a running `serve`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click
from msgspec.structs import replace

from lbctl.api import schema
from lbctl.api.client import ServeClient, UnavailableError
from lbctl.base.printable import plain
from lbctl.base.quantities import QuantityError, parse_duration
from lbctl.cli.command import Command, Group
from lbctl.cli.drain_wait import await_idle
from lbctl.cli.options import options_of
from lbctl.cli.server_options import server_options

_PATH = "/api/v1/overrides"
_DEGRADED = 3
_POLL_INTERVAL = 0.2
WAIT_HELP = "Wait until all connected proxies have applied the change; exit with 3 on timeout."
_LEFT = ("GONE", "NOT DRIVEN")
_FAILED = ("FAILING", "REFUSED", "NACKED")
_WAIT_TIMEOUT = 30.0
"""Timeout of `--wait` for the proxies, in seconds."""
AWAY = 60.0
"""Maximum time, in seconds, for which `--wait` tolerates a `serve` that does not respond, because it may be
restarting."""


def _override_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --ttl, --reason and the server options."""
    option = options_of("")
    function = server_options(writes=True)(function)
    function = option("--reason", metavar="TEXT", help="Reason, shown in status and audit log.")(function)
    return option("--ttl", metavar="DURATION", help="Remove the override after this time, for example 30m.")(function)


def _weight(ctx: click.Context, param: click.Parameter, value: str) -> float:
    from lbctl.control.overrides import checked_weight

    try:
        number = float(value)
    except ValueError:
        raise click.BadParameter(f"{value} is not a number above 0", ctx, param) from None
    try:
        return checked_weight(number)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _shares(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> dict[str, int]:
    shares: dict[str, int] = {}
    for value in values:
        pool, _, share = value.partition("=")
        if not pool or not share.isascii() or not share.isdigit():
            raise click.BadParameter(f"{value!r} is not POOL=SHARE with a non-negative integer SHARE", ctx, param)
        if pool in shares:
            raise click.BadParameter(f"{pool} is set twice", ctx, param)
        shares[pool] = int(share)
    return shares


@click.command(
    "drain",
    cls=Command,
    examples="""
    lbctl drain llama/gpu-3 --reason "driver update"
    # Wait until the replica is idle:
    lbctl drain llama/gpu-3 --wait-idle --ttl 2h
    """,
)
@click.argument("replica", metavar="POOL/REPLICA")
@options_of("drain")("--wait", is_flag=True, help=WAIT_HELP)
@options_of("drain")(
    "--wait-idle", is_flag=True,
    help="Also wait until the replica has no requests in flight. Exit with 3 after its drain deadline, or if the "
    "number of requests is unknown.",
)  # fmt: skip
@_override_options
def drain(replica: str, wait: bool, wait_idle: bool, ttl: str | None, reason: str | None, remote: ServeClient) -> int:
    """Drain a replica: it finishes its requests and gets no new ones.

    After the pool's `drain_deadline`, lbctl removes the replica from the pool.
    """
    pool, name = place(replica)
    override = _hold(remote, schema.OverrideRequest("drain", pool, name), ttl, reason)
    click.echo(f"lbctl: draining {replica}{_until(override)}", err=True)
    code = await_proxies(remote) if wait or wait_idle else 0
    return code or (await_idle(remote, pool, name) if wait_idle else 0)


@click.command("undrain", cls=Command, examples="lbctl undrain llama/gpu-3 --wait")
@click.argument("replica", metavar="POOL/REPLICA")
@options_of("undrain")("--wait", is_flag=True, help=WAIT_HELP)
@server_options(writes=True)
def undrain(replica: str, wait: bool, remote: ServeClient) -> int:
    """End a drain or a deep-health ejection."""
    code = _remove(remote, schema.OverrideRemoval("drain", *place(replica)), replica)
    return code or (await_proxies(remote) if wait else 0)


@click.group("weight", cls=Group)
def weight() -> None:
    """Override the weight of a replica."""


@weight.command("set", examples="lbctl weight set llama/gpu-3 2.5 --ttl 30m")
@click.argument("replica", metavar="POOL/REPLICA")
@click.argument("value", callback=_weight)
@_override_options
def set_(replica: str, value: float, ttl: str | None, reason: str | None, remote: ServeClient) -> int:
    """Set the weight of a replica and ignore its signals.

    VALUE has the same scale as capacities and must be greater than 0. To stop new requests, use `lbctl drain`.
    """
    request = schema.OverrideRequest("weight", *place(replica), value=value)
    override = _hold(remote, request, ttl, reason)
    click.echo(f"lbctl: set the weight of {replica} to {value:g}{_until(override)}", err=True)
    return 0


@weight.command("unset", examples="lbctl weight unset llama/gpu-3")
@click.argument("replica", metavar="POOL/REPLICA")
@server_options(writes=True)
def unset(replica: str, remote: ServeClient) -> int:
    """Remove the weight override of a replica."""
    return _remove(remote, schema.OverrideRemoval("weight", *place(replica)), replica)


@click.command("freeze", cls=Command, examples="lbctl freeze llama --ttl 1h")
@click.argument("pool", required=False)
@_override_options
def freeze(pool: str | None, ttl: str | None, reason: str | None, remote: ServeClient) -> int:
    """Freeze the weights of a pool.

    Without POOL, freeze all pools. Health checks and ejections continue.
    """
    for name in [pool] if pool is not None else _moving_pools(remote):
        override = _hold(remote, schema.OverrideRequest("freeze", name), ttl, reason)
        click.echo(f"lbctl: froze the weights of {name}{_until(override)}", err=True)
    return 0


@click.command("unfreeze", cls=Command, examples="lbctl unfreeze llama")
@click.argument("pool", required=False)
@server_options(writes=True)
def unfreeze(pool: str | None, remote: ServeClient) -> int:
    """Unfreeze the weights of a pool.

    Without POOL, unfreeze all pools.
    """
    for name in [pool] if pool is not None else _frozen_pools(remote):
        _remove(remote, schema.OverrideRemoval("freeze", name), name)
    return 0


@click.group("split", cls=Group)
def split() -> None:
    """Override the split of a route."""


@split.command("set", examples="lbctl split set chat v1=90 v2=10 --ttl 1h")
@click.argument("route")
@click.argument("shares", metavar="POOL=SHARE…", nargs=-1, required=True, callback=_shares)
@options_of("split")("--wait", is_flag=True, help=WAIT_HELP)
@_override_options
def set_split(
    route: str, shares: dict[str, int], wait: bool, ttl: str | None, reason: str | None, remote: ServeClient
) -> int:
    """Set the shares of a route's pools.

    The override lasts until you run `lbctl split unset`, --ttl expires, or the split in the files changes.
    """
    override = _hold(remote, schema.OverrideRequest("split", route=route, shares=shares), ttl, reason)
    total = sum(override.shares.values())
    percents = ", ".join(f"{pool} {100 * share / total:.4g} %" for pool, share in override.shares.items())
    click.echo(f"lbctl: set the split of {route} to {percents}{_until(override)}", err=True)
    return await_proxies(remote) if wait else 0


@split.command("unset", examples="lbctl split unset chat")
@click.argument("route")
@server_options(writes=True)
def unset_split(route: str, remote: ServeClient) -> int:
    """Remove the split override of a route."""
    return _remove(remote, schema.OverrideRemoval("split", route=route), route)


def place(text: str) -> tuple[str, str]:
    """Parse POOL/REPLICA. Raises UsageError."""
    pool, slash, name = text.partition("/")
    if not slash or not pool or not name:
        raise click.UsageError(f"{text!r} is not POOL/REPLICA")
    return pool, name


def _moving_pools(remote: ServeClient) -> list[str]:
    """Return the pools that have telemetry, because only their weights change. If none does, print a notice."""
    names = [item.pool for item in remote.get("/api/v1/status", schema.Status).control]
    if not names:
        click.echo("lbctl: nothing to freeze: no pool has telemetry", err=True)
    return names


def _frozen_pools(remote: ServeClient) -> list[str]:
    """Return the frozen pools. If no pool is frozen, print a notice."""
    names = [item.pool for item in remote.get(_PATH, schema.Overrides).overrides if item.kind == "freeze"]
    if not names:
        click.echo("lbctl: nothing to unfreeze: no pool is frozen", err=True)
    return names


def _hold(remote: ServeClient, request: schema.OverrideRequest, ttl: str | None, reason: str | None) -> schema.Override:
    try:
        seconds = None if ttl is None else parse_duration(ttl) / 1000
    except QuantityError as error:
        raise click.UsageError(f"--ttl: {error} ({error.hint})") from None
    request = replace(request, ttl=seconds, reason=reason)
    answer = remote.post(_PATH, request, schema.OverrideResult)
    warn(answer.warnings)
    return answer.override


def _remove(remote: ServeClient, request: schema.OverrideRemoval, name: str) -> int:
    answer = remote.delete(_PATH, request, schema.RemovalResult)
    click.echo(f"lbctl: {name}: {'override removed' if answer.removed else 'there is no override'}", err=True)
    warn(answer.warnings)
    return 0


def warn(warnings: tuple[str, ...]) -> None:
    """Print warnings about a change's side effects."""
    for text in warnings:
        click.echo(f"lbctl: warning: {plain(text)}", err=True)


def _until(override: schema.Override) -> str:
    return f", until {override.until}" if override.until else ""


def await_proxies(remote: ServeClient) -> int:
    """Wait until all proxies have applied the published fleet. Return the exit code, which is 3 on timeout.

    The timeout starts over if `serve` restarts, because the proxies then have to reconnect. Raises UnavailableError if
    `serve` is unavailable for too long.
    """
    deadline, away_since = time.monotonic() + _WAIT_TIMEOUT, None
    while True:
        try:
            having, late = _having_and_late(remote)
        except UnavailableError:
            away_since = away_since or time.monotonic()
            deadline = time.monotonic() + _WAIT_TIMEOUT
            if time.monotonic() - away_since > AWAY:
                raise
        else:
            if having and not late:
                click.echo(f"lbctl: applied by {', '.join(having)}", err=True)
                return 0
            if not having and not late and (away_since is None or time.monotonic() > deadline):
                click.echo("lbctl: no proxy is connected, so none has applied the change", err=True)
                return _DEGRADED
            if late and time.monotonic() > deadline:
                click.echo(f"lbctl: not applied by {', '.join(late)}", err=True)
                return _DEGRADED
        time.sleep(_POLL_INTERVAL)


def _having_and_late(remote: ServeClient) -> tuple[list[str], list[str]]:
    """Return the proxies that have applied the published fleet, and all others with the reasons.

    Disconnected proxies are not in either list. Nodes that are unconfirmed, or that were rejected without resources,
    are not listed either, because they are not part of the fleet.
    """
    snapshot = remote.get("/api/v1/status", schema.Status).snapshot
    version = snapshot.version if snapshot else None
    having, late = [], []
    for item in remote.get("/api/v1/proxies", schema.Proxies).proxies:
        if (
            item.kind == "reader"
            or not item.confirmed
            or item.state in _LEFT
            or (item.state == "REFUSED" and not item.last_good)
        ):
            continue
        if item.connected and item.last_good == version and item.state != "REFUSED":
            having.append(item.node)
        elif item.connected or item.state in _FAILED:
            why = f" ({item.state}{f': {item.reason}' if item.reason else ''})" if item.state in _FAILED else ""
            late.append(plain(f"{item.node}{why}"))
    return having, late
