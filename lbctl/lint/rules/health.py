"""Rules about health: failure detection, its delay, and the return of replicas."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.base.diagnostics import Path
from lbctl.ir.pools import HttpCheck, Pool, Replica, TcpCheck
from lbctl.ir.proxies import Proxy
from lbctl.lint.fleet_view import FleetView, sources_of
from lbctl.lint.rule import Edit, RuleFinding, rule
from lbctl.signals import KINDS, table
from lbctl.targets import target
from lbctl.targets.assess import capability_at
from lbctl.targets.target import Unsupported

_READINESS_OF_LIVENESS = {"/v2/health/live": "/v2/health/ready", "/v1/health/live": "/v1/health/ready"}
"""Maps a liveness path to the readiness path of the same API."""
_LIVENESS_PATHS = frozenset({*_READINESS_OF_LIVENESS, "/live", "/livez", "/health/live", "/healthz/live"})
_UNRELATED_PATHS = frozenset({"/", "/metrics", "/version", "/docs"})
"""Paths that any listening process answers, even if its engine has died."""
_READINESS_PATHS = {
    "vllm": "/health", "sglang": "/health_generate", "tgi": "/health", "triton": "/v2/health/ready",
    "trtllm": "/health", "lmdeploy": "/health", "nim": "/v1/health/ready", "llamacpp": "/health",
    "kserve": "/v2/health/ready", "dynamo": "/health",
}  # fmt: skip
"""Maps a kind of server to its readiness path."""
_GPU_HEALTH = frozenset({"temperature", "throttle", "xid"})
_MAX_DETECTION = 60_000
_BUSY_ANSWER = 3_000
"""Minimum timeout of a check, in milliseconds, because engines respond slowly under load."""
_MAX_CHECK_RATE = 100
_MIN_WINDOW = 5_000
_MAX_THRESHOLD = 30
"""Maximum useful threshold, because a partially failed replica never has more consecutive failures."""
_SINGLE_FAILURES = {
    "unhealthy_threshold": "one slow response",
    "consecutive_5xx": "one 5xx response",
    "consecutive_connect_failures": "one lost packet",
}
"""Maps a key to the single event that ejects a replica if the threshold is 1."""


@rule("LB321")
def liveness_check_only(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report checks that do not prove that the model is ready (LB321)."""
    for pool in fleet.pools:
        path = ("pools", pool.name, "health", "active")
        readiness = next(
            (_READINESS_PATHS[source.kind] for source in sources_of(pool) if source.kind in _READINESS_PATHS), ""
        )
        match pool.engine_probe:
            case HttpCheck(path=requested) if requested in _LIVENESS_PATHS:
                better = _READINESS_OF_LIVENESS.get(requested, "")
                fix = Edit((*path, "http", "path"), better) if better else None
                ready = better or readiness
                hint = f"path: {ready}" if ready else "use the path that reports whether the model is ready"
                yield RuleFinding(
                    (*path, "http", "path"), f"{requested} returns 200 before the model is loaded", hint, fix
                )
            case HttpCheck(path=requested) if requested in _UNRELATED_PATHS and readiness:
                message = f"{requested} does not report whether the model is ready"
                yield RuleFinding((*path, "http", "path"), message, f"path: {readiness}")
            case TcpCheck() if readiness:
                message = "an open port does not show that the model is ready"
                yield RuleFinding((*path, "tcp"), message, f"http: {{path: {readiness}}}")


