"""Finds the agent's replica in a fleet, and returns the settings that the fleet defines for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from lbctl.agent.settings import ENGINE_KINDS
from lbctl.base.diagnostics import Diagnostics, did_you_mean
from lbctl.base.hosts import is_loopback
from lbctl.cli.fleet import load, show
from lbctl.compile.files import files_on_disk
from lbctl.ir.address import Address
from lbctl.ir.pools import HttpCheck, Pool, Replica
from lbctl.signals.plan import ScrapeSource, scrape_plan
from lbctl.targets.load import Loaded

_MAX_LISTED = 10
"""Maximum number of addresses or replicas listed in a message."""
_ANY_PORT = 9


def fleet_settings(paths: tuple[str, ...], replica: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """Map setting names to values for the named replica, or for the replica on this machine.

    `given` contains the settings from options, which the fleet does not have to define. Raises ClickException.
    """
    loaded = _loaded(paths)
    agents = {
        f"{pool.name}/{item.name}": (pool, item)
        for pool in loaded.compiled.topology.pools
        if pool.agent is not None
        for item in pool.replicas
    }
    if not agents:
        raise click.ClickException("--fleet: no pool with listed replicas has health.agent (set it, or use --engine)")
    name = _on_this_machine(agents) if replica is None else _named(replica, agents)
    pool, item = agents[name]
    found = {
        **({} if "engine" in given else {"engine": _engine(name, pool, item)}),
        **({} if "bind" in given else {"bind": _bind(name, pool, item)}),
        **({} if "health_path" in given else _health_check(name, pool)),
        "fatal_xids": pool.deep.fatal_xids,
    }
    if pool.deep.stalled_after is not None:
        found["stalled_after"] = pool.deep.stalled_after / 1000
    if item.devices:
        found["devices"] = item.devices
    return {**found, **_key(pool, loaded), **_page(pool, item, given.get("engine") or found["engine"])}


def _loaded(paths: tuple[str, ...]) -> Loaded:
    """Read the fleet. Files that it includes may be missing on this machine. Raises ClickException."""
    diagnostics = Diagnostics()
    loaded = load(paths, diagnostics, require_own_lines=False)
    if loaded is None:
        show(item for item in diagnostics if item.severity == "error")
        raise click.ClickException("--fleet: the fleet has errors")
    return loaded


def _named(replica: str, agents: Iterable[str]) -> str:
    if replica in agents:
        return replica
    hint = did_you_mean(replica, agents)
    raise click.UsageError(
        f"--replica: {replica!r} is not a listed replica with health.agent" + (f" ({hint})" if hint else "")
    )


def _on_this_machine(agents: Mapping[str, tuple[Pool, Replica]]) -> str:
    """Return the name of the only replica whose address belongs to this machine. Raises ClickException."""
    resolved = {item.address.host: _addresses(item.address.host) for _, item in agents.values()}
    own = [name for name, (_, item) in agents.items() if any(map(is_own, resolved[item.address.host]))]
    if len(own) == 1:
        return own[0]
    if own:
        raise click.ClickException(
            f"--fleet: {len(own)} replicas have an address on this machine: {_listed(own)} (set --replica)"
        )
    compared = [_compared(host, addresses) for host, addresses in sorted(resolved.items())]
    raise click.ClickException(
        f"--fleet: no replica with health.agent has an address on this machine; compared: {_listed(compared)} "
        "(set --replica)"
    )


def _compared(host: str, addresses: tuple[str, ...]) -> str:
    if addresses == (host,):
        return host
    return f"{host or 'a Unix socket'} ({', '.join(addresses) or 'no address'})"


def _listed(items: list[str]) -> str:
    more = f" and {len(items) - _MAX_LISTED} more" if len(items) > _MAX_LISTED else ""
    return ", ".join(items[:_MAX_LISTED]) + more


def _addresses(host: str) -> tuple[str, ...]:
    """Return a host's IP addresses. Empty if it cannot be resolved, or for a Unix socket."""
    if not host:
        return ()
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    return tuple(dict.fromkeys(str(item[4][0]) for item in found))


def is_own(address: str) -> bool:
    """Return whether the address belongs to this machine.

    If it does, the system also uses it as the source address for traffic to it. Connecting a UDP socket selects the
    source address without sending anything.
    """
    if is_loopback(address):
        return True
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, _ANY_PORT))
        except OSError:
            return False
        return bool(probe.getsockname()[0] == address)


def _engine(name: str, pool: Pool, item: Replica) -> str:
    """Return the engine's URL. Raises ClickException if it does not use HTTP/1 without TLS."""
    port = pool.agent.engine_port if pool.agent is not None else None
    unusable = {
        "listens on a Unix socket": bool(item.address.path),
        "uses TLS": pool.tls is not None,
        "uses gRPC": pool.protocol == "grpc" and port is None,
    }
    for reason, applies in unusable.items():
        if applies:
            raise click.ClickException(f"--fleet: {name} {reason} (set --engine to an HTTP URL of the engine)")
    return f"http://{Address(item.address.host, port or item.address.port)}"


def _bind(name: str, pool: Pool, item: Replica) -> Address:
    """Return the address at which proxies check the agent. Raises ClickException if it is not on this machine."""
    assert pool.agent is not None
    own = next(filter(is_own, _addresses(item.address.host)), None)
    if own is None:
        raise click.ClickException(f"--fleet: no address of {name} is on this machine (set --bind)")
    return Address(own, item.agent_port or pool.agent.port)


def _health_check(name: str, pool: Pool) -> dict[str, Any]:
    """Return the settings of the engine's health check. Raises ClickException if it is not an HTTP check."""
    probe = pool.agent.probe if pool.agent is not None else None
    if probe is None:
        return {}
    if not isinstance(probe, HttpCheck):
        raise click.ClickException(f"--fleet: the health check of {name} does not use HTTP (set --health-path)")
    if probe.body_contains is not None:
        click.echo("lbctl: warning: the agent does not check health.active's `body_contains`", err=True)
    return {"health_path": probe.path, "health_statuses": probe.statuses}


def _key(pool: Pool, loaded: Loaded) -> dict[str, Any]:
    """Return the settings for the API key that the engine requires."""
    header = pool.credentials
    if header is None or header.file is None:
        return {}
    file = Path(files_on_disk(loaded.source).get(header.file, header.file))
    if not os.access(file, os.R_OK):
        click.echo(f"lbctl: warning: the key file {file} cannot be read, so the agent sends no key", err=True)
    return {"key_header": header.name, "key_prefix": header.text, "key_file": str(file)}


def _page(pool: Pool, item: Replica, engine: str) -> dict[str, Any]:
    """Return the engine's kind and metrics page, and the free-memory limit unless the engine reserves memory."""
    plan = scrape_plan(pool, item)
    source = next(filter(_is_engine, plan.sources), None) if plan else None
    if source is None or source.table is None:
        return {}
    parts = urlsplit(source.url)
    is_same = f"{parts.scheme}://{parts.netloc}" == engine
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    found = {"kind": source.kind, "metrics_path": path if is_same else source.url}
    return found if source.table.reserves_memory else {**found, "min_free_memory": pool.deep.min_free_memory}


def _is_engine(source: ScrapeSource) -> bool:
    return source.kind in ENGINE_KINDS
