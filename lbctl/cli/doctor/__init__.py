"""`lbctl doctor`, which reports problems on this machine that would prevent the fleet from running. It changes nothing.

It contacts only addresses specified in the fleet or on the command line, each for at most two seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lbctl.api.client import NO_TOKEN, ServeClient, is_on_loopback
from lbctl.base.paths import is_file
from lbctl.base.printable import plain
from lbctl.cli import running_fleet
from lbctl.cli.command import Command
from lbctl.cli.doctor.check import DoctorResult, exit_code
from lbctl.cli.options import completions, options_of, output_option
from lbctl.cli.output import show
from lbctl.cli.server_options import server_options

if TYPE_CHECKING:
    from lbctl.api.any_version import AnyVersionStatus
    from lbctl.ir.address import Address
    from lbctl.ir.topology import Topology
    from lbctl.model.fleet import FleetSource
    from lbctl.serve.settings import ServeSettings
    from lbctl.targets.load import Loaded

option = options_of("doctor")


@dataclass(frozen=True, slots=True)
class _Options:
    """The command-line options.

    `of_server` contains the queried `serve`'s fleet paths, from PATH… or --fleet. `named` indicates whether --server
    was given, and `expected` indicates whether it was given on the command line rather than in the environment.
    """

    paths: tuple[str, ...]
    of_server: tuple[str, ...]
    server: ServeClient
    named: bool
    expected: bool
    state: str | None


@click.command(
    "doctor",
    cls=Command,
    examples="""
    lbctl doctor
    lbctl doctor fleet.yaml
    """,
)
@click.argument("paths", metavar="[PATH…]", nargs=-1, shell_complete=completions)
@options_of("")(
    "--state",
    metavar="DIR",
    help="State directory of serve (default: `control.state` of the fleet, or /var/lib/lbctl).",
)
@output_option("doctor")
@server_options()
@click.pass_context
def command(context: click.Context, paths: tuple[str, ...], state: str | None, form: str, remote: ServeClient) -> int:
    """Check this machine and the fleet for problems.

    lbctl checks the proxies' binaries and versions, ports, access logs, open files, the clock, certificates and keys.
    It also checks the state directory, the shared store, replicas, metrics sources and Kubernetes permissions. If serve
    is running, lbctl also shows its problems and checks its picker.

    \b
    Exit codes:
      0  no check failed; there may be warnings
      1  the fleet has errors
      3  a check failed
      4  something required is missing or not responding
    """
    origin = context.get_parameter_source("server")
    expected = origin is click.core.ParameterSource.COMMANDLINE
    is_default = origin is click.core.ParameterSource.DEFAULT
    fleet: str | None = context.params["fleet"]
    of_server = paths or ((fleet,) if fleet else ())
    options = _Options(paths, of_server, remote, not is_default, expected, state)
    loaded, valid = _fleet(paths)
    checks = list(_checks(options, loaded))
    if form == "table":
        _table(checks)
        click.echo(f"lbctl: {_summary(checks)}", err=True)
    else:
        rows = [{key: value for key, value in asdict(item).items() if key != "absent"} for item in checks]
        show({"checks": rows, "counts": _counts(checks)}, form)
    return exit_code(checks) if valid else 1


def _fleet(paths: tuple[str, ...]) -> tuple[Loaded | None, bool]:
    """Load the fleet, print its errors, and return the fleet and whether it is valid.

    If the fleet is invalid, checks that depend on it are skipped.
    """
    if not paths:
        return None, True
    from lbctl.base.diagnostics import Diagnostics
    from lbctl.cli import fleet

    diagnostics = Diagnostics()
    loaded = fleet.load(paths, diagnostics)
    fleet.show(item for item in diagnostics if item.severity == "error")
    return loaded, loaded is not None


def _checks(options: _Options, loaded: Loaded | None) -> Iterator[DoctorResult]:
    from lbctl.cli.doctor import kubernetes, machine, places, ports, store
    from lbctl.cli.doctor.api import api
    from lbctl.cli.doctor.logs import logs
    from lbctl.cli.doctor.picker import keyless, lacks_picker, picker
    from lbctl.cli.doctor.programs import programs
    from lbctl.cli.doctor.replicas import problems, replicas
    from lbctl.cli.doctor.sources import sources
    from lbctl.serve.fleet.reader import read_control
    from lbctl.serve.settings import Options, settings

    source = loaded.source if loaded else read_control(options.paths).source if options.paths else None
    chosen = settings(Options(options.paths, state=options.state), source)
    topology = loaded.compiled.topology if loaded else None
    yield from programs(topology)
    source_checks, skews = sources(topology.pools, loaded.secrets) if topology and loaded else ([], [])
    source_checks += kubernetes.checks(topology.pools, needed=_needs_discovery(topology, source)) if topology else []
    server, needed = _server(options, source, chosen)
    running = api(server, needed)
    picker_is_elsewhere = lacks_picker(server.url, running.status)
    for bound in ports.of_fleet(topology, picker_is_elsewhere=picker_is_elsewhere) if topology else ():
        yield ports.port(bound)
    own = _of_this_fleet(running.status, options.of_server) if is_on_loopback(server.url) else None
    if source is not None:
        yield from _own_ports(chosen, own, needed=_has_control(source))
    yield from logs(topology) if topology else ()
    yield machine.files(topology.listeners if topology else ())
    yield machine.clock([*skews, *running.skews])
    state = running_fleet.state_of(own) if own is not None and options.state is None else None
    place = Path(state) if state else chosen.state
    is_own = bool(state) and running_fleet.is_own(place)  # another user's serve does not need this directory here
    is_used_here = is_own or (not state and _has_control(source))
    yield places.state(place, needed=is_used_here or options.state is not None)
    if source is not None:
        yield from places.named(source, chosen)
        yield from store.checks(chosen)
    yield from replicas(topology) if topology else ()
    yield from source_checks
    yield running.result
    yield from problems(running.status)
    is_picked = topology is not None and any(pool.balance.pick is not None for pool in topology.pools)
    bind = chosen.control.picker_bind if is_picked else None
    picker_check = picker(bind, server.url, running.status)
    if picker_check is not None:
        yield picker_check
    key_check = keyless(topology) if topology is not None else None
    if key_check is not None:
        yield key_check


def _of_this_fleet(status: AnyVersionStatus | None, paths: Sequence[str]) -> AnyVersionStatus | None:
    """Return the status if that `serve` runs the fleet at one of these paths, or None otherwise."""
    is_own = status is not None and any(running_fleet.runs(status, path) for path in paths)
    return status if is_own else None


def _own_ports(chosen: ServeSettings, own: AnyVersionStatus | None, *, needed: bool) -> Iterator[DoctorResult]:
    """Check the ports that `serve` uses.

    If `serve` is not `needed`, an occupied port causes only a warning, because `render` does not need ports.

    `own` is the status of the `serve` that runs this fleet on this machine, if any. In that case, the addresses that it
    is using are checked.
    """
    from lbctl.cli.doctor import ports
    from lbctl.cli.listen_address import address as parsed

    control = chosen.control
    binds = {"control.xds.bind": control.xds_bind, "control.api.bind": control.api_bind}
    if own is not None:
        listens = own.listens
        texts = {"control.xds.bind": listens.xds, "control.api.bind": listens.api} if listens is not None else {}
        binds = {path: bind for path, text in texts.items() if text and (bind := parsed(path, text)) is not None}
    for path, address in binds.items():
        result = ports.port(ports.BoundAddress(path, address, ports.SERVE))
        yield replace(result, state="warn") if result.state == "failed" and not needed else result


def _server(options: _Options, source: FleetSource | None, chosen: ServeSettings) -> tuple[ServeClient, bool]:
    """Return the server to check, and whether it is required to respond.

    The server is taken from --server, or else from the fleet. If neither specifies one, it is the default server.
    """
    server = options.server
    if options.named:
        return server, options.expected
    bind, token = chosen.control.api_bind, server.token_file or NO_TOKEN
    if not _has_control(source) or bind.path:
        return replace(server, token_file=token), False
    scheme = "https" if chosen.control.api_tls else "http"
    if not token and not bind.on_loopback and is_file(chosen.token):
        token = str(chosen.token)  # never on loopback, because reads need no token there and any process can listen
    return replace(server, url=f"{scheme}://{_local_address(bind)}", token_file=token), False


def _local_address(bind: Address) -> str:
    from lbctl.base.hosts import from_here
    from lbctl.ir.address import Address

    return str(Address(from_here(bind.host), bind.port))


def _needs_discovery(topology: Topology, source: FleetSource | None) -> bool:
    """Return whether discovery is needed by `serve`, or by a proxy other than a Kubernetes gateway."""
    from lbctl.targets import is_kubernetes

    in_clusters = [is_kubernetes(item.kind) for item in topology.proxies]
    return not in_clusters or not all(in_clusters) or _has_control(source)


def _has_control(source: FleetSource | None) -> bool:
    return source is not None and "control" in source.fleet.model_fields_set


def _table(checks: Sequence[DoctorResult]) -> None:
    """Print the checks. Advice is printed on a separate line, because result and advice are both sentences."""
    rows = [
        ("CHECK", "STATE", "RESULT, AND → ADVICE"),
        *((plain(item.what), item.state, plain(item.message)) for item in checks),
    ]
    width, state_width = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    for (what, state, finding), todo in zip(rows, ["", *(item.todo for item in checks)], strict=True):
        click.echo(f"{what:<{width}}  {state:<{state_width}}  {finding}")
        if todo:
            click.echo(f"{'':<{width + state_width + 4}}→ {plain(todo)}")


def _counts(checks: Sequence[DoctorResult]) -> dict[str, int]:
    counts = Counter(str(item.state) for item in checks)
    return {state: counts[state] for state in ("ok", "warn", "failed", "skipped")}


def _summary(checks: Sequence[DoctorResult]) -> str:
    counts = _counts(checks)
    parts = [
        f"{counts[state]} {label}"
        for state, label in (("failed", "failed"), ("warn", "with warnings"))
        if counts[state]
    ]
    return ", ".join(parts) or "no problems"
