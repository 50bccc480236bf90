"""Servers of the control plane's state on loopback: a real Redis, a real etcd, and the API server of the tests.

In CI a missing server is a failure; elsewhere the test is skipped, with installation instructions.
"""

from __future__ import annotations

import atexit
import base64
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import requests

from lbctl.ir.proxies import Store
from lbctl.store.interface import SharedStore
from lbctl.store.kubernetes_client import CONFIG_MAPS, LEASES
from lbctl.store.open import open_shared
from tests.support.kubernetes import ApiServer
from tests.support.processes.ports import HOST, free_port

_START_TIMEOUT = 60.0
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: k, cluster: {server: "URL"}}]
users: [{name: u, user: {token: good}}]
contexts: [{name: c, context: {cluster: k, user: u}}]
"""


def _binary(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        message = f"no {name} here: apt-get install {package}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return path


class Server:
    """A server on this machine. It keeps its port and its directory over restarts, and ends with this process."""

    def __init__(self, command: Sequence[str]) -> None:
        self.port = 0
        self.command = list(command)
        self.directory = Path(tempfile.mkdtemp(prefix="lbctl-store-"))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start it."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def wait(self) -> None:
        """Wait until it accepts connections."""
        assert self.process is not None
        deadline = time.monotonic() + _START_TIMEOUT
        while not self._answers():
            assert self.process.poll() is None, (self.directory / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, "the store does not start"
            time.sleep(0.02)

    def _answers(self) -> bool:
        with suppress(OSError), socket.create_connection((HOST, self.port), 1):
            return True
        return False

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> None:
        """Stop it; its directory stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(60)
            self.process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


class RedisProcess(Server):
    """A server with Redis's protocol."""

    def call(self, *words: str) -> bytes:
        """Send one command, and return the server's response."""
        with socket.create_connection((HOST, self.port), 60) as connection:
            connection.sendall(_command(words))
            return connection.recv(65536)


class RedisServer(RedisProcess):
    """A Redis server that keeps its data over a restart."""

    def __init__(self, *options: str) -> None:
        binary = _binary("redis-server", "redis-server")
        super().__init__(())
        self.port = free_port()
        self.command = [binary, "--bind", HOST, "--dir", str(self.directory), "--save", "", "--appendonly", "yes"]
        ports = ("--port", "0", "--tls-port") if "--tls-cert-file" in options else ("--port",)
        self.command += [*ports, str(self.port), *options]

    def empty(self) -> None:
        """Remove every key."""
        self.call("FLUSHALL")

    def pipeline(self, commands: Sequence[Sequence[str]]) -> None:
        """Send all commands at once, and wait for their responses, each one line without an error."""
        with socket.create_connection((HOST, self.port), 30) as connection:
            connection.sendall(b"".join(map(_command, commands)))
            with connection.makefile("rb") as answers:
                for _ in commands:
                    answer = answers.readline()
                    assert answer.startswith((b"+", b":")), answer


def _command(words: Sequence[str]) -> bytes:
    """Encode a command for Redis."""
    parts = b"".join(b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in words)
    return b"*%d\r\n%s" % (len(words), parts)


class Sentinel(RedisProcess):
    """A Sentinel that watches a Redis as `main`, and alone decides whether it is down."""

    def __init__(self, watched: int) -> None:
        binary = _binary("redis-server", "redis-server")
        super().__init__(())
        self.port = free_port()
        (self.directory / "sentinel.conf").write_text(
            f"bind {HOST}\nport {self.port}\nsentinel monitor main {HOST} {watched} 1\n"
            "sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n"
        )
        self.command = [binary, str(self.directory / "sentinel.conf"), "--sentinel"]


class EtcdServer(Server):
    """An etcd that keeps its data over a restart: with one member, or one of `peers` (name → port)."""

    def __init__(self, *options: str, name: str = "default", peers: Mapping[str, int] | None = None) -> None:
        binary = _binary("etcd", "etcd-server")
        super().__init__(())
        self.port, self._metrics = free_port(), free_port()
        peers = peers or {name: free_port()}
        peer, own = (
            f"http://{HOST}:{peers[name]}",
            f"{'https' if '--cert-file' in options else 'http'}://{HOST}:{self.port}",
        )
        cluster = ",".join(f"{each}=http://{HOST}:{port}" for each, port in peers.items())
        self.command = [binary, "--name", name, "--data-dir", str(self.directory / "data"), "--logger", "zap"]
        self.command += ["--log-level", "warn", "--listen-client-urls", own, "--advertise-client-urls", own]
        self.command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        self.command += [
            "--initial-cluster",
            cluster,
            "--listen-metrics-urls",
            f"http://{HOST}:{self._metrics}",
            *options,
        ]

    def _answers(self) -> bool:
        with suppress(requests.RequestException):
            return requests.get(f"http://{HOST}:{self._metrics}/health", timeout=2).status_code == 200
        return False

    def call(self, path: str, body: Mapping[str, Any], token: str = "") -> Any:
        """Call a method of the JSON gateway, and return its response."""
        url = f"http://{HOST}:{self.port}/v3/{path}"
        answer = requests.post(url, json=body, headers={"authorization": token} if token else {}, timeout=120)
        answer.raise_for_status()
        return answer.json()

    def empty(self) -> None:
        """Remove every key."""
        body = {"key": base64.b64encode(b"\0").decode(), "range_end": base64.b64encode(b"\0").decode()}
        requests.post(f"http://{HOST}:{self.port}/v3/kv/deleterange", json=body, timeout=120).raise_for_status()


