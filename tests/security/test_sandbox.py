"""A proxy that `lbctl import --compare` starts reaches nothing outside its directory, however it is configured."""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lbctl.apply.reserved_ports import LOOPBACK, port_of, reserve
from lbctl.importer.compare.echo import echoes
from lbctl.importer.compare.processes import NotStartedError, running
from lbctl.importer.compare.sandbox import confined as confined_module
from lbctl.importer.compare.sandbox import landlock, programs
from lbctl.importer.compare.sandbox.confined import Method, Sandbox, SandboxUnavailableError, TooSlowError, confined
from tests.support.importer import SAMPLES
from tests.support.processes.binaries import require

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(sys.platform != "linux", reason="Linux only")]

_TIMEOUT = 60.0
_LINE = b"a line of somebody else\n"
_NGINX = """
events {{}}
http {{
  access_log off;
  client_body_temp_path {own}/b; proxy_temp_path {own}/p; fastcgi_temp_path {own}/f;
  uwsgi_temp_path {own}/u; scgi_temp_path {own}/s;
  proxy_connect_timeout 5s;
  server {{
    listen 127.0.0.1:{port};
    location /read/ {{ alias {outside}/; }}
    location /write/ {{ alias {outside}/; dav_methods PUT; }}
    location /unix {{ proxy_pass http://unix:{outside}/socket; }}
    location /tcp {{ proxy_pass http://127.0.0.1:{foreign}; }}
    location /own {{ proxy_pass http://127.0.0.1:{echo}; }}
  }}
}}
"""
_LUA = """
os.execute("/bin/sh -c 'echo run > {own}/executed'")
"""
_HAPROXY = """
global
  lua-load {own}/run.lua
defaults
  mode http
  timeout client 5s
frontend f
  bind 127.0.0.1:{port}
  http-request return status 200
"""


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory for a comparison."""
    yield from _directory("base", 0o755)


@pytest.fixture
def outside() -> Iterator[Path]:
    """A directory of another user that is readable and writable for all users, so that only the sandbox keeps a proxy
    out."""
    for directory in _directory("outside", 0o777):
        (directory / "witness").write_bytes(_LINE)
        (directory / "witness").chmod(0o644)
        yield directory


def _directory(name: str, mode: int) -> Iterator[Path]:
    """Make a directory that other users can enter, unlike the directories of pytest."""
    directory = Path(tempfile.mkdtemp(prefix=f"lbctl-test-{name}-")).resolve()
    directory.chmod(mode)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(params=["namespaces", "landlock", "none"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, base: Path) -> Method:
    """Each way to confine a proxy that this system offers, and "none"."""
    chosen: Method = request.param
    monkeypatch.setattr(confined_module, "METHODS", () if chosen == "none" else (chosen,))
    try:
        confined(lambda _: None, base, allow_unsandboxed=chosen == "none")
    except SandboxUnavailableError as error:
        pytest.skip(f"this system does not offer it: {error}")
    return chosen


class _Listener:
    """A server of another user on this machine, which answers connections and counts them."""

    def __init__(self, server: socket.socket) -> None:
        server.listen()
        self._server = server
        self.connections = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                self.connections += 1
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")


def _ask(port: int, method: str, path: str, body: bytes | None = None) -> int:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=60)
    try:
        connection.request(method, path, body)
        return connection.getresponse().status
    finally:
        connection.close()


def _reached(sandbox: Sandbox, outside: Path, foreign: int) -> dict[str, int]:
    """Return the status codes of an nginx that tries to reach outside targets and its own server."""
    own = sandbox.base / "own"
    own.mkdir()
    with ExitStack() as stack:
        ports = stack.enter_context(echoes({"own": []}, {}))
        port = port_of(stack.enter_context(reserve()))
        config = own / "main"
        config.write_text(_NGINX.format(own=own, port=port, outside=outside, foreign=foreign, echo=ports["own"]))
        sandbox = replace(sandbox, connect=tuple(ports.values()))
        stack.enter_context(running("nginx", str(require("nginx")), own, str(config), [port], sandbox))
        return {
            "read": _ask(port, "GET", "/read/witness"),
            "write": _ask(port, "PUT", "/write/written", b"more"),
            "unix": _ask(port, "GET", "/unix"),
            "tcp": _ask(port, "GET", "/tcp"),
            "own": _ask(port, "GET", "/own"),
        }


def test_confined_proxy_reaches_only_its_own(method: Method, base: Path, outside: Path) -> None:
    require("nginx")
    with socket.socket(socket.AF_UNIX) as unix, socket.socket() as tcp:
        unix.bind(str(outside / "socket"))
        (outside / "socket").chmod(0o777)
        tcp.bind((LOOPBACK, 0))
        listeners = [_Listener(unix), _Listener(tcp)]
        foreign = tcp.getsockname()[1]
        statuses: Mapping[str, int] = confined(
            lambda sandbox: _reached(sandbox, outside, foreign), base, allow_unsandboxed=True
        )
        connections = [item.connections for item in listeners]
    own, others = statuses["own"], {name: status for name, status in statuses.items() if name != "own"}
    assert own == 200
    if method == "none":
        assert others == {"read": 200, "write": 201, "unix": 200, "tcp": 200}
        return
    assert {name: status for name, status in others.items() if status < 400} == {}
    assert connections == [0, 0]
    assert sorted(item.name for item in outside.iterdir()) == ["socket", "witness"]


def _executed(sandbox: Sandbox) -> bool:
    """Start a HAProxy that starts a shell, and return whether the shell ran."""
    own = sandbox.base / "own"
    own.mkdir()
    with reserve() as reserved:
        port = port_of(reserved)
        (own / "run.lua").write_text(_LUA.format(own=own))
        (own / "main").write_text(_HAPROXY.format(own=own, port=port))
        with running("haproxy", str(require("haproxy")), own, str(own / "main"), [port], sandbox):
            return (own / "executed").exists()


def test_confined_proxy_starts_no_program(method: Method, base: Path) -> None:
    require("haproxy")
    assert confined(_executed, base, allow_unsandboxed=True) == (method == "none")


_CALLS = """
import os, socket
from lbctl.importer.compare.sandbox import calls, kernel
parent, directory = os.getppid(), {directory!r}
other = os.open(directory, os.O_RDONLY)
kernel.forbid_new_privileges()
kernel.filter_calls(calls.program(os.getpid()))
tried = {{
    "unix": lambda: socket.socket(socket.AF_UNIX),
    "datagrams": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
    "pair": lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
    "multipath": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262),
    "netlink": lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW),
    "fast open": lambda: socket.socket().sendto(b"x", 0x20000000, ("127.0.0.1", 9)),
    "process": os.fork,
    "signal": lambda: os.kill(parent, 0),
    "mode": lambda: os.chmod(directory, 0o777),
    "owner": lambda: os.chown(directory, -1, -1),
    "times": lambda: os.utime(directory),
    "limits": lambda: __import__("resource").prlimit(parent, 7),
    "namespace": lambda: kernel.enter_user_namespace(0, 0),
    "thread": lambda: __import__("threading").Thread(target=int).start(),
    "tcp": lambda: socket.socket(socket.AF_INET6).close(),
    "itself": lambda: os.kill(os.getpid(), 0),
}}
for name, call in tried.items():
    try:
        call()
    except PermissionError:
        continue
    print(name)
