"""Rules about security: encryption, authentication, secrets, addresses, shared stores, and known vulnerabilities."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path as File
from urllib.parse import unquote, urlsplit

from lbctl.base.diagnostics import Path
from lbctl.base.hosts import address_of, is_forbidden, is_loopback, is_metadata
from lbctl.compile.files import file_of, named_files
from lbctl.compile.proxies import version_text
from lbctl.compile.secrets import key_files
from lbctl.ir.listeners import Listener
from lbctl.ir.routes import Redirect
from lbctl.ir.secrets import CREDENTIAL_HEADERS, looks_like_secret
from lbctl.ir.snapshot import Snapshot, view
from lbctl.ir.store_url import STORES, parse_store_url
from lbctl.ir.written_credentials import of_topology
from lbctl.lint.fleet_view import FleetView, telemetries
from lbctl.lint.rule import RuleFinding, rule
from lbctl.model.node import Node
from lbctl.targets.advisories import described, known_faults

_OWN_CREDENTIAL = (
    "to send a key to the replicas, set pools.NAME.credentials: {header: authorization, file: FILE}; "
    "to forward the clients' keys, set forward_credentials: true in auth"
)
_CONTROL_KEYS: tuple[Path, ...] = (
    ("control", "xds", "tls", "key"),
    ("control", "api", "tls", "key"),
    ("control", "api", "token_file"),
    ("control", "store", "key_file"),
    ("control", "store", "password", "file"),
)
"""Fields of `control` that name a file with a secret."""


@rule("LB520")
def listener_without_tls(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report listeners without TLS that other machines can reach (LB520)."""
    for listener in fleet.topology.listeners:
        if listener.tls is None and not listener.bind.on_loopback and not _only_redirects(fleet, listener):
            message = f"other machines can reach {listener.bind}, and prompts and keys are sent in clear text"
            hint = "set tls: {certificates: …}"
            hint += "" if _is_in_gateway(fleet, listener) else ", or bind to 127.0.0.1"
            yield RuleFinding(("listeners", listener.name, "bind"), message, hint)


def _is_in_gateway(fleet: FleetView, listener: Listener) -> bool:
    """Return whether a Kubernetes gateway, which has no listen addresses, serves the listener."""
    proxies = (proxy for proxy in fleet.topology.proxies if proxy.kubernetes)
    return any(not proxy.listeners or listener.name in proxy.listeners for proxy in proxies)


def _only_redirects(fleet: FleetView, listener: Listener) -> bool:
    """Return whether every route of the listener redirects clients elsewhere."""
    actions = {route.name: route.action for route in fleet.topology.routes}
    return bool(listener.rules) and all(isinstance(actions[rule.route], Redirect) for rule in listener.rules)


