"""`lbctl explain pick`, which shows which replica the picker would choose for a request.

If files are given, all replicas are assumed to be idle. Otherwise, a running `lbctl serve`'s picker is queried.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from lbctl.api import schema
from lbctl.api.client import ServeClient
from lbctl.api.codec import decode
from lbctl.base.diagnostics import Diagnostics, did_you_mean
from lbctl.base.errors import reason_of
from lbctl.cli.fleet import load, show
from lbctl.cli.output import show as show_value
from lbctl.cli.terminal import format_table, wrapped
from lbctl.ir import pools as ir
from lbctl.ir.locality import Place
from lbctl.pick.affinity import AffinityMemory
from lbctl.pick.books import Books
from lbctl.pick.explain import document, explain, explained_request, tenant_routes
from lbctl.pick.features import Features, read
from lbctl.pick.table import Candidate, PoolTable

_HEAD = ("REPLICA", "ADDRESS", "RATE", "WORK (TOKENS)", "CACHED (TOKENS)", "WAIT (TOKENS/RATE)", "WHY NOT")
_MAX_SENT_BYTES = 48 << 10
"""Maximum size of a body that is sent to a running server, encoded as JSON."""


@dataclass(frozen=True, slots=True)
class PickQuery:
    """Command-line arguments."""

    pool: str
    session: str | None
    """Value of the pool's first session key."""
    tenant: str | None
    """Tenant that is sending the request."""
    priority: Literal["high", "normal", "low"]
    """The request's priority in a running picker's queue."""
    body: str | None
    """Path of the file that contains the request body."""
    region: str | None
    """Region of the proxy."""
    zone: str | None
    """Zone of the proxy."""
    form: str


def answer(query: PickQuery, paths: tuple[str, ...]) -> int:
    """Print an explanation based on the files, and return the exit code."""
    diagnostics = Diagnostics()
    loaded = load(paths, diagnostics, require_own_lines=False)
    if loaded is None or diagnostics.failed:
        show(item for item in diagnostics if item.severity == "error")
        return 1
    topology = loaded.compiled.topology
    pool = _pool(topology.pools, query.pool)
    table = _table(pool)
    explanation = explain(_features(table, query), table, Books(), AffinityMemory(), 0.0)
    routes = list(tenant_routes(topology.routes, pool.name))
    values = {"pool": pool.name, **document(explanation), "tenant_routes": routes}
    _print(decode(schema.PickExplanation, values), query)
    return 0


def explain_running(query: PickQuery, remote: ServeClient) -> int:
    """Print the running picker's explanation, and return the exit code."""
    body = _body(query.body)
    question = schema.PickQuestion(
        query.pool, query.session, _beginning(body) if body else None, len(body) or None, query.region, query.zone,
        query.tenant, query.priority,
    )  # fmt: skip
    _print(remote.post("/api/v1/picks/explain", question, schema.PickExplanation), query)
    return 0


def _beginning(body: bytes) -> str:
    """Return the beginning of a body, truncated to fit into a request to the picker."""
    text = body[:_MAX_SENT_BYTES].decode(errors="replace")
    while len(json.dumps(text)) > _MAX_SENT_BYTES:
        text = text[: len(text) // 2]
    return text


def _print(explanation: schema.PickExplanation, query: PickQuery) -> None:
    if query.form != "table":
        show_value(explanation, query.form)
        return
    for line in _lines(explanation, query.tenant):
        click.echo(line)


def _table(pool: ir.Pool) -> PoolTable:
    """Return a pool's picker table based on the files, where all replicas are idle and have their full capacity."""
    return PoolTable.of(pool, (_candidate(item, pool) for item in pool.replicas))


def _candidate(replica: ir.Replica, pool: ir.Pool) -> Candidate:
    return Candidate(
        name=replica.name,
        address=str(replica.address),
        weight=replica.capacity,
        fit=not replica.drain,
        reason="drained by the files" if replica.drain else "",
        priority=replica.priority,
        region=replica.region,
        zone=replica.zone,
        limit=pool.circuit_breaker.replica_max_requests,
    )


def _pool(pools: tuple[ir.Pool, ...], name: str) -> ir.Pool:
    """Return the pool with this name. Raises ClickException if it does not exist or does not use the picker."""
    pool_of_name = next((pool for pool in pools if pool.name == name), None)
    if pool_of_name is None:
        near = did_you_mean(name, [pool.name for pool in pools])
        raise click.ClickException(f"unknown pool {name}" + (f" ({near})" if near else ""))
    if pool_of_name.balance.pick is None:
        message = (
            f"pool {name} uses the algorithm {pool_of_name.balance.algorithm}: its proxies choose replicas themselves"
        )
        raise click.ClickException(f"{message}; `lbctl explain route` shows how a request reaches the pool")
    return pool_of_name


def _features(table: PoolTable, query: PickQuery) -> Features:
    try:
        headers, body = explained_request(table.policy, query.session, _body(query.body))
    except ValueError as error:
        raise click.ClickException(f"{table.pool}: {error}") from None
    return read(table, headers, body, len(body), place=Place(query.region, query.zone), tenant=query.tenant or "")


def _body(path: str | None) -> bytes:
    try:
        return Path(path).read_bytes() if path is not None else b""
    except OSError as error:
        raise click.ClickException(f"{path}: {reason_of(error)}") from None


def _lines(explanation: schema.PickExplanation, tenant: str | None) -> Iterator[str]:
    yield wrapped(_printable(explanation.sentence))
    request, routes = explanation.request, explanation.tenant_routes
    if routes and tenant is None and (request.session is not None or request.blocks):
        named = f"route{'s' if len(routes) > 1 else ''} {_printable(', '.join(routes))}"
        yield f"hint           sessions and prompts are separate for each tenant on the {named}: add --tenant NAME"
    yield f"session        {'none' if request.session is None else _session(request.session, request.session_key)}"
    factor = "" if request.length_factor == 1 else f" (learned factor {request.length_factor:.2f})"
    tokens = f"{request.prompt_tokens:.0f} tokens{factor}"
    yield f"prompt         about {tokens}, {request.blocks} blocks for prefix matching"
    if request.model is not None:
        adapter = ", an adapter" if request.adapter else ""
        yield f"model          {_printable(request.model)}{adapter}"
    yield format_table(_HEAD, [_cells(row) for row in explanation.candidates])


def _session(value: str, key: str | None) -> str:
    if key is None:
        return _printable(value)
    return f"{_printable(value)}, from {f'{key} in the body' if key.startswith('$') else f'the header {key}'}"


def _cells(row: schema.PickCandidate) -> tuple[str, ...]:
    rate, work, cached, wait = (
        "-" if value is None else f"{value:.4g}" for value in (row.rate, row.work, row.cached, row.wait)
    )
    if row.cached is not None and not row.counted:
        cached = f"{cached}, ignored"
    reason = row.reason or (f"slow start: it gets {row.ramp:.0%} of its weight" if row.ramp < 1 else "-")
    name, address, reason = map(_printable, (row.name, row.address, reason))
    return (name, address, rate, work, cached, wait, reason)


def _printable(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]
