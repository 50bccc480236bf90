"""`lbctl up`, which runs `serve` and a proxy in the foreground on this machine, and prints a URL and a key."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.base.errors import reason_of
from lbctl.cli import init
from lbctl.cli.command import Command
from lbctl.cli.options import completions, options_of
from lbctl.up.launchers import LAUNCHERS

if TYPE_CHECKING:
    from lbctl.ir.address import Address
    from lbctl.serve.settings import ServeSettings
    from lbctl.targets.load import Loaded
    from lbctl.up.prepare import PreparedRun, Program

option = options_of("up")
_FLEET = "fleet.yaml"
_IN_USE = "LB972"
_PORTS = 100
"""Number of ports to try for the API and the picker if their addresses are not configured."""


@click.command(
    "up",
    cls=Command,
    examples="""
    lbctl up
    lbctl up --from http://gpu1:8000 http://gpu2:8000
    lbctl up --proxy haproxy fleet.yaml
    """,
)
@click.argument("paths", metavar="[PATH…]", nargs=-1, shell_complete=completions)
@option(
    "--from", "urls", metavar="URL", multiple=True,
    help="Create fleet.yaml from the model server at URL; more URLs can follow.",
)  # fmt: skip
@option(
    "--api-key-file",
    metavar="FILE",
    help="File with an API key. lbctl sends the key to every URL of --from, and the proxies send it to the replicas.",
)
@option(
    "--proxy", "kind", type=click.Choice(LAUNCHERS.names),
    help="Kind of proxy (default: the installed kind that suits the fleet best).",
)  # fmt: skip
def command(paths: tuple[str, ...], urls: tuple[str, ...], api_key_file: str | None, kind: str | None) -> int:
    """Run serve and a local proxy until Ctrl-C.

    PATH… is fleet.yaml by default. With --from URL [URL]…, lbctl first creates fleet.yaml, as `lbctl init` does. If the
    file does not exist and lbctl runs in a terminal, it prompts for the URLs.

    lbctl prints the proxy's URL to standard output. If no route checks API keys, lbctl creates a key, prints it,
    and requires it on all routes, without changing the files. The logs of serve and the proxy go to standard error.

    The exit code is 0 after Ctrl-C, 1 if the fleet cannot run or a process exits, and 4 if no proxy is installed.
    """
    from lbctl.cli import fleet

    if "-" in paths:
        raise click.UsageError("up cannot watch standard input (-)")
    if api_key_file and not urls:
        raise click.UsageError("--api-key-file requires --from")
    if urls:
        urls, paths = (*urls, *paths), ()
    elif not paths and not os.path.lexists(_FLEET):
        urls = _asked_urls()
    key = init.api_key(api_key_file) if api_key_file else ""
    if urls and (code := init.make_and_write(urls, key, _FLEET)):
        return code
    diagnostics = Diagnostics()
    chosen = paths or _default_path(diagnostics)
    loaded = fleet.load(chosen, diagnostics) if chosen else None
    if loaded is None:
        fleet.show(diagnostics)
    ended = _start(loaded, chosen, kind) if loaded else _NotStarted(1)
    if isinstance(ended, int):
        return ended
    if urls:
        init.remove(_FLEET, key)
        click.echo(f"lbctl: nothing was started; removed the new {_FLEET}", err=True)
    return ended.exit_code


@dataclass(frozen=True, slots=True)
class _NotStarted:
    """Exit code if nothing was started."""

    exit_code: int


def _asked_urls() -> tuple[str, ...]:
    """Prompt the user for model server URLs. Empty without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return ()
    click.echo(f"lbctl: there is no {_FLEET} here; lbctl creates it from your model servers", err=True)
    return tuple(
        click.prompt("URLs of the model servers, for example http://gpu1:8000 http://gpu2:8000", err=True).split()
    )


def _default_path(diagnostics: Diagnostics) -> tuple[str, ...]:
    if Path(_FLEET).is_file():
        return (_FLEET,)
    hint = "create it from your model servers and run it: lbctl up --from http://SERVER:8000 …"
    diagnostics.add(Diagnostic("LB001", "the file does not exist", Position(_FLEET), hint=hint))
    return ()


def _start(loaded: Loaded, paths: tuple[str, ...], kind: str | None) -> int | _NotStarted:
    """Report all problems that prevent the fleet from running. If there are none, run it and return the exit code."""
    from lbctl.apply.check import MissingBinaryError
    from lbctl.cli import fleet
    from lbctl.up.fleet_additions import conflicts
    from lbctl.up.places import AlreadyRunningError
    from lbctl.up.proxy_choice import NoProxyError, choose

    problems = list(conflicts(loaded))
    try:
        choice = choose(loaded, kind)
        fleet.show([*problems, *choice.diagnostics])
        if problems or choice.program is None:
            return _NotStarted(1)
        return _locked(loaded, paths, choice.program)
    except (NoProxyError, MissingBinaryError) as error:
        fleet.show(problems)
        click.echo(f"lbctl: {error}", err=True)
        return _NotStarted(4)
    except AlreadyRunningError as error:
        click.echo(f"lbctl: `lbctl up` is already running this fleet: {error}", err=True)
        return _NotStarted(1)
    except OSError as error:
        click.echo(f"lbctl: cannot write {error.filename or 'a file'}: {reason_of(error)}", err=True)
        return _NotStarted(1)