class KubernetesServer:
    """The API server of the tests, in a thread of this process. It keeps its objects over a restart."""

    def __init__(self) -> None:
        self.api = ApiServer()
        self.port = self.api.port
        self._has_started = False

    def start(self) -> None:
        (self.api.back if self._has_started else self.api.start)()
        self._has_started = True

    def signal(self, number: signal.Signals) -> None:
        """Close its port and its connections, and reopen it."""
        (self.api.back if number == signal.SIGCONT else self.api.away)()

    def stop(self) -> None:
        """Stop it; its objects stay."""
        self.api.away()

    def empty(self) -> None:
        """Remove every object."""
        for collection in (LEASES.format(NAMESPACE), CONFIG_MAPS.format(NAMESPACE)):
            for name in list(self.api.objects(collection)):
                self.api.delete(collection, name)

    def close(self) -> None:
        self.api.stop()


NAMESPACE = "lbctl"
"""Namespace of the tests' stores in Kubernetes."""
AnyServer = RedisServer | EtcdServer | KubernetesServer
STORES: dict[str, type[AnyServer]] = {"redis": RedisServer, "etcd": EtcdServer, "kubernetes": KubernetesServer}
"""Scheme of a URL → its server."""


def resource_name(prefix: str) -> str:
    """Return the key space as the name of objects in Kubernetes."""
    return prefix.replace(":", "-")


def store_of(scheme: str, prefix: str, port: int = 0, *, tls: bool = False, **more: Any) -> Store:
    """Return the settings of the store with this scheme on a port of this machine, by default the shared server's."""
    if scheme == "kubernetes":
        return Store(f"kubernetes://{NAMESPACE}/{resource_name(prefix)}", **more)
    return Store(f"{scheme}{'s' * tls}://{HOST}:{port or shared_server(scheme).port}", prefix, **more)


@contextmanager
def reachable(scheme: str, port: int = 0, *, tls: bool = False) -> Iterator[None]:
    """Set KUBECONFIG to the API server on this port, for a store that is opened in the block."""
    if scheme != "kubernetes":
        yield
        return
    before = os.environ.get("KUBECONFIG")
    with tempfile.NamedTemporaryFile("w", prefix="lbctl-kubeconfig-", delete=False) as file:
        url = f"http{'s' * tls}://{HOST}:{port or shared_server(scheme).port}"
        file.write(KUBECONFIG.replace("URL", url))
    atexit.register(Path(file.name).unlink)
    os.environ["KUBECONFIG"] = file.name
    try:
        yield
    finally:
        del os.environ["KUBECONFIG"]
        if before is not None:
            os.environ["KUBECONFIG"] = before


def opened(
    scheme: str, prefix: str, member: str = "cp-1", port: int = 0, *, tls: bool = False, **more: Any
) -> SharedStore:
    """Open the store of `store_of`."""
    with reachable(scheme, port, tls=tls):
        return open_shared(store_of(scheme, prefix, port, tls=tls, **more), member)


@cache
def shared_server(scheme: str) -> AnyServer:
    """Return the server that all tests of this process share; each test uses separate keys."""
    server = STORES[scheme]()
    atexit.register(server.close)
    server.start()
    return server


def write_foreign(server: AnyServer, prefix: str, name: str, value: str) -> None:
    """Write `leader`, `epoch` or the announcement of a `member` like another program."""
    if isinstance(server, RedisServer):
        if name == "member":
            server.call("ZADD", f"{{{prefix}}}:members", str(int(time.time() + 60) * 1000), "x")
            server.call("HSET", f"{{{prefix}}}:announcements", "x", value)
        else:
            server.call("SET", f"{{{prefix}}}:{name}", value)
        return
    if isinstance(server, KubernetesServer):
        _write_object(server.api, resource_name(prefix), name, value)
        return
    name = {"member": "members/x", "leader": "holder"}.get(name, name)
    key, content = (base64.b64encode(text.encode()).decode() for text in (f"{prefix}/{name}", value))
    answer = requests.post(f"http://{HOST}:{server.port}/v3/kv/put", json={"key": key, "value": content}, timeout=120)
    answer.raise_for_status()


def _write_object(api: ApiServer, name: str, kind: str, value: str) -> None:
    if kind == "member":
        collection = CONFIG_MAPS.format(NAMESPACE)
        members = api.objects(collection)[f"{name}.members"]
        api.put(collection, f"{name}.members", {**members, "data": {**members["data"], "x": value}})
        return
    annotations = {"lbctl/epoch": value} if kind == "epoch" else {}
    api.put(
        LEASES.format(NAMESPACE), name,
        {"metadata": {"annotations": annotations}, "spec": {"holderIdentity": value, "renewTime": "yesterday"}},
    )  # fmt: skip
