"""Shows a running demo, with live tables and keys for the faults on a terminal, and one line per event elsewhere."""

from __future__ import annotations

import asyncio
import os
import sys
import termios
import time
import tty
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lbctl.demo.faults import BY_KEY, FAULTS
from lbctl.demo.fleet import MEMBERS, STRATEGIES, TITLES, Strategy
from lbctl.demo.report import SLOW_COLUMN, duration, measured, progress, reaction, verdict
from lbctl.demo.session import DemoSession
from lbctl.demo.totals import Totals

_INTERVAL = 0.5
_WINDOW = 15.0
"""Period covered by the live figures, in seconds."""
_NUMBERS = ("DECIDED", "OBSERVED", "RUN+WAIT", "KV", "TTFT P50", "TTFT P99")
_ROOMY = 110, 34
"""Minimum columns and lines that a terminal needs for tables with frames, GPUs and reasons. Without these extras, 80
columns and 24 lines are enough."""
_EVENTS, _FEW_EVENTS = 6, 4
"""Number of newest events shown on a large and on a small terminal."""
_STYLES = {"green": ("in",), "red": ("down", "ejected", "removed"), "yellow": ("slow", "hot"), "cyan": ("ramping",)}
_COLOURS = {state: colour for colour, states in _STYLES.items() for state in states}


async def headless(session: DemoSession) -> None:
    """Run the script, and report its events on standard error."""
    click.echo(f"lbctl: {session.proxy} in front of {len(STRATEGIES)} groups of {len(MEMBERS)} replicas", err=True)
    click.echo(f"lbctl: dashboard {session.dashboard}", err=True)
    script = asyncio.create_task(session.run_script())
    shown = 0
    try:
        while True:
            shown = _report_events(session, shown)
            await asyncio.sleep(_INTERVAL)
    finally:
        script.cancel()
        await asyncio.gather(script, return_exceptions=True)


def _report_events(session: DemoSession, shown: int) -> int:
    events = list(_events(session))
    for line in events[shown:]:
        click.echo(f"lbctl: {line}", err=True)
    return len(events)


def _events(session: DemoSession) -> Iterator[str]:
    """Yield the events so far, in chronological order."""
    moments: list[tuple[float, str]] = []
    for item in session.faults.episodes:
        name = f"{item.fault.kind} {item.fault.replica}"
        moments.append((item.began, f"{name}: {item.fault.effect}"))
        if item.reacted is not None:
            moments.append((item.reacted, f"{name}: serve {reaction(item)}"))
        if item.ended is not None:
            moments.append((item.ended, f"{name}: over"))
    for canary in session.canaries.all:
        name = f"{canary.plan.name} canary"
        moments += [(step.at, f"{name}: {step.percent:g} % to its new version") for step in canary.steps]
        if canary.ended is not None:
            moments.append((canary.ended, f"{name}: {progress(canary)}"))
    for moment, text in sorted(moments):
        yield f"{moment - session.began:5.1f} s  {text}"


async def watch(session: DemoSession) -> None:
    """Show the demo on the terminal until the load ends. Keys start and end faults, and q ends the demo."""
    keys: asyncio.Queue[str] = asyncio.Queue()
    totals = {name: Totals(load) for name, load in session.loads.items()}
    with _keys(keys), Live(console=Console(), refresh_per_second=4, screen=True) as live:
        while True:
            roomy = live.console.width >= _ROOMY[0] and live.console.height >= _ROOMY[1]
            live.update(tables(session, totals, roomy=roomy))
            try:
                async with asyncio.timeout(_INTERVAL):
                    await _press(session, await keys.get())
            except TimeoutError:
                continue


async def _press(session: DemoSession, key: str) -> None:
    if key == "q":
        session.stop()
    elif key in session.canaries.by_key:
        await session.canaries.start(session.canaries.by_key[key])
    elif key == "h":
        await session.faults.end_all()
    elif key in BY_KEY:
        await session.faults.toggle(BY_KEY[key])


@contextmanager
def _keys(keys: asyncio.Queue[str]) -> Iterator[None]:
    """Put every pressed key into the queue, without waiting for Enter."""
    terminal = sys.stdin.fileno()
    settings = termios.tcgetattr(terminal)
    loop = asyncio.get_running_loop()
    tty.setcbreak(terminal)
    loop.add_reader(terminal, lambda: _put_all(keys, os.read(terminal, 64)))
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, settings)


