"""`lbctl diff --against live`, which compares the files with a running `serve` and shows which side is ahead.

The files are ahead if they contain changes that `serve` has not applied yet. The fleet is ahead if it has state that is
not in any file, such as manual overrides, live weights or ejected replicas. Both sides can be ahead for the same
replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Literal

import click

from lbctl.api import schema
from lbctl.api.client import ServeClient, UnavailableError
from lbctl.base.diagnostics import dotted
from lbctl.cli.diff.text import ABSENT
from lbctl.cli.markdown import MarkdownTable, code, document
from lbctl.cli.output import show
from lbctl.compile.fleet import Compiled
from lbctl.control.splits import shares_of
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.settings import of_fleet
from lbctl.ir.topology import Topology

_COMPARED = ("address", "region", "zone", "gpu", "priority", "capacity")
_COLUMNS = ("What", "Running", "In the files", "Why")
_MAX_ITEMS = 40


@dataclass(frozen=True, slots=True)
class Ahead:
    """A difference at `path`, and the side that is ahead: the files or the running fleet.

    `files` and `live` are the two sides' values. None means that a side has no value.
    """

    who: Literal["files", "fleet"]
    path: str
    files: str | None
    live: str | None
    why: str = ""
    """Reason why this side is ahead, or an empty string if unknown."""


def compare(compiled: Compiled, server: ServeClient, form: str) -> bool:
    """Print the differences between the files and the running fleet, and return whether there are any."""
    status = server.get("/api/v1/status", schema.Status)
    if status.snapshot is None:
        raise UnavailableError(f"{server.url} has not published a fleet yet: {status.waiting}")
    overrides = server.get("/api/v1/overrides", schema.Overrides).overrides
    differences = sorted(
        {
            *_settings(compiled.topology, server.get("/api/v1/fleet", schema.FleetSettings).settings),
            *_pools(compiled.topology, server.get("/api/v1/pools", schema.Pools).pools, overrides),
            *_overrides(overrides),
            *_rollouts(compiled.topology, server.get("/api/v1/rollouts", schema.Rollouts).rollouts),
        },
        key=lambda item: (item.who, item.path),
    )
    if status.snapshot.origin != "files":
        click.echo(
            "lbctl: serve's files have errors, so it uses the last valid fleet from its state directory", err=True
        )
    _print(differences, form)
    return bool(differences)


def _print(differences: list[Ahead], form: str) -> None:
    files, fleet = ([item for item in differences if item.who == side] for side in ("files", "fleet"))
    verdict = "both" if files and fleet else "files" if files else "fleet" if fleet else "neither"
    summaries = {"both": "both are ahead", "neither": "no difference"}
    summary = summaries.get(verdict, f"{len(differences)} difference{'' if len(differences) == 1 else 's'}")
    sides = (("the files are ahead", files), ("the fleet is ahead", fleet))
    match form:
        case "table":
            for line in (*_lines(sides), summary):
                click.echo(line if line.isprintable() else ascii(line)[1:-1])
        case "markdown":
            tables = [MarkdownTable(head.capitalize(), _COLUMNS, [*map(_cells, items)]) for head, items in sides]
            click.echo(document(summary, tables), nl=False)
        case _:
            show({"ahead": verdict, "differences": [asdict(item) for item in differences]}, form)


def _lines(sides: Iterable[tuple[str, list[Ahead]]]) -> Iterator[str]:
    for head, items in sides:
        if items:
            yield f"{head}:"
        for item in items[:_MAX_ITEMS]:
            reason = f"  ({item.why})" if item.why else ""
            yield f"  {item.path}: {_shown(item.live)} → {_shown(item.files)}{reason}"
        if len(items) > _MAX_ITEMS:
            yield f"  … and {len(items) - _MAX_ITEMS} more (-o json shows all)"


def _cells(item: Ahead) -> tuple[str, ...]:
    values = (ABSENT if value is None else code(value) for value in (item.live, item.files))
    return code(item.path), *values, code(item.why)


def _shown(value: str | None) -> str:
    return ABSENT if value is None else value


# ── Compared parts ───────────────────────────────────────────────────────────────────────────────────────────────────


def _settings(topology: Topology, served: Mapping[str, str]) -> Iterator[Ahead]:
    written = {dotted(path): value for path, value in of_fleet(topology).items()}
    for path in written.keys() | served.keys():
        if written.get(path) != served.get(path):
            yield Ahead("files", path, written.get(path), served.get(path))


def _pools(topology: Topology, pools: Iterable[schema.Pool], overrides: Iterable[schema.Override]) -> Iterator[Ahead]:
    live = {item.name: item for item in pools}
    drained = {(item.pool, item.replica) for item in overrides if item.kind == "drain"}
    for pool in topology.pools:
        if pool.name in live:
            by_name = {item.name: item for item in live[pool.name].replicas}
            yield from _replicas(pool, by_name, {replica for name, replica in drained if name == pool.name})


def _replicas(pool: Pool, live: dict[str, schema.Replica], by_hand: set[str | None]) -> Iterator[Ahead]:
    """Compare the replicas of a pool.

    Discovered replicas appear only in `serve`, because the compiler does not read them.
    """
    written = {item.name: item for item in pool.replicas}
    is_discovered = pool.discovery is not None and not pool.discovery.compiled
    for name in (written.keys() | live.keys()) if not is_discovered else live.keys():
        path = f"pools.{pool.name}.replicas.{name}"
        replica, row = written.get(name), live.get(name)
        if row is None:
            yield Ahead("files", path, str(written[name].address), None, "new replica")
        elif replica is None and not is_discovered:
            yield Ahead("files", path, None, str(row.address), "removed replica")
        else:
            yield from _replica(path, replica, row, name in by_hand)


def _replica(path: str, replica: Replica | None, row: schema.Replica, by_hand: bool) -> Iterator[Ahead]:
    for key in _COMPARED if replica else ():
        written, served = _text(getattr(replica, key)), _text(getattr(row, key))
        if written != served:
            yield Ahead("files", f"{path}.{key}", written, served)
    if _text(row.weight) != _text(row.capacity):
        yield Ahead("fleet", f"{path}.weight", _text(row.capacity), _text(row.weight), "live weight")
    if row.out:
        yield Ahead("fleet", path, "in", "out", "ejected, or removed after its drain deadline")
    drained = replica is not None and replica.drain
    if bool(row.drained) != drained and not row.out and not by_hand:
        yield Ahead("files", f"{path}.drain", _text(drained), _text(bool(row.drained)))


def _rollouts(topology: Topology, rows: Iterable[schema.Rollout]) -> Iterator[Ahead]:
    files = {route.name: dict(shares_of(route)) for route in topology.routes}
    for row in rows:
        written = files.get(row.route, {})
        if row.percent is not None and written != row.split:
            why = f"rollout, {row.phase}"
            yield Ahead("fleet", f"routes.{row.route}.split", _split(written), _split(row.split), why)


def _split(shares: Mapping[str, int]) -> str:
    """Format a split as in a fleet file."""
    return "{" + ", ".join(f"{pool}: {share}" for pool, share in shares.items()) + "}"


def _overrides(rows: Iterable[schema.Override]) -> Iterator[Ahead]:
    for row in rows:
        until = f", until {row.until}" if row.until else ""
        reason = f": {row.reason}" if row.reason else ""
        if row.route is not None:
            yield Ahead("fleet", f"routes.{row.route}.split", None, _split(row.shares), f"override{until}{reason}")
            continue
        about = f"pools.{row.pool}" + (f".replicas.{row.replica}" if row.replica else "")
        value = "true" if row.value is None else _text(row.value)
        yield Ahead("fleet", f"{about} override, {row.kind}", None, value, f"override{until}{reason}")


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.6g}" if isinstance(value, float | int) else str(value)
