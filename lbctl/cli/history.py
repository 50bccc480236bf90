"""`lbctl history` and `lbctl rollback`, which list previously published fleets and publish one of them again."""

from __future__ import annotations

import click

from lbctl.api import schema
from lbctl.api.client import ServeClient
from lbctl.base.printable import plain
from lbctl.cli.command import Command
from lbctl.cli.options import options_of, output_option
from lbctl.cli.output import show, table
from lbctl.cli.overrides import WAIT_HELP, await_proxies
from lbctl.cli.server_options import server_options

_SHORT = 12
"""Number of digits shown for a digest or commit."""
_HEAD = ("", "DIGEST", "SINCE", "COMMIT", "POOLS", "REPLICAS", "CAUSE")
_STAYS = "; the published fleet does not change"
_MESSAGES = {
    "rolled_back": "published {digest} until the files change: snapshot {version}",
    "published": "published {digest}, which is identical to the files: snapshot {version}",
    "unchanged": "{digest} is published and identical to the files; nothing changed for the proxies",
    "invalid": f"{{digest}} has errors with the current keys, certificates and discovery files{_STAYS}",
    "refused": f"rejected: {{digest}} would remove too many replicas or keys at once{_STAYS}",
    "unsound": f"{{digest}} results in configuration that proxies would reject{_STAYS}",
}


@click.command("history", cls=Command, examples="lbctl history")
@output_option("history")
@server_options()
def history(form: str, remote: ServeClient) -> int:
    """List previously published fleets.

    The newest fleet is first, and `*` marks the current one. DIGEST identifies the content of the YAML files, for
    `lbctl rollback`. COMMIT is the git commit of the files, with `+` if the files differed from it.
    """
    entries = remote.get("/api/v1/history", schema.History).entries[::-1]
    if form == "table":
        table(_HEAD, map(_cells, entries))
    else:
        show(entries, form)
    return 0


@click.command(
    "rollback",
    cls=Command,
    examples="""
    lbctl rollback --wait
    lbctl rollback 4f1c9a --reason "wrong model version"
    """,
)
@click.argument("digest", required=False)
@options_of("rollback")(
    "--allow-shrink", is_flag=True, help="Allow the removal of more replicas or keys than `control.max_shrink` permits."
)
@options_of("rollback")("--wait", is_flag=True, help=WAIT_HELP)
@options_of("")("--reason", metavar="TEXT", help="Reason, shown in status and audit log.")
@server_options(writes=True)
def rollback(digest: str | None, allow_shrink: bool, wait: bool, reason: str | None, remote: ServeClient) -> int:
    """Publish an earlier fleet again until the files change.

    DIGEST is a digest from `lbctl history`, or its first characters. Without DIGEST, lbctl chooses the fleet before the
    current one. Certificates, keys and discovery files keep their current content. A rollback is possible even if the
    fleet files are invalid. If the fleet cannot be published, nothing changes and the exit code is 1.
    """
    request = schema.RollbackRequest(digest, allow_shrink, reason)
    answer = remote.post("/api/v1/rollback", request, schema.RollbackResult)
    for item in answer.diagnostics:
        click.echo(item.text, err=True)
    version = answer.snapshot.version if answer.snapshot else "none"
    message = _MESSAGES.get(answer.result, answer.result)
    click.echo(f"lbctl: {message.format(digest=answer.digest[:_SHORT], version=version)}", err=True)
    if answer.result not in ("rolled_back", "published", "unchanged"):
        return 1
    for row in remote.get("/api/v1/rollouts", schema.Rollouts).rollouts:
        if row.percent is not None:
            click.echo(plain(f"lbctl: {_held(row)}"), err=True)
    return await_proxies(remote) if wait else 0


def _held(row: schema.Rollout) -> str:
    """Return a message about a rollout that overrides the split in the republished files."""
    state = "ended" if row.phase == "promoted" else f"is {row.phase}"
    ends = f"`lbctl rollout abort {row.route}` restores the split in the files"
    return f"{row.route}: {row.to} has {row.percent:g} % because its rollout {state}; {ends}"


def commit_text(commit: str | None, dirty: bool) -> str:
    """Format a short commit hash, with `+` if the files differ from it, or `-` for None."""
    return "-" if commit is None else commit[:_SHORT] + ("+" if dirty else "")


def _cells(row: schema.HistoryEntry) -> tuple[str, ...]:
    causes = {"files": "the files", "reload": f"reload by {row.actor}", "rollback": f"rollback by {row.actor}"}
    cause = causes.get(row.action, row.action) + (f": {row.reason}" if row.reason else "")
    commit = commit_text(row.commit, row.dirty)
    counts = (str(row.pools), str(row.replicas))
    return ("*" if row.current else "", row.digest[:_SHORT], row.at, commit, *counts, cause)
