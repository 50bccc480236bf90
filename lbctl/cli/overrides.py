"""`drain`, `undrain`, `weight`, `freeze`, `unfreeze`: what an operator holds by hand in a running `serve`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from lbctl.base.quantities import QuantityError, parse_duration
from lbctl.cli.options import options_of
from lbctl.cli.remote import Server, server_options

_PATH = "/api/v1/overrides"
_DEGRADED = 3
_LOOK = 0.2
_PATIENCE = 30.0
"""Seconds that `--wait` waits for the proxies."""


def _held(function: Callable[..., Any]) -> Callable[..., Any]:
    """--ttl, --reason and where the server is."""
    option = options_of("")
    function = server_options(writes=True)(function)
    function = option("--reason", metavar="TEXT", help="Why; shown with it.")(function)
    return option("--ttl", metavar="D", help="It ends by itself after this time, as 30m.")(function)


def _weight(ctx: click.Context, param: click.Parameter, value: str) -> float:
    from lbctl.control.overrides import held_weight

    try:
        number = float(value)
    except ValueError:
        raise click.BadParameter(f"{value} is not a number above 0", ctx, param) from None
    try:
        return held_weight(number)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


@click.command("drain")
@click.argument("replica", metavar="POOL/REPLICA")
@options_of("drain")("--wait", is_flag=True, help="Until all connected proxies have it; exit code 3 if not in time.")
@_held
def drain(
    replica: str, wait: bool, ttl: str | None, reason: str | None, server: str, token_file: str | None,
    tls_ca: str | None,
) -> int:  # fmt: skip
    """Nothing new goes to a replica; it finishes what it has.

    After the pool's `drain_deadline` it is taken out of the pool.
    """
    remote = Server(server, token_file, tls_ca)
    answer = _hold(remote, {"kind": "drain", **_place(replica)}, ttl, reason)
    click.echo(f"lbctl: {replica} is drained{_until(answer)}", err=True)
    return _wait(remote) if wait else 0


@click.command("undrain")
@click.argument("replica", metavar="POOL/REPLICA")
@server_options(writes=True)
def undrain(replica: str, server: str, token_file: str | None, tls_ca: str | None) -> int:
    """End a drain, and what deep health holds against the replica."""
    return _let_go(Server(server, token_file, tls_ca), {"kind": "drain", **_place(replica)}, replica)


@click.group("weight")
def weight() -> None:
    """Hold the weight of a replica by hand, or no longer."""


@weight.command("set")
@click.argument("replica", metavar="POOL/REPLICA")
@click.argument("value", callback=_weight)
@_held
def set_(
    replica: str, value: float, ttl: str | None, reason: str | None, server: str, token_file: str | None,
    tls_ca: str | None,
) -> int:  # fmt: skip
    """Give a replica this weight, on the scale of capacities, whatever its signals say."""
    asked = {"kind": "weight", "value": value, **_place(replica)}
    answer = _hold(Server(server, token_file, tls_ca), asked, ttl, reason)
    click.echo(f"lbctl: {replica} has the weight {value:g}{_until(answer)}", err=True)
    return 0


@weight.command("unset")
@click.argument("replica", metavar="POOL/REPLICA")
@server_options(writes=True)
def unset(replica: str, server: str, token_file: str | None, tls_ca: str | None) -> int:
    """Let the weight of a replica follow its signals again."""
    return _let_go(Server(server, token_file, tls_ca), {"kind": "weight", **_place(replica)}, replica)


@click.command("freeze")
@click.argument("pool", required=False)
@_held
def freeze(
    pool: str | None, ttl: str | None, reason: str | None, server: str, token_file: str | None, tls_ca: str | None
) -> int:
    """Keep the weights of a pool, or of all, as they are. Health goes on."""
    remote = Server(server, token_file, tls_ca)
    for name in _pools(remote, pool):
        answer = _hold(remote, {"kind": "freeze", "pool": name}, ttl, reason)
        click.echo(f"lbctl: the weights of {name} stay{_until(answer)}", err=True)
    return 0


@click.command("unfreeze")
@click.argument("pool", required=False)
@server_options(writes=True)
def unfreeze(pool: str | None, server: str, token_file: str | None, tls_ca: str | None) -> int:
    """Let the weights of a pool, or of all, move again."""
    remote = Server(server, token_file, tls_ca)
    for name in _pools(remote, pool):
        _let_go(remote, {"kind": "freeze", "pool": name}, name)
    return 0


def place(text: str) -> tuple[str, str]:
    """POOL/REPLICA. UsageError"""
    pool, slash, name = text.partition("/")
    if not slash or not pool or not name:
        raise click.UsageError(f"{text!r} is not POOL/REPLICA")
    return pool, name


def _place(text: str) -> dict[str, str]:
    pool, replica = place(text)
    return {"pool": pool, "replica": replica}


def _pools(remote: Server, pool: str | None) -> list[str]:
    """That one, or all whose weights move."""
    return [pool] if pool else [row["pool"] for row in remote.get("/api/v1/status")["control"]]


def _hold(remote: Server, asked: dict[str, Any], ttl: str | None, reason: str | None) -> dict[str, Any]:
    if ttl is not None:
        try:
            asked["ttl"] = parse_duration(ttl) / 1000
        except QuantityError as error:
            raise click.UsageError(f"--ttl: {error} ({error.hint})") from None
    if reason is not None:
        asked["reason"] = reason
    found: dict[str, Any] = remote.post(_PATH, asked)["override"]
    return found


def _let_go(remote: Server, asked: dict[str, str], name: str) -> int:
    removed = remote.delete(_PATH, asked)["removed"]
    click.echo(f"lbctl: {name} is {'no longer held' if removed else 'not held'} by hand", err=True)
    return 0


def _until(override: dict[str, Any]) -> str:
    return f", until {override['until']}" if override["until"] else ""


def _wait(remote: Server) -> int:
    deadline = time.monotonic() + _PATIENCE
    while True:
        version = (remote.get("/api/v1/status").get("snapshot") or {}).get("version")
        rows = [row for row in remote.get("/api/v1/proxies")["proxies"] if row["connected"] and row["kind"] != "reader"]
        if not rows:
            click.echo("lbctl: no proxy is connected: nobody was told yet", err=True)
            return _DEGRADED
        served = [row for row in rows if row["kind"] != "envoy" or not row["reason"]]
        late = [row["node"] for row in served if row["last_good"] != version]
        if not late:
            return 0
        if time.monotonic() > deadline:
            click.echo(f"lbctl: these have not taken it: {', '.join(late)}", err=True)
            return _DEGRADED
        time.sleep(_LOOK)
