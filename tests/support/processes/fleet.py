"""Turns a fleet, as a dict, into a real proxy that serves it: written as YAML, rendered by the lbctl command, started.

The shortest way is `with running(kind, fleet_of(pool)) as gateway:`. Only lbctl's command is used.
"""

from __future__ import annotations

import io
import json
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from ssl import SSLContext
from typing import Any

from lbctl.cli import run
from tests.support import fleets
from tests.support.diagnosis import FLEET_CHARACTERS, diagnosed, tail_of
from tests.support.fleets import Fleet, write_fleet
from tests.support.processes.binaries import Binary, rendered_version, require
from tests.support.processes.client import Client
from tests.support.processes.grpc_replica import GrpcReplica
from tests.support.processes.log_lines import began
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.proxies import Proxy, kind_of, main_file, proxy_of
from tests.support.processes.replicas import Replica


def bind() -> str:
    """Return a free address for a listener, an admin port or another setting of a fleet."""
    return f"{HOST}:{free_port()}"


def entry(replica: Replica | GrpcReplica, **keys: Any) -> dict[str, Any]:
    """Return a replica as an item of a pool's `replicas`, with additional keys (weight, priority, drain …)."""
    return {"name": replica.name, "address": replica.address, **keys}


def pool_of(replicas: Sequence[Replica | GrpcReplica], weights: Sequence[float] = (), **keys: Any) -> dict[str, Any]:
    """Return a pool of these replicas, with their weights if given, and additional keys (balance, health, connections
    …)."""
    keys_of_each = [{"weight": weight} for weight in weights] or [{} for _ in replicas]
    return {"replicas": [entry(replica, **more) for replica, more in zip(replicas, keys_of_each, strict=True)], **keys}


def fleet_of(
    pool: Mapping[str, Any] | Sequence[Replica | GrpcReplica],
    *,
    route: Mapping[str, Any] | None = None,
    listener: Mapping[str, Any] | None = None,
    **sections: Any,
) -> Fleet:
    """Return a fleet from `tests.support.fleets.fleet_of`, on a free port, with a pool of these replicas.

    `route` and `listener` add keys to the route and the listener. `sections` (listeners, routes, pools …) are merged in
    by name.
    """
    whole = pool if isinstance(pool, Mapping) else pool_of(pool)
    return fleets.fleet_of(whole, route=route, listener={"bind": bind(), **(listener or {})}, **sections)


def side_by_side(fleets: Mapping[str, Fleet]) -> Fleet:
    """Return one fleet that contains these, so that one proxy runs all of them.

    The listener of each has the name of the fleet, for `Gateway.connect`; its routes and pools get it as a prefix.
    """
    whole: Fleet = {"version": 1, "listeners": {}, "routes": {}, "pools": {}}
    for name, fleet in fleets.items():
        (whole["listeners"][name],) = fleet["listeners"].values()
        whole["pools"].update({f"{name}-{pool}": keys for pool, keys in fleet["pools"].items()})
        for route, keys in fleet["routes"].items():
            whole["routes"][f"{name}-{route}"] = {**_with_pool_prefix(keys, f"{name}-"), "listeners": [name]}
    return whole