def _put_all(keys: asyncio.Queue[str], pressed: bytes) -> None:
    for key in pressed.decode("ascii", "ignore"):
        keys.put_nowait(key)


def tables(session: DemoSession, totals: Mapping[Strategy, Totals], *, roomy: bool) -> Group:
    """Return tables that show the demo's state. `roomy` adds frames, GPUs and reasons, for a large terminal."""
    seconds = time.monotonic() - session.began
    head = f"lbctl demo · {session.proxy} · {seconds:.0f} s · dashboard {session.dashboard}"
    pressed = "  ".join(f"[{fault.key}] {fault.kind} {fault.replica}" for fault in FAULTS)
    starts = "  ".join(f"[{item.plan.key}] {item.plan.name} canary" for item in session.canaries.all)
    events = "\n".join(list(_events(session))[-(_EVENTS if roomy else _FEW_EVENTS) :])
    return Group(
        Text(head, style="bold"),
        Text(f"{pressed}  [h] end all faults  {starts}  [q] quit", style="bold"),
        _replicas(session, roomy),
        _groups(session, totals, roomy),
        _canaries(session, roomy),
        Text(events, style="dim", no_wrap=True, overflow="ellipsis"),
    )


def _table(title: str, roomy: bool) -> Table:
    return Table(title=title) if roomy else Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0))


def _replicas(session: DemoSession, roomy: bool) -> Table:
    """Return a table of the replicas in the adaptive group, with their state and the decisions made by `serve`."""
    table = _table("replicas behind lbctl serve", roomy)
    names = ("REPLICA", *(("GPU",) if roomy else ()), "FAULT", "STATE", *_NUMBERS, *(("REASON",) if roomy else ()))
    for name in names:
        table.add_column(name, justify="right" if name in _NUMBERS else "left", no_wrap=name != "REASON")
    now = time.monotonic()
    newest = session.loads["adaptive"].outcomes(now - _WINDOW, now)
    for member, replica in zip(MEMBERS, session.site.groups["adaptive"], strict=True):
        decision, own = session.observer.decisions.get(member.name), newest.of_replica(member.name)
        state = decision.state if decision else "-"
        table.add_row(
            member.name, *((member.gpu,) if roomy else ()), Text(session.faults.of_replica(member.name), style="red"),
            Text(state, style=_COLOURS.get(state, "")), _share(decision.share if decision else None),
            _share(decision.observed if decision else None), f"{replica.running}+{replica.waiting}",
            f"{replica.cache:.0%}",
            *(duration(own.first_token(percentile)) if own.sent else "-" for percentile in (50, 99)),
            *((decision.reason if decision else "",) if roomy else ()),
        )  # fmt: skip
    return table


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _canaries(session: DemoSession, roomy: bool) -> Table:
    """Return a table of the rollouts, with their progress, their clients' results, and the last verdict."""
    table = _table("canaries that lbctl serve analyses", roomy)
    for name in ("CANARY", "PHASE", "SHARE", "REQUESTS", "FAILED", "LAST VERDICT"):
        table.add_column(name, justify="right" if name in ("SHARE", "REQUESTS", "FAILED") else "left", no_wrap=True)
    for canary in session.canaries.all:
        outcomes = canary.outcomes()
        percent = canary.row.get("percent") if canary.started is not None else None
        table.add_row(
            canary.plan.name, canary.phase.replace("_", " "), "-" if percent is None else f"{percent:g} %",
            str(len(outcomes.sent)), str(outcomes.failed), verdict(canary),
        )  # fmt: skip
    return table


def _groups(session: DemoSession, totals: Mapping[Strategy, Totals], roomy: bool) -> Table:
    """Return a table of the three groups, with figures for the most recent requests and for all requests."""
    table = _table(f"the same requests · the last {_WINDOW:.0f} s · all", roomy)
    for name in ("GROUP", SLOW_COLUMN, "TTFT P50", "ALL", "FAILED", SLOW_COLUMN, "TTFT P50"):
        table.add_column(name, justify="left" if name == "GROUP" else "right", no_wrap=True)
    now = time.monotonic()
    for name in STRATEGIES:
        newest, whole = measured(session.loads[name].outcomes(now - _WINDOW, now)), totals[name]
        whole.update()
        table.add_row(
            TITLES[name], f"{newest.slow_share:.1%}", duration(newest.first_token_p50),
            str(whole.requests), str(whole.failed), f"{whole.slow_share:.1%}", duration(whole.first_token(50)),
        )  # fmt: skip
    return table
