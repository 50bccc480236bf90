"""Real servers of the control plane's state on loopback: Redis and etcd.

In CI a missing server is a failure; elsewhere the test is skipped, with what to install.
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
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
import requests

from tests.e2e.support.ports import HOST, free_port

_PATIENCE = 30.0


def _binary(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        message = f"no {name} here: apt-get install {package}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return found


class Server:
    """A server of this machine. It keeps its port and its directory over restarts, and ends with this process."""

    def __init__(self, command: Sequence[str]) -> None:
        self.port = 0
        self.command = list(command)
        self.directory = Path(tempfile.mkdtemp(prefix="lbctl-store-"))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it, and waits until it accepts connections."""
        with (self.directory / "log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + _PATIENCE
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
        """Ends it; its directory stays."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)
            self.process = None

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)


class RedisServer(Server):
    """A Redis server that keeps its data over a restart."""

    def __init__(self, *options: str) -> None:
        binary = _binary("redis-server", "redis-server")
        super().__init__(())
        self.port = free_port()
        self.command = [binary, "--bind", HOST, "--dir", str(self.directory), "--save", "", "--appendonly", "yes"]
        self.command += [*("--port", str(self.port)), *options] if "--tls-port" not in options else options

    def empty(self) -> None:
        """Removes every key."""
        self.call("FLUSHALL")

    def call(self, *words: str) -> bytes:
        """The server's answer to one command."""
        with socket.create_connection((HOST, self.port), 5) as connection:
            parts = b"".join(b"$%d\r\n%s\r\n" % (len(word.encode()), word.encode()) for word in words)
            connection.sendall(b"*%d\r\n%s" % (len(words), parts))
            return connection.recv(65536)


class EtcdServer(Server):
    """An etcd of one member that keeps its data over a restart."""

    def __init__(self, *options: str) -> None:
        binary = _binary("etcd", "etcd-server")
        super().__init__(())
        self.port, peer = free_port(), free_port()
        own = "https" if "--cert-file" in options else "http"
        self.command = [binary, "--data-dir", str(self.directory / "data"), "--logger", "zap", "--log-level", "warn"]
        self.command += ["--listen-client-urls", f"{own}://{HOST}:{self.port}", "--initial-advertise-peer-urls"]
        self.command += [f"http://{HOST}:{peer}", "--listen-peer-urls", f"http://{HOST}:{peer}", "--initial-cluster"]
        self.command += [f"default=http://{HOST}:{peer}", "--advertise-client-urls", f"{own}://{HOST}:{self.port}"]
        self.command += options

    def _answers(self) -> bool:
        with suppress(requests.RequestException):
            return requests.get(f"http://{HOST}:{self.port}/health", timeout=2).status_code == 200
        return False

    def empty(self) -> None:
        """Removes every key."""
        body = {"key": base64.b64encode(b"\0").decode(), "range_end": base64.b64encode(b"\0").decode()}
        requests.post(f"http://{HOST}:{self.port}/v3/kv/deleterange", json=body, timeout=5).raise_for_status()


STORES: dict[str, type[RedisServer] | type[EtcdServer]] = {"redis": RedisServer, "etcd": EtcdServer}
"""Scheme of a URL → its server."""


@cache
def shared_server(scheme: str) -> RedisServer | EtcdServer:
    """A server that all tests of this process share; each takes keys of its own."""
    server = STORES[scheme]()
    atexit.register(server.close)
    server.start()
    return server


def write_key(server: RedisServer | EtcdServer, prefix: str, name: str, value: str) -> None:
    """Writes a key of a key space as another program would."""
    if isinstance(server, RedisServer):
        server.call("SET", f"{{{prefix}}}:{name}", value)
        return
    key, content = (base64.b64encode(text.encode()).decode() for text in (f"{prefix}/{name}", value))
    answer = requests.post(f"http://{HOST}:{server.port}/v3/kv/put", json={"key": key, "value": content}, timeout=5)
    answer.raise_for_status()
