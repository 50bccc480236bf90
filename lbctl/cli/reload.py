"""`lbctl reload`: a running `serve` reads its files now, also where that loses more replicas than it does by itself."""

from __future__ import annotations

from typing import Any

import click

from lbctl.cli.options import options_of
from lbctl.cli.remote import Server, server_options

option = options_of("reload")
_SAID = {
    "published": "the files are served: snapshot {version}",
    "unchanged": "nothing has changed: snapshot {version}",
    "invalid": "the files have errors; what was served before still is",
    "refused": "refused: the files would lose too many replicas at once; what was served before still is",
    "unsound": "the files lead to something that no proxy would take; what was served before still is",
}


@click.command("reload")
@option("--allow-shrink", is_flag=True, help="Also where more replicas go than `control.max_shrink` allows.")
@server_options("reload")
def command(allow_shrink: bool, server: str, token_file: str | None, tls_ca: str | None) -> int:
    """Have a running `lbctl serve` read its files again, now.

    Exit code 1 where they are not served: they have errors, or would lose too many replicas without --allow-shrink.
    """
    answer = Server(server, token_file, tls_ca).post("/api/v1/reload", {"allow_shrink": allow_shrink})
    for item in answer.get("diagnostics", []):
        click.echo(item["text"], err=True)
    click.echo(f"lbctl: {_words(answer)}", err=True)
    return 0 if answer.get("result") in ("published", "unchanged") else 1


def _words(answer: dict[str, Any]) -> str:
    result = str(answer.get("result"))
    version = (answer.get("snapshot") or {}).get("version", "none")
    return _SAID.get(result, result).format(version=version)