def _with_pool_prefix(route: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return the route with the prefix before the name of each pool."""
    keys = dict(route)
    for key in ("pool", "fallback"):
        if key in keys:
            keys[key] = prefix + keys[key]
    if "split" in keys:
        keys["split"] = {prefix + pool: share for pool, share in keys["split"].items()}
    if "mirror" in keys:
        keys["mirror"] = {**keys["mirror"], "pool": prefix + keys["mirror"]["pool"]}
    if "pin" in keys:
        keys["pin"] = [{**pin, "pool": prefix + pin["pool"]} for pin in keys["pin"]]
    return keys


@dataclass(frozen=True, slots=True)
class Rendered:
    """The result of `lbctl render`: exit code, both outputs, and its output directory."""

    code: int
    stdout: str
    stderr: str
    directory: Path


def put(directory: Path, files: Mapping[str, str | bytes]) -> None:
    """Write files, by relative path, into `directory`."""
    for name, content in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def render(name: Binary, path: Path, directory: Path, options: Sequence[str] = ()) -> Rendered:
    """Run the command `lbctl render -t KIND -d directory path`, without checking the result.

    It runs in this process: a thousand tests would otherwise spend more time on starting Python than on their proxies.
    """
    version = rendered_version(name)
    command = ["render", "-t", kind_of(name), "-d", str(directory), *(["--proxy-version", version] if version else [])]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run([*command, *options, str(path)])
    return Rendered(code, out.getvalue(), err.getvalue(), directory)


class Gateway(Client):
    """A running proxy, and a client of one of its listeners."""

    def __init__(
        self, proxy: Proxy, ports: Mapping[str, int], client: Client, rendering: _Rendering | None = None
    ) -> None:
        super().__init__(client.port, client.tls, client.server_name)
        self.proxy = proxy
        self.ports = dict(ports)
        self._rendering = rendering

    @property
    def messages(self) -> str:
        """Return the standard error of the last `lbctl render`: its warnings."""
        return self._rendering.messages if self._rendering else ""

    def fleet_text(self) -> str:
        """Return the YAML of the last rendered fleet; empty for a handwritten configuration."""
        return tail_of(self.proxy.directory / "fleet.yaml", characters=FLEET_CHARACTERS)

    def connect(self, listener: str, tls: SSLContext | None = None, server_name: str | None = None) -> Client:
        """Return a client of another listener, or of the same one with other TLS settings."""
        return Client(self.ports[listener], tls, server_name)

    def access_log(self, count: int, timeout: float = 30.0) -> list[dict[str, Any]]:
        """Return the JSON lines on the proxy's standard output, once there are `count` of them, in the order in which
        their requests began: workers and threads write concurrently. Fails if there are never enough lines."""
        deadline = time.monotonic() + timeout
        while len(lines := _json_lines(self.proxy.stdout)) < count and time.monotonic() < deadline:
            time.sleep(0.05)
        assert len(lines) >= count, f"{len(lines)} lines instead of {count}\n{self.proxy.logs()}"
        return sorted(lines, key=lambda line: began(self.proxy, line))

    def reload(self, fleet: Fleet) -> None:
        """Render the changed fleet, which keeps its listeners, and reload the proxy without a gap."""
        assert self._rendering is not None, "a configuration written by hand is reloaded by proxy.reload()"
        self._rendering.render(fleet)
        self.proxy.reload()


class _Rendering:
    """The directory in which a fleet is written and rendered, again at each reload."""

    def __init__(self, name: Binary, directory: Path, options: Sequence[str]) -> None:
        self.messages = ""
        self._name = name
        self._directory = directory
        self._options = options
        envoy = {"kind": "envoy", "admin": bind(), "config": str(directory / "out" / main_file(name))}
        self._proxies = {"under-test": envoy} if name == "envoy" else None

    def render(self, fleet: Fleet) -> None:
        whole = fleet if "proxies" in fleet or self._proxies is None else {**fleet, "proxies": self._proxies}
        rendered = render(self._name, write_fleet(self._directory, whole), self._directory / "out", self._options)
        assert rendered.code == 0, f"lbctl render ended with {rendered.code}\n{rendered.stderr}"
        self.messages = rendered.stderr


@contextmanager
def running(
    name: Binary,
    fleet: Fleet,
    *,
    files: Mapping[str, str | bytes] | None = None,
    options: Sequence[str] = (),
    listener: str | None = None,
    tls: SSLContext | None = None,
    server_name: str | None = None,
) -> Iterator[Gateway]:
    """Render the fleet for this proxy, start it, and stop it at the end. The test fails if the proxy died.

    `files` are written next to the fleet's YAML under their relative paths. `options` go to `lbctl render`. `listener`
    (by default the first), `tls` and `server_name` are for the client of the gateway. An Envoy gets a free admin port.
    """
    binary = require(name)
    ports = {each: int(str(keys["bind"]).rsplit(":", 1)[1]) for each, keys in fleet["listeners"].items()}
    client = Client(ports[listener or next(iter(ports))], tls, server_name)
    with _directory() as directory:
        put(directory, files or {})
        rendering = _Rendering(name, directory, [*options, *(["--files-root", str(directory)] if files else [])])
        rendering.render(fleet)
        proxy = proxy_of(name, binary, directory, directory / "out" / main_file(name), list(ports.values()))
        gateway = Gateway(proxy, ports, client, rendering)
        with diagnosed(gateway.fleet_text), started(proxy):
            yield gateway


@contextmanager
def serving(name: Binary, text: str, port: int, *, files: Mapping[str, str | bytes] | None = None) -> Iterator[Gateway]:
    """Run the proxy with a handwritten configuration, for the harness's own tests; `files` are written next to it."""
    with _directory() as directory:
        put(directory, files or {})
        config = directory / main_file(name)
        config.write_text(text)
        proxy = proxy_of(name, require(name), directory, config, [port])
        with started(proxy):
            yield Gateway(proxy, {"gateway": port}, Client(port))


@contextmanager
def started(proxy: Proxy) -> Iterator[None]:
    """Start the proxy, and stop it. A test that fails meanwhile prints the end of its logs."""
    try:
        with diagnosed(proxy.logs):
            proxy.start()
            yield
            proxy.assert_alive()
    finally:
        proxy.stop()


@contextmanager
def _directory() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="lbctl-e2e-"))
    directory.chmod(0o755)  # pytest's own directories are not accessible to the user that nginx serves as
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _json_lines(log: Path) -> list[dict[str, Any]]:
    whole = log.read_text(errors="replace").rpartition("\n")[0]
    return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]