@rule("LB322")
def no_gpu_telemetry(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report pools with GPUs but without a source for temperature, throttling or errors (LB322)."""
    for pool in fleet.pools:
        kinds = {source.kind for source in sources_of(pool)}
        signals = {source.signal for source in sources_of(pool)}
        signals |= {name for kind in kinds & set(KINDS) for name in table(kind).series}
        if kinds and not signals & _GPU_HEALTH and any(replica.gpu for replica in pool.replicas):
            message = "no source reports temperature, throttling or XID errors"
            hint = 'add {kind: dcgm, url: "http://{host}:9400/metrics"}, or use kind nvidia_gpu_exporter or amd'
            yield RuleFinding(("pools", pool.name, "telemetry", "sources"), message, hint)


@rule("LB323")
def slow_failure_detection(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report checks that need more than a minute to detect a failure (LB323)."""
    for pool in fleet.pools:
        check = pool.active
        if check is None:
            continue
        worst = check.interval * check.unhealthy_threshold + check.timeout
        if worst > _MAX_DETECTION:
            path = ("pools", pool.name, "health", "active", "interval")
            needed = check.unhealthy_threshold
            checks = "one failed check" if needed == 1 else f"{needed} failed checks"
            every = f"{check.interval / 1000:g} s"
            message = f"failure detection takes {checks} at an interval of {every}: up to {worst / 1000:g} s"
            yield RuleFinding(path, message, "with interval: 10s and unhealthy_threshold: 3, it takes 33 s")


@rule("LB327")
def check_of_a_busy_engine(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report checks with a timeout that is too short for a busy engine (LB327)."""
    for pool in fleet.pools:
        check = pool.active
        if check is None or isinstance(check.probe, TcpCheck) or pool.fail_open or pool.upstream or pool.agent:
            continue
        if check.timeout < _BUSY_ANSWER:
            path = ("pools", pool.name, "health", "active")
            key = "timeout" if fleet.written((*path, "timeout")) is not None else "interval"
            message = (
                f"checks time out after {check.timeout / 1000:g} s, "
                "but a burst of long prompts can delay all replicas for a longer time"
            )
            yield RuleFinding((*path, key), message, "set timeout: 3s or more, or health.fail_open: true")


@rule("LB328")
def useless_fail_open(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report `fail_open` if it has no effect (LB328)."""
    for pool in fleet.pools:
        if not pool.fail_open or pool.active is None:
            continue
        path = ("pools", pool.name, "health", "fail_open")
        fallbacks = {action.fallback for _, action in fleet.forwards if pool.name in action.pools}
        if isinstance(pool.active.probe, TcpCheck) and pool.active.port is None:
            message = "a port that refuses the check also refuses requests"
            yield RuleFinding(path, message, "use an HTTP check, or remove fail_open")
        elif fallbacks and not fallbacks & {None, pool.name}:
            yield RuleFinding(path, "all routes to the pool have a fallback, which is used first", "remove fail_open")


@rule("LB324")
def excessive_check_rate(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report more than 100 health checks per second (LB324)."""
    instances = sum(proxy.instances for proxy in fleet.topology.proxies if _checks_actively(proxy)) or 1
    rates = {pool.name: instances * _checks(pool) for pool in fleet.pools}
    total = sum(rates.values())
    if total > _MAX_CHECK_RATE:
        worst = max(rates, key=lambda name: (rates[name], name))
        checkers = "one proxy" if instances == 1 else f"{instances} proxies, each of which checks every replica"
        message = f"{total:.0f} health checks per second from {checkers}; {rates[worst]:.0f} of them are for this pool"
        yield RuleFinding(
            ("pools", worst, "health", "active", "interval"), message, "increase the interval and lower the threshold"
        )


@rule("LB329")
def shared_agent(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report replicas that use another replica's agent, and agents whose port is already in use (LB329)."""
    first: dict[tuple[str, int], tuple[Path, Replica]] = {}
    for pool in fleet.pools:
        for replica in pool.replicas if pool.agent else ():
            host, port = replica.address.host, pool.check_port(replica) or 0
            path = ("pools", pool.name, "replicas", replica.name)
            entry = fleet.loaded.compiled.sources.written(path)
            if replica.address.port in (port, port + 1):
                message = f"its agent needs ports {port} and {port + 1}, but the model server uses one of them"
                yield RuleFinding(path, message, "set another agent_port")
            other_entry, other = first.setdefault((host, port), (entry, replica))
            if other.address != replica.address and other_entry != entry:
                message = (
                    f"replica {other.name} uses the same agent on port {port}, but an agent watches only one engine"
                )
                yield RuleFinding(path, message, f"run an agent for each replica, and set agent_port: {port + 2}")
            for next_to in (port - 1, port + 1):
                if (found := first.get((host, next_to))) is not None and found[0] != entry:
                    message = f"its agent and the agent of replica {found[1].name} both need port {max(port, next_to)}"
                    yield RuleFinding(path, message, "reserve two ports for each agent; the second is for agent checks")


def _checks_actively(proxy: Proxy) -> bool:
    return not isinstance(
        capability_at(target(proxy.kind).capabilities["pool.health.http"], proxy.version), Unsupported
    )


def _checks(pool: Pool) -> float:
    """Return the number of checks per second that one instance sends."""
    return 1000 * len(pool.replicas) / pool.active.interval if pool.active else 0.0


@rule("LB325")
def aggressive_outlier_check(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report thresholds that eject a replica at once, or never (LB325)."""
    for pool in fleet.pools:
        path = ("pools", pool.name, "health")
        if pool.active is not None:
            yield from _threshold((*path, "active", "unhealthy_threshold"), pool.active.unhealthy_threshold, 3)
        passive = pool.passive
        if passive is None:
            continue
        for key, better in (("consecutive_5xx", 5), ("consecutive_connect_failures", 3)):
            yield from _threshold((*path, "passive", key), getattr(passive, key), better)
        if passive.error_min_requests <= 2:
            yield _too_sensitive((*path, "passive", "error_rate", "min_requests"), "one failure in two requests", 20)
        if passive.max_ejection == 0:
            key_path = (*path, "passive", "max_ejection")
            yield RuleFinding(key_path, "no replica is ever ejected", "max_ejection: 50%", Edit(key_path, "50%"))


def _threshold(path: tuple[str, ...], value: int, better: int) -> Iterator[RuleFinding]:
    """Yield a finding if this number of consecutive failures is too low or too high."""
    if value == 1:
        yield _too_sensitive(path, _SINGLE_FAILURES[path[-1]], better)
    elif value > _MAX_THRESHOLD:
        message = f"ejection needs {value} consecutive failures, and a single success resets the count"
        yield RuleFinding(path, message, f"{path[-1]}: {better}", Edit(path, better))


def _too_sensitive(path: tuple[str, ...], cause: str, better: int) -> RuleFinding:
    return RuleFinding(path, f"{cause} ejects the replica", f"{path[-1]}: {better}", Edit(path, better))


@rule("LB326")
def ineffective_slow_start(fleet: FleetView) -> Iterator[RuleFinding]:
    """Report ineffective slow start in pools whose replicas come and go (LB326)."""
    for pool in fleet.pools:
        ramp = pool.slow_start
        spot = any(key == "spot" and value != "false" for replica in pool.replicas for key, value in replica.labels)
        if ramp is None or not (pool.discovery or spot):
            continue
        if ramp.window < _MIN_WINDOW or ramp.min_weight >= 100:
            key = "window" if ramp.window < _MIN_WINDOW else "min_weight"
            path = ("pools", pool.name, "slow_start", key)
            better = "60s" if key == "window" else "10%"
            message = "a new replica gets too many requests while its cache is cold"
            yield RuleFinding(path, message, f"{key}: {better}", Edit(path, better))
