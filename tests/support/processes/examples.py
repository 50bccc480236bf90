"""The files in examples/ as running proxies, with only the necessary changes for this machine.

Replicas, certificates and the listener's address are on loopback, checks are more frequent, and ejections are shorter.
If the example names a proxy, it has the kind under test. Everything else is unchanged.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext
from typing import Any

import yaml

from tests.support.fleets import Fleet
from tests.support.paths import ROOT
from tests.support.processes.binaries import Kind
from tests.support.processes.certs import Authority, Pair, client_context, server_context
from tests.support.processes.checks import OFTEN
from tests.support.processes.fleet import Gateway, bind, running
from tests.support.processes.grpc_replica import GrpcReplica
from tests.support.processes.replicas import Replica

FOLDER = ROOT / "examples"
NAME = "inference.example.com"
"""Default host name of the certificates."""

_FORGIVEN = {"ejection_time": "3s", "error_rate": {"window": "1s"}}
"""An ejection ends after the checks have found that the replica is down."""
_ELSEWHERE = re.compile(r"\b(?!127\.)\d+\.\d+\.\d+\.\d+:")


@dataclass(frozen=True)
class Site:
    """A running example: its gateway, and its replicas by their names in the file."""

    gateway: Gateway
    trust: SSLContext
    http: Mapping[str, Replica]
    grpc: Mapping[str, GrpcReplica]
    checked: Replica
    """Answers the checks of pools with a separate health port."""

    def named(self, start: str) -> list[Replica]:
        """Return the HTTP replicas whose names have this prefix."""
        return [replica for name, replica in self.http.items() if name.startswith(start)]


@contextmanager
def example(
    name: str,
    kind: Kind,
    *,
    place: str | None = None,
    files: Mapping[str, str] | None = None,
    change: Callable[[Fleet], None] = lambda fleet: None,
) -> Iterator[Site]:
    """Start `name` (without .yaml). `place`: the example's proxy that supplies region and zone.

    `change` reduces numbers that a test cannot reach.
    """
    fleet: Fleet = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    with ExitStack() as stack:
        authority = Authority(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        http, grpc = _replicas(stack, fleet, authority)
        checked = stack.enter_context(Replica("checked"))
        _soon(fleet, checked)
        written: dict[str, str | bytes] = {**_certificates(fleet, authority), **(files or {})}
        fleet["listeners"] = {each: {**keys, "bind": bind()} for each, keys in fleet["listeners"].items()}
        if place is not None:
            fleet["proxies"] = {"under-test": _proxy(kind, fleet["proxies"][place])}
        change(fleet)
        assert not _ELSEWHERE.search(json.dumps(fleet)), "an address of the file is still there"
        tls = any("tls" in keys for keys in fleet["listeners"].values())
        trust = client_context(authority.ca)
        started = running(kind, fleet, files=written, tls=trust if tls else None, server_name=NAME if tls else None)
        gateway = stack.enter_context(started)
        yield Site(gateway, trust, http, grpc, checked)


def _replicas(
    stack: ExitStack, fleet: Fleet, authority: Authority
) -> tuple[dict[str, Replica], dict[str, GrpcReplica]]:
    http: dict[str, Replica] = {}
    grpc: dict[str, GrpcReplica] = {}
    for pool in fleet["pools"].values():
        pair = _pair(pool, authority)
        for entry in pool["replicas"]:
            name = entry["name"]
            entry.pop("ports", None)
            if pool.get("protocol") == "grpc":
                grpc[name] = stack.enter_context(GrpcReplica(name, pair))
                entry["address"] = grpc[name].address
            else:
                http[name] = stack.enter_context(Replica(name, tls=server_context(pair) if pair else None))
                entry["address"] = http[name].address
    return http, grpc


def _pair(pool: dict[str, Any], authority: Authority) -> Pair | None:
    """Return the certificate of a pool's replicas; `system` becomes the CA of the test."""
    if "tls" not in pool:
        return None
    if pool["tls"]["ca"] == "system":
        pool["tls"]["ca"] = "tls/system.crt"
    return authority.issue(pool["tls"].get("server_name") or pool["upstream"]["host"])


def _soon(fleet: Fleet, checked: Replica) -> None:
    """Check replicas so often that a dead replica is noticed within seconds, and its return soon after."""
    for pool in (*fleet["pools"].values(), fleet.get("defaults", {}).get("pool", {})):
        active = pool.get("health", {}).get("active")
        if active is not None:
            active.update(OFTEN)
            pool["health"].setdefault("passive", {}).update(_FORGIVEN)
            if "port" in active:
                active["port"] = checked.port


def _certificates(fleet: Fleet, authority: Authority) -> dict[str, bytes]:
    """Return the files that the fleet names, by path; `running` writes them."""
    files: dict[str, bytes] = {}
    for listener in fleet["listeners"].values():
        for number, item in enumerate(listener.get("tls", {}).get("certificates", ())):
            pair: Pair = authority.issue(f"gateway-{number}", item.get("hosts", (NAME,)))
            files[item["certificate"]] = pair.certificate.read_bytes()
            files[item["key"]] = pair.key.read_bytes()
    for pool in fleet["pools"].values():
        if "tls" in pool:
            files[pool["tls"]["ca"]] = authority.ca.read_bytes()
    return files


def _proxy(kind: Kind, written: Mapping[str, Any]) -> dict[str, Any]:
    where = {key: written[key] for key in ("region", "zone")}
    return {"kind": kind, **where, **({"admin": bind()} if kind == "envoy" else {})}
