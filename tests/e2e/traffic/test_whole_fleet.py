"""The whole contract at once: examples/fleet.yaml is rendered, checked, and started on each proxy, and it answers.

Files, addresses and names of production are replaced as in `--check`, so that the listeners are sockets in a private
directory. In addition, the admin port, the runtime socket and all destinations (replicas, their health ports,
resolvers) of the running proxy are replaced. The destinations are closed ports on loopback, so that no check and no
request leaves the machine.
"""

from __future__ import annotations

import json
import resource
import shutil
import socket
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

from lbctl.apply.files import write_bundle
from lbctl.apply.placeholders import stand_in
from lbctl.base.diagnostics import Diagnostics
from lbctl.cli.fleet import load
from lbctl.compile.files import files_on_disk
from lbctl.ir.address import Address
from lbctl.ir.listeners import Tracing
from lbctl.ir.pools import DnsDiscovery, Pool
from lbctl.ir.snapshot import Snapshot, View
from lbctl.targets import target
from lbctl.targets.prepare import prepare
from tests.support.paths import ROOT
from tests.support.processes.binaries import Kind, require
from tests.support.processes.fleet import render, started
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.proxies import main_file, proxy_of
from tests.support.processes.waiting import eventually

_EXAMPLE = ROOT / "examples" / "fleet.yaml"
_CHAT = {"host": "inference.example.com", "x-tier": "interactive"}


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


def _local(kind: Kind, directory: Path) -> View:
    """Return the example's view for this proxy, with replacements in `directory` for everything that this machine
    lacks."""
    diagnostics = Diagnostics()
    loaded = load((str(_EXAMPLE),), diagnostics)
    assert loaded is not None, "\n".join(map(str, diagnostics))
    (proxy,) = (item for item in loaded.compiled.topology.proxies if item.kind == kind)
    snapshot = Snapshot(loaded.compiled.topology, secrets=loaded.secrets)
    view = prepare(target(kind), loaded.compiled, proxy, snapshot).view
    here = stand_in(view, directory, files_on_disk(loaded.source).get)
    pools = {name: _on_loopback(pool) for name, pool in here.pools.items()}
    runtime = str(directory / "admin.sock") if proxy.runtime_api else None
    admin = _nobody() if proxy.admin else None
    listeners = tuple(replace(item, tracing=item.tracing and _traced_here(item.tracing)) for item in here.listeners)
    return replace(here, proxy=replace(here.proxy, runtime_api=runtime, admin=admin), pools=pools, listeners=listeners)


def _on_loopback(pool: Pool) -> Pool:
    """Return the pool with every address to which a proxy would connect on a closed loopback port."""
    discovery = pool.discovery
    if isinstance(discovery, DnsDiscovery):
        discovery = replace(discovery, port=free_port(), resolvers=tuple(_nobody() for _ in discovery.resolvers))
    active = pool.active and replace(pool.active, port=pool.active.port and free_port())
    replicas = tuple(replace(item, address=_nobody()) for item in pool.replicas)
    return replace(pool, replicas=replicas, discovery=discovery, active=active)


def _traced_here(tracing: Tracing) -> Tracing:
    return replace(tracing, otlp=_nobody())


def _nobody() -> Address:
    return Address(HOST, free_port())


@contextmanager
def _running(kind: Kind) -> Iterator[dict[str, str]]:
    """Start it, and yield the sockets of its listeners, by name."""
    binary = require(kind)
    directory = Path(tempfile.mkdtemp(prefix="lbctl-"))
    directory.chmod(0o755)  # nginx serves as another user
    try:
        view = _local(kind, directory)
        bundle = target(kind).render(view)
        write_bundle(bundle, str(directory))
        sockets = {item.name: str(item.bind.path) for item in view.listeners}
        proxy = proxy_of(kind, binary, directory, directory / main_file(kind), [])
        with _naming_the_file_limit(view), started(proxy):
            eventually(lambda: proxy.assert_alive() is None and all(map(_listens, sockets.values())), pause=0.1)
            yield sockets
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _naming_the_file_limit(view: View) -> Iterator[None]:
    """Check the file limit: a client's connection and a connection to a replica are two open files."""
    needed = 2 * sum(item.max_connections or 0 for item in view.listeners) + 100
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        yield
    except AssertionError as error:
        if most != resource.RLIM_INFINITY and most < needed:
            error.add_note(f"this machine lets a process open {most} files; these listeners need {needed} (ulimit -n)")
        raise


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0


def _ask(path: str, what: str, tls: bool, headers: Mapping[str, str] | None = None) -> _Answer:
    lines = [f"POST {what} HTTP/1.1"]
    sent = {"host": "gateway", "content-length": "2", "content-type": "application/json", **(headers or {})}
    lines += [f"{name}: {value}" for name, value in sent.items()]
    with _connected(path, tls) as client:
        client.sendall("\r\n".join([*lines, "", "{}"]).encode())
        with closing(HTTPResponse(client, method="POST")) as response:
            response.begin()
            response_headers = {name.lower(): value for name, value in response.getheaders()}
            return _Answer(response.status, response_headers, response.read())


@contextmanager
def _connected(path: str, tls: bool) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as plain:
        plain.settimeout(20)
        plain.connect(path)
        if not tls:
            yield plain
            return
        with _any_certificate().wrap_socket(plain, server_hostname="inference.example.com") as client:
            yield client


def _any_certificate() -> ssl.SSLContext:
    """Return a context that accepts the placeholder certificate, which is valid for no name."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _error(answer: _Answer) -> Any:
    return json.loads(answer.body)["error"]["type"]


def test_proxy_accepts_the_rendered_fleet(kind: Kind, tmp_path: Path) -> None:
    require(kind)
    rendered = render(kind, _EXAMPLE, tmp_path / "out", ["--check"])
    assert rendered.code == 0, rendered.stderr
    assert (rendered.directory / main_file(kind)).stat().st_size > 4096


def test_fleet_starts_and_answers(kind: Kind) -> None:
    """Checks the gateway's own responses on both listeners: the fleet's own response, and no route."""
    with _running(kind) as sockets:
        for name, tls in (("public", True), ("internal", False)):
            retired = _ask(sockets[name], "/v0/predict", tls)
            nowhere = _ask(sockets[name], "/nowhere", tls)
            assert (retired.status, retired.body) == (410, b"gone: use /v1/chat/")
            assert (nowhere.status, _error(nowhere)) == (404, "not_found")
            assert len(nowhere.headers.get("x-request-id", "")) >= 16


def test_protected_routes_stay_protected(kind: Kind) -> None:
    """No client has a key, because the placeholder key file is empty.

    If a proxy cannot protect a route, it is closed: Envoy has no limit of concurrent requests by tenant, and nginx does
    not verify tokens.
    """
    with _running(kind) as sockets:
        chat = _ask(sockets["public"], "/v1/chat/completions", True, _CHAT)
        grpc = _ask(sockets["public"], "/inference.GRPCInferenceService/ModelInfer", True)
    assert chat.status == (503 if kind == "envoy" else 401)
    assert grpc.status == (503 if kind == "nginx" else 401)


def test_pool_without_a_live_replica_is_503(kind: Kind) -> None:
    """Discovery, TLS to replicas and a fallback, none of which is reachable here."""
    with _running(kind) as sockets:
        answer = _ask(sockets["internal"], "/v1/embeddings", False)
    assert (answer.status, _error(answer)) == (503, "unavailable")
