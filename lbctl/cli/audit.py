"""`lbctl audit`, which shows operations on a running `serve` and verifies the integrity of its audit log."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence

import click

from lbctl.api import schema
from lbctl.api.client import ServeClient
from lbctl.cli.command import Group
from lbctl.cli.options import options_of, output_option
from lbctl.cli.output import show, table
from lbctl.cli.server_options import server_options

_PATH = "/api/v1/audit"


@click.group("audit", cls=Group)
def command() -> None:
    """Show the audit log and verify its integrity."""


@command.command("show", examples="lbctl audit show --limit 10")
@options_of("audit")(
    "-n",
    "--limit",
    "count",
    metavar="N",
    type=click.IntRange(1),
    default=50,
    show_default=True,
    help="Maximum number of records.",
)
@output_option("audit")
@server_options()
def show_(count: int, form: str, remote: ServeClient) -> int:
    """Show the most recent audit records, oldest first."""
    records = remote.get(_PATH, schema.Audit).records[-count:]
    if form != "table":
        show(records, form)
        return 0
    rows = ((str(item.number), item.at, item.actor, item.action, item.subject, item.reason) for item in records)
    table(("NUMBER", "AT", "ACTOR", "ACTION", "SUBJECT", "REASON"), rows)
    return 0


@command.command("verify", examples="lbctl audit verify")
@server_options()
def verify(remote: ServeClient) -> int:
    """Verify the hash chain of the audit log.

    The exit code is 1 if a record was changed, removed or added.
    """
    records = remote.get(_PATH, schema.Audit).records
    problems = list(breaks(records))
    for problem in problems:
        click.echo(f"lbctl: {problem}", err=True)
    if problems:
        return 1
    kept = f"{records[0].number} to {records[-1].number}" if records else "none yet"
    last = f"; the last hash is {records[-1].hash}" if records else ""
    click.echo(f"{len(records)} records ({kept}), valid hash chain{last}")
    return 0


def breaks(records: Sequence[schema.AuditRecord]) -> Iterator[str]:
    """Yield a message for each break in the chain."""
    before: schema.AuditRecord | None = None
    for item in records:
        fields = [item.number, item.at, item.actor, item.action, item.subject, item.reason, item.previous]
        text = json.dumps(fields, separators=(",", ":"))
        if hashlib.sha256(text.encode()).hexdigest() != item.hash:
            yield f"record {item.number} was changed: its hash does not match its content"
        if before is not None and (item.number, item.previous) != (before.number + 1, before.hash):
            yield f"records were removed or added between record {before.number} and record {item.number}"
        if before is None and item.number == 1 and item.previous:
            yield "record 1 has a predecessor"
        before = item
