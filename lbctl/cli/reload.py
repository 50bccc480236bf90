"""`lbctl reload`, which makes a running `serve` reload its files, and can allow many replicas to be removed."""

from __future__ import annotations

import click

from lbctl.api import schema
from lbctl.api.client import ServeClient
from lbctl.cli.command import Command
from lbctl.cli.options import options_of
from lbctl.cli.server_options import server_options

option = options_of("reload")
_STAYS = "; the last valid configuration stays in use"
_MESSAGES = {
    "published": "published the files: snapshot {version}",
    "unchanged": "nothing changed: snapshot {version}",
    "invalid": f"the files have errors{_STAYS}",
    "refused": f"rejected: the files would remove too many replicas or keys at once{_STAYS}",
    "rolled_back": "a rollback is active: the files are ignored until they change, or until another `lbctl rollback`",
    "unsound": f"the files result in configuration that proxies would reject{_STAYS}",
}


@click.command("reload", cls=Command, examples="lbctl reload --fleet fleet.yaml")
@option(
    "--allow-shrink", is_flag=True, help="Allow the removal of more replicas or keys than `control.max_shrink` permits."
)
@server_options(writes=True)
def command(allow_shrink: bool, remote: ServeClient) -> int:
    """Reload the fleet's files in a running lbctl serve.

    The exit code is 1 if serve does not publish the files because they have errors, or because they remove too many
    replicas or keys without --allow-shrink. serve also sends rejected updates to the proxies again, in case the cause
    has been fixed.
    """
    request = schema.ReloadRequest(allow_shrink)
    answer = remote.post("/api/v1/reload", request, schema.ReloadResult)
    for item in answer.diagnostics:
        click.echo(item.text, err=True)
    click.echo(f"lbctl: {_message(answer)}", err=True)
    if answer.offered_again:
        click.echo(f"lbctl: number of rejected resources that serve sends again: {answer.offered_again}", err=True)
    return 0 if answer.result in ("published", "unchanged") else 1


def _message(answer: schema.ReloadResult) -> str:
    version = answer.snapshot.version if answer.snapshot else "none"
    message = _MESSAGES.get(answer.result, answer.result).format(version=version)
    return message if answer.snapshot else message.replace(_STAYS, "; nothing is published yet")