def _locked(loaded: Loaded, paths: tuple[str, ...], program: Program) -> int | _NotStarted:
    from lbctl.cli import fleet
    from lbctl.up.fleet_additions import needs_guard
    from lbctl.up.places import NoHomeError, home_of, private_directory
    from lbctl.up.prepare import prepare_run

    try:
        home = home_of(paths)
    except NoHomeError as error:
        raise click.ClickException(str(error)) from None
    with home.locked(), private_directory() as place:
        settings, api = _settings(loaded, paths, home.state)
        home.announce(str(settings.control.api_bind))
        addresses = {f"listeners.{item.name}.bind": item.bind for item in loaded.compiled.topology.listeners}
        taken = list(_taken({**addresses, "control.api.bind": settings.control.api_bind}))
        taken += _taken_picker(loaded, settings.control.picker_bind)
        key_file = home.key_file if needs_guard(loaded) else None
        diagnostics = Diagnostics()
        diagnostics.extend(loaded.compiled.sources.with_position(item) for item in taken)
        picker = settings.control.picker_bind
        prepared = (
            None if taken else prepare_run(loaded, paths, program, place, diagnostics, key_file, picker, settings.state)
        )
        fleet.show(item for item in diagnostics if item.severity == "error")
        return _run(prepared, program, settings, place, api) if prepared else _NotStarted(1)


def _settings(loaded: Loaded, paths: tuple[str, ...], state: Path) -> tuple[ServeSettings, tuple[str, ...]]:
    """Return the settings and options for `serve`, with free ports for addresses that are not configured."""
    from lbctl.cli.listen_address import address, picker_address
    from lbctl.serve.picker.ports import is_free
    from lbctl.serve.settings import Options, settings

    api = address("LBCTL_SERVE_API_BIND", os.environ.get("LBCTL_SERVE_API_BIND") or None)
    chosen = os.environ.get("LBCTL_SERVE_PICKER_BIND") or None
    picker = picker_address("LBCTL_SERVE_PICKER_BIND", chosen) if chosen else None
    usual = settings(Options(paths, str(state), api_bind=api, picker_bind=picker), loaded.source).control
    reserved = {item.bind.port for item in loaded.compiled.topology.listeners}
    options: list[str] = []
    if api is None and not _is_written(loaded, "api"):
        api = _first_free(usual.api_bind, lambda item: not list(_taken({"": item})))
        options += ("--api-bind", str(api)) if api != usual.api_bind else ()
    reserved.add((api or usual.api_bind).port)
    if picker is None and _is_picked(loaded) and not _is_written(loaded, "picker"):
        picker = _first_free(
            usual.picker_bind, lambda item: not {item.port, item.port + 1} & reserved and is_free(item)
        )
        options += ("--picker-bind", str(picker)) if picker != usual.picker_bind else ()
    return settings(Options(paths, str(state), api_bind=api, picker_bind=picker), loaded.source), tuple(options)


def _is_written(loaded: Loaded, section: str) -> bool:
    """Return whether the files set this control-plane component's address."""
    from lbctl.model.node import descend

    return descend(loaded.source.root, ("control", section, "bind")) is not None


def _is_picked(loaded: Loaded) -> bool:
    return any(pool.balance.pick is not None for pool in loaded.compiled.topology.pools)


def _first_free(usual: Address, is_free: Callable[[Address], bool]) -> Address:
    """Return the default address, or the same address with the next free port."""
    ports = (replace(usual, port=port) for port in range(usual.port, usual.port + _PORTS))
    return next((item for item in ports if is_free(item)), usual)


def _taken_picker(loaded: Loaded, bind: Address) -> Iterator[Diagnostic]:
    """Yield an error if another process is using one of the picker's ports."""
    from lbctl.serve.picker.ports import occupant

    found = occupant(bind) if _is_picked(loaded) else None
    if found is not None:
        path = ("control", "picker", "bind")
        yield Diagnostic(
            _IN_USE,
            f"the picker needs {bind} and the next port: {found.text}",
            path=path,
            hint="stop it, or choose another port",
        )


def _taken(addresses: Mapping[str, Address]) -> Iterator[Diagnostic]:
    """Yield an error for each address that a process cannot currently bind."""
    from lbctl.cli.doctor import ports

    for path, address in addresses.items():
        check = ports.port(ports.BoundAddress(path, address, frozenset()))
        if check.state != "ok" or check.message.startswith("in use"):
            message = f"{address}: {check.message}"
            yield Diagnostic(_IN_USE, message, path=tuple(path.split(".")), hint=check.todo)


def _run(prepared: PreparedRun, program: Program, settings: ServeSettings, place: Path, api: tuple[str, ...]) -> int:
    import asyncio

    from lbctl.up.console import Console, banner
    from lbctl.up.fleet_additions import guard_message
    from lbctl.up.run import Programs, UpError, log_of, run

    console = Console()
    listeners = [item.bind for item in prepared.loaded.compiled.topology.listeners]
    programs = Programs(program.kind, prepared.command, prepared.paths, settings.state, place, listeners, api)
    if prepared.own_key_file is not None:
        console.message(guard_message(prepared.loaded.compiled.topology))

    async def show_and_wait() -> None:
        click.echo(banner(prepared, settings, log_of(programs.place, programs.kind)))
        await asyncio.Event().wait()

    try:
        asyncio.run(run(programs, console.line, show_and_wait))
    except UpError as error:
        console.message(str(error))
        return 1
    return 0
