"""`lbctl explain route`, which shows a request's route, pool and policy on each of the fleet's proxies.

Nothing is sent. Each proxy is evaluated separately, because the proxies interpret some requests differently. Proxies
with the same result are shown together.
"""

from __future__ import annotations

from collections.abc import Iterator

import click

from lbctl.base.diagnostics import Diagnostics
from lbctl.cli.explain.route_request import RouteQuery, listener_of, message_of, proxies_of, split
from lbctl.cli.explain.route_rows import Row, grouped, row_of
from lbctl.cli.fleet import load, show
from lbctl.cli.output import show as show_value

_REPLICAS = 4
"""Maximum number of replicas shown per pool."""


def answer(query: RouteQuery, paths: tuple[str, ...]) -> int:
    """Print the explanation, and return the exit code."""
    parts = split(query.url)
    diagnostics = Diagnostics()
    message = message_of(query, parts, diagnostics)
    loaded = load(paths, diagnostics, require_own_lines=False)
    if loaded is None or message is None or diagnostics.failed:
        show(item for item in diagnostics if item.severity == "error")
        return 1
    listener = listener_of(loaded.compiled, query.listener, parts)
    rows = grouped([row_of(loaded, listener, proxy, message) for proxy in proxies_of(loaded, listener, query.kind)])
    head = {"method": message.method, "host": message.host, "path": message.path, "listener": listener.name}
    if query.form != "table":
        show_value({"request": head, "proxies": rows}, query.form)
        return 0
    click.echo(f"{message.method} {message.host}{message.path} on listener {listener.name} ({listener.bind})")
    for line in (line for row in rows for line in _lines(row)):
        click.echo(line if line.isprintable() else ascii(line)[1:-1])
    return 0


def _lines(row: Row) -> Iterator[str]:
    """Yield the output lines for one row from `route_rows`."""
    yield ""
    yield f"{', '.join(row['on'])}:"
    if row["read"]:
        model = f", model {row['read']['model']}" if row["read"]["model"] is not None else ""
        yield f"  read as    host {row['read']['host'] or '(none)'}, path {row['read']['path']}{model}"
    if row["route"]:
        yield f"  route      {row['route']}  {row['at']}"
        yield f"             because of {row['match']}"
    if row["status"]:
        yield f"  answer     {row['status']}: {row['why']}"
    yield from (f"             {text}" for text in row.get("losses", ()))
    for item in row["also"]:
        winner = f"{row['route']} takes precedence because of its {item['decided_by']}"
        yield f"  also       {item['route']} matches ({item['match']}); {winner}"
    yield from (f"             {text}" for text in row.get("order", ()))
    for item in row["missed"]:
        yield f"  not        {item['route']}: {'; '.join(map(_failed, item['failed']))}"
    if "choice" in row:
        yield f"  pool       {row['choice']['reason']}  {row['choice']['at']}"
        yield from (f"             {_probability(item)}" for item in row["pools"])
        yield from (f"             {text}" for text in row["choice"]["then"])
    for number, item in enumerate(row.get("policy", ())):
        yield f"  {'policy' if not number else '':<10} {item['path']}: {item['value']}  {item['at'] or 'default'}"


def _failed(item: Row) -> str:
    name = f"{item['kind']} {item['name']}" if item["name"] else item["kind"]
    actual = "there is none" if item["actual"] is None else f"it is {item['actual']}"
    return f"requires {name} {item['wanted']}, but {actual}"


def _probability(item: Row) -> str:
    source = "discovery" if item["discovery"] else "no replica"
    parts = sorted(item["replicas"].items(), key=lambda part: (-part[1], part[0]))
    shown = ", ".join(f"{name} {100 * share:.1f}%" for name, share in parts[:_REPLICAS])
    more = f", and {len(parts) - _REPLICAS} more" if len(parts) > _REPLICAS else ""
    return f"{100 * item['probability']:.4g}% {item['pool']}, {item['algorithm']} over {shown or source}{more}"