"""


def test_system_calls_beyond_the_rules_are_refused(tmp_path: Path) -> None:
    code = _CALLS.format(directory=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["thread", "tcp", "itself"]


def _running_forever(sandbox: Sandbox) -> None:
    own = sandbox.base / "own"
    own.mkdir()
    with reserve() as reserved:
        port = port_of(reserved)
        (own / "main").write_text(_NGINX.format(own=own, port=port, outside=own, foreign=9, echo=9))
        with running("nginx", str(require("nginx")), own, str(own / "main"), [port], sandbox):
            (sandbox.base / "started").touch()
            time.sleep(600)


def _processes(base: Path) -> list[str]:
    """Return the commands of all processes that have the directory in their arguments."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if str(base) in command:
                found.append(command)
    return found


def _wait(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not reached():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)


def test_proxy_ends_after_the_time_limit(method: Method, base: Path) -> None:
    require("nginx")
    with pytest.raises(TooSlowError):
        confined(_running_forever, base, allow_unsandboxed=True, seconds=3)
    _wait(lambda: not _processes(base))
    assert (base / "started").exists()


def test_no_process_outlives_a_killed_lbctl(method: Method, base: Path) -> None:
    require("nginx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Tests run threads.
        parent = os.fork()
    if parent == 0:
        with suppress(BaseException):
            confined(_running_forever, base, allow_unsandboxed=True)
        os._exit(0)
    try:
        _wait((base / "started").exists)
        assert _processes(base)
    finally:
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
    _wait(lambda: not _processes(base))


_LAYERS = """
import struct, sys
from lbctl.cli import run
from lbctl.importer.compare.sandbox import kernel, landlock
kernel.forbid_new_privileges()
for _ in range({layers}):
    rules = struct.pack("=QQ", 1 << 6, 0)
    descriptor = kernel.syscall("create", landlock._CREATE, rules, len(rules), 0)
    kernel.syscall("restrict", landlock._RESTRICT, descriptor, 0)
sys.exit(run({arguments}))
"""
"""Script that runs under as many layers of Landlock rules. Linux allows at most 16, and such a process may mount
nothing."""


def _compared(layers: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        landlock.version()
    except OSError as error:
        pytest.skip(f"this system has no Landlock: {error}")
    file = str(SAMPLES / "nginx" / "tei-embeddings.conf")
    code = _LAYERS.format(layers=layers, arguments=["import", "nginx", file, "--compare", *arguments])
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.parametrize(("layers", "arguments"), [(1, ()), (16, ("--allow-unsandboxed",))])
def test_comparison_falls_back_to_what_is_offered(layers: int, arguments: Sequence[str]) -> None:
    require("nginx")
    compared = _compared(layers, *arguments)
    assert compared.returncode == 0, compared.stderr
    assert "4 of 4 compared requests agree" in compared.stderr


_ROOT_ALONE = """
import sys
from lbctl.cli import run
from lbctl.importer.compare.sandbox import kernel
try:
    kernel.enter_user_namespace(0, 0)
except OSError as error:
    sys.exit(f"skip: {{error}}")
sys.exit(run(["import", "nginx", {file!r}, "--compare"]))
"""


def test_comparison_runs_where_root_is_the_only_user() -> None:
    require("nginx")
    code = _ROOT_ALONE.format(file=str(SAMPLES / "nginx" / "tei-embeddings.conf"))
    compared = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    if compared.stderr.startswith("skip: "):
        pytest.skip(compared.stderr)
    assert compared.returncode == 0, compared.stderr
    assert "4 of 4 compared requests agree" in compared.stderr


def test_comparison_refuses_without_a_sandbox() -> None:
    require("nginx")
    compared = _compared(16)
    assert compared.returncode == 4, compared.stderr
    errors = compared.stderr.splitlines()
    (problem,) = (line for line in errors if "cannot sandbox the proxies" in line)
    assert "namespaces: " in problem
    assert "landlock: " in problem
    assert "lbctl: if you trust the configuration, add --allow-unsandboxed" in errors


def test_failure_of_the_comparison_is_reported(base: Path) -> None:
    def fail(_: Sandbox) -> Any:
        raise ValueError("a reason")

    with pytest.raises(RuntimeError, match="ValueError: a reason"):
        confined(fail, base, allow_unsandboxed=True)


def test_script_in_place_of_a_proxy_is_refused(base: Path) -> None:
    script = base / "nginx"
    script.write_text("#!/bin/sh\nexec nginx\n")
    with pytest.raises(programs.NotAProgramError, match="is not a 64-bit program"):
        programs.files_of(str(script))
    with (
        pytest.raises(NotStartedError, match="set LBCTL_NGINX to the path of the program"),
        running("nginx", str(script), base, str(base / "main"), [], Sandbox("namespaces", base)),
    ):
        pass
