"""`lbctl top`, which shows a live table of a running `serve`'s replicas that keys can sort and filter."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass

import click

from lbctl.api import schema
from lbctl.api.client import ServeClient, UnavailableError
from lbctl.base.printable import plain
from lbctl.cli.command import Command
from lbctl.cli.output import table
from lbctl.cli.server_options import server_options
from lbctl.cli.top.rows import COLUMNS, ReplicaRow, pool_line, rows_of, sorted_rows

_INTERVAL = 2.0
"""Seconds between polls."""
_KEY_INTERVAL = 0.2
"""Maximum delay before new data is drawn, in seconds."""


@click.command("top", cls=Command, examples="lbctl top --fleet fleet.yaml")
@server_options()
def command(remote: ServeClient) -> int:
    """Show a live table of replicas.

    The table shows each replica's state, shares and requests, and the signals from its engine and GPUs. Without a
    terminal, lbctl prints the table once, followed by one line per pool with a queue.

    \b
    Keys:
      q               Quit.
      left, right     Sort by the previous or next column.
      letter          Sort by the column with that letter, or reverse the order.
      p               Show one pool after another, then all pools.
      space           Pause.
      up, down        Show the previous or next page.
    """
    look = _look(remote)
    if not sys.stdout.isatty() or not sys.stdin.isatty():
        rows = sorted_rows(look.rows, COLUMNS[0], reverse=False)
        table([column.head for column in COLUMNS], ([column.text(row) for column in COLUMNS] for row in rows))
        for pool in look.pools:
            if pool.queue is not None:
                click.echo(plain(pool_line(pool, [row for row in rows if row.pool == pool.name])))
        return 0
    _live(_Feed(remote, look))
    return 0


@dataclass(frozen=True, slots=True)
class _Look:
    """The server's data at a point in time, and any problem that has occurred since then."""

    pools: tuple[schema.Pool, ...]
    rows: tuple[ReplicaRow, ...]
    at: float
    problem: str = ""


def _look(remote: ServeClient) -> _Look:
    """Query the server. Raises UnavailableError."""
    pools = remote.get("/api/v1/pools", schema.Pools).pools
    signals = remote.get("/api/v1/signals", schema.Signals).signals
    return _Look(pools, rows_of(pools, signals), time.monotonic())


class _Feed:
    """Polls the server in a thread, so that keys still work if the server does not respond."""

    def __init__(self, remote: ServeClient, first: _Look) -> None:
        self.latest = first
        self._remote = remote
        threading.Thread(target=self._run, daemon=True, name="top").start()

    def _run(self) -> None:
        while True:
            time.sleep(_INTERVAL)
            try:
                self.latest = _look(self._remote)
            except UnavailableError as error:
                last = self.latest
                self.latest = _Look(last.pools, last.rows, last.at, str(error))


def _live(feed: _Feed) -> None:
    """Draw until `q` is pressed."""
    from rich.console import Console
    from rich.live import Live

    from lbctl.cli.keys import pressed
    from lbctl.cli.top.view import ScreenView

    console, view = Console(highlight=False, markup=False), ScreenView()
    drawn: tuple[object, ...] = ()
    with Live(console=console, screen=True, auto_refresh=False) as live, pressed() as keys:
        while True:
            look, size, second = feed.latest, console.size, int(time.monotonic())
            if drawn != (look, size, second):
                drawn = look, size, second
                view.show(look.pools, look.rows, look.problem, time.monotonic() - look.at)
                live.update(view.draw(size.width, size.height), refresh=True)
            for key in keys(_KEY_INTERVAL):
                if key == "q":
                    return
                view.press(key)
                drawn = ()