@rule("LB534")
def open_listener(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report unauthenticated routes to replicas on public listeners (LB534)."""
    for listener in filter(_is_open, fleet.topology.listeners):
        routes = {rule.route for rule in listener.rules}
        names = sorted(route.name for route, _ in fleet.forwards if route.name in routes and route.auth is None)
        if names:
            message = f"any client that can reach {listener.bind} can use {', '.join(names)} without credentials"
            hint = "set auth: {api_keys: {file: …}} on its routes, or client_certificate: required"
            yield RuleFinding(("listeners", listener.name, "bind"), message, hint)


def _is_open(listener: Listener) -> bool:
    """Return whether other machines can reach the listener without a client certificate."""
    tls = listener.tls
    demands_certificate = tls is not None and tls.client_ca is not None and tls.client_certificate == "required"
    return not demands_certificate and not listener.bind.on_loopback


@rule("LB521")
def unverified_upstream_tls(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report TLS to replicas without verification (LB521)."""
    for pool in fleet.pools:
        if pool.tls is not None and pool.tls.ca is None:
            message = "`ca` is not set, so any certificate is accepted"
            yield RuleFinding(("pools", pool.name, "tls", "ca"), message, "ca: FILE")


@rule("LB522")
def xds_without_client_certificates(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report an xDS port that other machines can reach without client certificates (LB522)."""
    control = fleet.topology.control
    if not control.xds_bind.on_loopback and (control.xds_tls is None or control.xds_tls.client_ca is None):
        message = f"any client that can reach {control.xds_bind} can read the fleet, including its keys"
        yield RuleFinding(("control", "xds", "bind"), message, "tls: {certificate: …, key: …, client_ca: …}")


@rule("LB523")
def api_without_protection(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report an API that other machines can reach without TLS and a token (LB523)."""
    control = fleet.topology.control
    if not control.api_bind.on_loopback and (control.api_tls is None or control.api_token_file is None):
        message = f"any client that can reach {control.api_bind} can control the traffic"
        yield RuleFinding(("control", "api", "bind"), message, "set tls and token_file, or bind to 127.0.0.1")


@rule("LB524")
def secret_in_yaml(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report values that look like secrets (LB524)."""
    for path, node in _texts(fleet.loaded.source.root):
        if looks_like_secret(str(node.value)) or _is_credential(path):
            hint = (
                _OWN_CREDENTIAL if _is_credential(path) else "move it to a file outside git, and refer to the file here"
            )
            yield RuleFinding(path, "this looks like a secret (not shown)", hint)


def _texts(root: Node, path: Path = ()) -> Iterator[tuple[Path, Node]]:
    """Yield every string that is long enough to be a secret, except replica addresses."""
    if isinstance(root.value, dict):
        for key, node in root.value.items():
            if isinstance(node.value, str) and len(node.value) > 7 and key != "address":
                yield (*path, key), node
            elif isinstance(node.value, dict | list):
                yield from _texts(node, (*path, key))
    elif isinstance(root.value, list):
        for index, node in enumerate(root.value):
            if isinstance(node.value, str) and len(node.value) > 7:
                yield (*path, index), node
            elif isinstance(node.value, dict | list):
                yield from _texts(node, (*path, index))


def _is_credential(path: Path) -> bool:
    sets = path[:1] in (("routes",), ("defaults",)) and path[-4:-1] == ("headers", "request", "set")
    return sets and str(path[-1]).lower() in CREDENTIAL_HEADERS


@rule("LB525")
def world_readable_key_file(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report key files that all users can read (LB525)."""
    for path, node in _key_files(fleet):
        file = file_of(fleet.loaded.source, node)
        if _readable_by_all(file):
            yield RuleFinding(path, "all users of this machine can read this file", f"chmod 600 {node.value}")


def _key_files(fleet: FleetView) -> Iterator[tuple[Path, Node]]:
    source, keys = fleet.loaded.source, fleet.loaded.secrets.api_keys
    for path, node in named_files(source.root):
        if (
            path[-1] in {"key", "kubeconfig"}
            or path[2:3] in {("upstream",), ("credentials",)}
            or (
                path[-2:] in {("api_keys", "file"), ("basic", "file")}
                and any(key.key for key in keys.get(str(node.value), ()))
            )
        ):
            yield path, node
    for path in _CONTROL_KEYS:
        written = fleet.written(path)
        if written is not None:
            yield path, written


def _readable_by_all(file: File) -> bool:
    try:
        mode = file.stat().st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) and bool(mode & stat.S_IROTH)


_MIN_KEY_LENGTH = 16
"""Minimum length, in characters, of a random key that cannot be guessed."""


@rule("LB532")
def guessable_key(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report keys that are short or equal to a tenant's name (LB532)."""
    for file in key_files(fleet.loaded.source):
        keys = fleet.loaded.secrets.api_keys.get(file.written, ())
        tenants = {key.tenant for key in keys}
        if file.has_users:
            continue
        lines = sorted(key.line for key in keys if key.key and (len(key.key) < _MIN_KEY_LENGTH or key.key in tenants))
        if lines:
            more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
            message = (
                f"the key on line {lines[0]}{more} has fewer than {_MIN_KEY_LENGTH} characters, or is a tenant's name"
            )
            yield RuleFinding(file.path, message, "create one with `lbctl key new TENANT`")


@rule("LB526")
def metrics_from_forbidden_address(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report metrics URLs of metadata services and of other addresses that no replica can have (LB526)."""
    for pool in fleet.pools:
        for path, telemetry in telemetries(pool):
            for index, source in enumerate(telemetry.sources):
                problem = _address_problem(_host(source.url))
                if problem:
                    yield RuleFinding((*path, "sources", index, "url"), problem, "http://{host}:PORT/metrics")


def _host(url: str) -> str:
    """Return the URL's host as a client parses it; `host` or `address` means the replica's own address."""
    try:
        return unquote(urlsplit(url.replace("{", "").replace("}", "")).hostname or "")
    except ValueError:
        return ""


def _address_problem(host: str) -> str:
    """Return the problem with the address, or an empty string."""
    address = address_of(host)
    if is_metadata(host, address):
        return "this address returns the machine's credentials, not metrics"
    return "no replica can have this address" if address is not None and is_forbidden(address) else ""


@rule("LB246")
def metrics_beyond_loopback(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report proxy metrics that all clients can read (LB246)."""
    for proxy in fleet.topology.proxies:
        if proxy.metrics is not None and not proxy.metrics.on_loopback:
            message = f"any client that can reach {proxy.metrics} can read this proxy's metrics"
            yield RuleFinding(("proxies", proxy.name, "metrics"), message, "127.0.0.1")


@rule("LB538")
def credentials_at_admin_port(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report credentials that local users can read at an admin port (LB538)."""
    if not of_topology(fleet.topology):
        return
    for proxy in fleet.topology.proxies:
        if proxy.admin is not None and not proxy.admin.path:
            message = f"every user of the machine can read the fleet's credentials at {proxy.admin}"
            yield RuleFinding(("proxies", proxy.name, "admin"), message, '"unix:/run/envoy/admin.sock"')


@rule("LB536")
def unsigned_store(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report a shared store without a key file (LB536)."""
    store = fleet.topology.control.store
    if store is not None and store.key_file is None:
        message = "any client that can write to the store can change the published fleet"
        yield RuleFinding(("control", "store"), message, "key_file: FILE; create the key with openssl rand -hex 32")


@rule("LB537")
def open_store(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report a store on another machine without TLS or without a password (LB537)."""
    store = fleet.topology.control.store
    if store is None:
        return
    url = parse_store_url(store.url)
    if all(is_loopback(host) for host, _ in url.hosts):
        return
    missing, hints = [], []
    if not url.secure:
        missing.append("without TLS")
        hints.append(f"{STORES[url.kind].tls}://")
    if store.password_file is None and store.certificate is None:
        missing.append("without a password or a client certificate")
        hints.append("password: {file: FILE}")
    if missing:
        yield RuleFinding(
            ("control", "store", "url"), f"{url.places} is used {' and '.join(missing)}", ", ".join(hints)
        )


@rule("LB535")
def proxy_with_known_faults(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report proxy versions with published vulnerabilities that the rendered configuration can trigger (LB535)."""
    snapshot = Snapshot(fleet.topology)
    for proxy in fleet.topology.proxies:
        path = ("proxies", proxy.name, "version")
        if fleet.written(path) is None:
            continue
        faults = list(known_faults(proxy.kind, proxy.version, view(snapshot, proxy)))
        if faults:
            finding, hint = described(faults, proxy.version)
            yield RuleFinding(path, f"{proxy.kind} {version_text(proxy.version)} has {finding}", hint)
