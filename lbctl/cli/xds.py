"""`lbctl xds get|watch`, which shows a proxy's resources from lbctl or any other control plane that supports ADS.

It sends the same requests and acknowledgements as a proxy. It never shows secrets and makes no changes.
"""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import aclosing
from datetime import datetime
from typing import TYPE_CHECKING

import click

from lbctl.base.errors import reason_of
from lbctl.cli.ads import Ads, ads_options
from lbctl.cli.command import Group
from lbctl.cli.options import options_of, output_option
from lbctl.xds.resource import SHORT

if TYPE_CHECKING:
    from lbctl.xds.client.ads import XdsAddress
    from lbctl.xds.client.reader import ClientNode, Reader, ResponseChange

_FULL = {short: type_url for type_url, short in SHORT.items()}
_SHOWN_NAMES = 20
"""Maximum number of names shown for each kind of change on a line of `watch` output."""
_RETRY = (0.25, 5.0)
"""First and longest delay, in seconds, before `watch` reconnects."""

option = options_of("xds")
_type = option("--type", "kind", type=click.Choice(list(_FULL)), help="Show only this type (default: all).")


@click.group("xds", cls=Group)
def command() -> None:
    """Show the xDS resources that a proxy would receive.

    lbctl connects to a control plane like a proxy, over state-of-the-world ADS.
    """


@command.command("get", examples="lbctl xds get --node edge-1 --type eds")
@ads_options()
@_type
@output_option("xds", ("yaml", "json"))
@option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="Seconds to wait for the resources.",
)
def get(ads: Ads, kind: str | None, form: str, timeout: float) -> int:
    """Print a node's resources by type.

    lbctl also requests the endpoints, routes and secrets that clusters and listeners refer to. It does not print keys
    or credentials. If a resource does not arrive in time, lbctl prints the other resources and exits with code 3.
    """
    _quiet()
    from lbctl.xds.client.reader import Reader

    reader = Reader(_node(ads), _types(kind))
    code, message = asyncio.run(_get(_server(ads), reader, timeout))
    if message:
        click.echo(f"lbctl: {message}", err=True)
    if code == 0 or any(reader.resources(each) for each in SHORT):
        click.echo(_text(reader, kind, form), nl=False)
    return code


@command.command("watch", examples="lbctl xds watch --xds 127.0.0.1:18000 --node edge-1")
@ads_options()
@_type
def watch(ads: Ads, kind: str | None) -> int:
    """Print a line for each change to the resources.

    Each line shows the time, the type, the added, changed and removed names, and the version. The command runs until
    Ctrl-C, and reconnects if it loses the connection to the control plane.
    """
    _quiet()
    from lbctl.xds.client.reader import Reader

    reader = Reader(_node(ads), _types(kind))
    return asyncio.run(_watch(_server(ads), reader, kind))


def _quiet() -> None:
    """Silence gRPC's own log lines, which only repeat the error. This must run before gRPC is imported."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def _node(ads: Ads) -> ClientNode:
    from lbctl.xds.client.reader import ClientNode

    return ClientNode(ads.node, region=ads.region, zone=ads.zone)


def _server(ads: Ads) -> XdsAddress:
    from lbctl.xds.client.ads import XdsAddress

    if ads.problem:
        click.echo(f"lbctl: {ads.problem}; trying {ads.xds}", err=True)
    return XdsAddress(str(ads.xds), ads.ca, ads.certificate, ads.key)


def _types(kind: str | None) -> tuple[str, ...]:
    return (_FULL[kind],) if kind else tuple(SHORT)


async def _get(server: XdsAddress, reader: Reader, timeout: float) -> tuple[int, str]:
    """Read until nothing is missing. Return the exit code and the error message, which is empty on success."""
    from lbctl.xds.client.ads import RefusedError, UnreachableError, read

    try:
        async with asyncio.timeout(timeout), aclosing(read(server, reader, min(5.0, timeout / 2))) as messages:
            async for changes in messages:
                for change in changes:
                    if change.refused:
                        return 1, f"{SHORT[change.type_url]} is invalid and was rejected: {_clean(change.refused)}"
                if not reader.waiting():
                    break
    except TimeoutError:
        return 3, _late(server, reader, timeout)
    except (UnreachableError, RefusedError, OSError) as error:
        return 4 if isinstance(error, UnreachableError) else 1, _reason(error)
    return 0, ""


def _reason(error: Exception) -> str:
    return f"cannot read {error.filename}: {reason_of(error)}" if isinstance(error, OSError) else _clean(str(error))


def _late(server: XdsAddress, reader: Reader, timeout: float) -> str:
    waiting = reader.waiting()
    if any(not names for names in waiting.values()):
        return (
            f"{server.address} accepts connections, but sent nothing to this node within {timeout:g} s: the control "
            "plane has no complete fleet yet, or the node is not one of its proxies (see --node)"
        )
    late = "; ".join(f"{SHORT[kind]} {_some(names)}" for kind, names in waiting.items())
    return f"not received within {timeout:g} s: {late}"


def _text(reader: Reader, kind: str | None, output: str) -> str:
    from lbctl.targets.yaml_text import Writer
    from lbctl.xds.client.show import tree

    resources: dict[str, object] = {
        SHORT[each]: [
            {"name": item.name, "version": item.version, "resource": tree(item.message)}
            for item in reader.resources(each).values()
        ]
        for each in _types(kind)
    }
    if output == "json":
        return json.dumps(resources, indent=2, ensure_ascii=False) + "\n"
    return Writer({}).write(resources)[0]


async def _watch(server: XdsAddress, reader: Reader, kind: str | None) -> int:
    """Print changes until interrupted. Returns (with the exit code) only if the first connection fails."""
    from lbctl.xds.client.ads import RefusedError, UnreachableError, read

    was_connected, lost, pause = False, False, _RETRY[0]
    while True:
        try:
            async with aclosing(read(server, reader)) as messages:
                async for changes in messages:
                    if lost:
                        click.echo(f"lbctl: {server.address} is responding again", err=True)
                    was_connected, lost, pause = True, False, _RETRY[0]
                    _print(changes, kind)
        except (UnreachableError, RefusedError, OSError) as error:
            if not was_connected:
                click.echo(f"lbctl: {_reason(error)}", err=True)
                return 4 if isinstance(error, UnreachableError) else 1
            if not lost:
                click.echo(f"lbctl: {_reason(error)}; trying again", err=True)
            lost = True
        await asyncio.sleep(pause)
        pause = min(pause * 2, _RETRY[1])


def _print(changes: list[ResponseChange], kind: str | None) -> None:
    for change in changes:
        if kind in (None, SHORT[change.type_url]):
            click.echo(_line(change))


def _line(change: ResponseChange) -> str:
    now = datetime.now().astimezone().isoformat(timespec="milliseconds")
    parts = [now, SHORT[change.type_url]]
    for change_kind, names in (("added", change.added), ("changed", change.changed), ("removed", change.removed)):
        if names:
            parts.append(f"{change_kind} {_some(names)}")
    if change.refused:
        parts.append(f"rejected: {_clean(change.refused)}")
    if change.version:
        parts.append(f"version {_clean(change.version)}")
    return "  ".join(parts)


def _some(names: tuple[str, ...]) -> str:
    more = len(names) - _SHOWN_NAMES
    return _clean(", ".join(names[:_SHOWN_NAMES])) + (f" and {more} more" if more > 0 else "")


def _clean(text: str) -> str:
    """Replace control characters in text from a server, because they could affect the terminal."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text)
