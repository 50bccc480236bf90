"""`lbctl reload`: a running `serve` reads its files now, also where that loses more replicas than it does by itself."""

from __future__ import annotations

from typing import Any

import click

from lbctl.cli.options import options_of
from lbctl.cli.remote import Server, server_options

option = options_of("reload")
_STAYS = "; what was served before still is"
_SAID = {
    "published": "the files are served: snapshot {version}",
    "unchanged": "nothing has changed: snapshot {version}",
    "invalid": f"the files have errors{_STAYS}",
    "refused": f"refused: the files would lose too many replicas at once{_STAYS}",
    "unsound": f"the files lead to something that no proxy would take{_STAYS}",
}


@click.command("reload")
@option("--allow-shrink", is_flag=True, help="Also where more replicas go than `control.max_shrink` allows.")
@server_options(writes=True)
def command(allow_shrink: bool, server: str, token_file: str | None, tls_ca: str | None) -> int:
    """Have a running `lbctl serve` read its files again, now.

    Exit code 1 where they are not served: they have errors, or would lose too many replicas without --allow-shrink.
    What proxies have refused is offered to them once more, for when its cause has gone.
    """
    answer = Server(server, token_file, tls_ca).post("/api/v1/reload", {"allow_shrink": allow_shrink})
    for item in answer.get("diagnostics", []):
        click.echo(item["text"], err=True)
    click.echo(f"lbctl: {_words(answer)}", err=True)
    if again := answer.get("offered_again"):
        click.echo(f"lbctl: what proxies have refused is offered to them again: {again}", err=True)
    return 0 if answer.get("result") in ("published", "unchanged") else 1


def _words(answer: dict[str, Any]) -> str:
    result = str(answer.get("result"))
    snapshot = answer.get("snapshot")
    words = _SAID.get(result, result).format(version=(snapshot or {}).get("version", "none"))
    return words if snapshot else words.replace(_STAYS, "; nothing is served yet")
