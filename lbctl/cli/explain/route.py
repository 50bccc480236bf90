"""`lbctl explain route`: from one request to its route, its pool and its policy, on each of the fleet's proxies.

Nothing is sent anywhere. Each proxy is evaluated separately, because the proxies do not read every request alike; those
that agree are shown together.
"""

from __future__ import annotations

import click

from lbctl.base.diagnostics import Diagnostics
from lbctl.cli.explain.route_request import RouteQuery, listener_of, message_of, proxies_of, split
from lbctl.cli.explain.route_rows import grouped, row_of
from lbctl.cli.explain.route_text import lines
from lbctl.cli.fleet import load, show
from lbctl.cli.output import show as show_value


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
    for line in (line for row in rows for line in lines(row)):
        click.echo(line if line.isprintable() else ascii(line)[1:-1])
    return 0
