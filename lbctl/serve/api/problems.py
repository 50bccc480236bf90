"""Current problems, most severe first, each with the command to run next, for `status`, `doctor` and the dashboard.

The functions are pure. A problem is `critical` if requests are failing, or if the configuration in the files is not in
effect. Every other problem is a warning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from lbctl.api import schema
from lbctl.control.fitness import FIT, UNKNOWN
from lbctl.control.health import SUSPECTED
from lbctl.control.outages import ReplicaReport, unavailable
from lbctl.ir.proxies import Proxy
from lbctl.serve.picker.fallbacks import MIN_REQUESTS
from lbctl.targets.key_hashes import HashOnly

_SHOWN = 5
"""Maximum number of replicas per kind of problem that are listed on separate lines."""
_LISTED = 10
"""Maximum number of replica names listed for a state."""
_ERRORS = 0.05
"""Fraction of failed requests above which a replica is reported."""
_MISSED = 0.1
"""Fraction of requests without a pick above which a pool is reported."""
_WAITED = 60.0
"""Seconds after which an Envoy that has never connected is reported as missing."""
_PROXIES = "lbctl status proxies"
_FINE = frozenset({"SYNCED", "WAITING", "STALE", "GONE", "NOT DRIVEN"})


@dataclass(frozen=True, slots=True)
class Observed:
    """The observed state that is checked for problems."""

    waiting: str
    """Reason why proxies are not getting a configuration yet; empty if they are."""
    fleet: schema.FleetFiles
    """Result of the last time the files were read."""
    pools: Sequence[schema.Pool] = ()
    """The pools of the published fleet."""
    proxies: Sequence[schema.Proxy] = ()
    """The proxies that are connected, driven or disconnected."""
    expected: Sequence[Proxy] = ()
    """The fleet's proxies that are expected to connect to the control plane themselves."""
    is_alone: bool = True
    """Whether this is the only control plane. If there are several, a proxy may be connected to a different one."""
    seconds: float = 0.0
    """Seconds since the process started."""
    picker: schema.PickerStatus | None = None
    """This process's picker."""
    sources: schema.SourceCounts = schema.SourceCounts(0, 0, {})
    """The telemetry sources."""
    unsaved: str = ""
    """Reason why decisions are not being saved; empty if they are."""
    state_notes: Sequence[str] = ()
    """Notes about parts of the saved state that were repaired, lost or found to be unsafe."""
    dry_run: bool = False
    """Whether this is a dry run, which sends nothing to proxies."""
    rolled_back: bool = False
    """Whether an operator's rollback is in force."""
    rollouts: Sequence[schema.Rollout] = ()
    """The rollouts defined in the files."""
    refused: str = ""
    """Reason why records from a shared store were rejected; empty if none were."""
    refused_keys: Mapping[str, Sequence[HashOnly]] = field(default_factory=dict)
    """Maps each proxy to the API keys of its routes that it rejects because the key file contains only their hashes."""


def problems(observed: Observed) -> tuple[schema.Problem, ...]:
    """Return all problems, worst first."""
    found = (
        *_of_process(observed),
        *_of_pools(observed.pools),
        *_of_picks(observed),
        *_of_proxies(observed),
        *_of_keys(observed),
        *_of_rollouts(observed.rollouts),
        *_of_replicas(observed.pools),
        *_of_sources(observed),
    )
    return (*(item for item in found if item.severity == "critical"), *(i for i in found if i.severity == "warning"))


def replica_counts(pools: Iterable[schema.Pool]) -> schema.ReplicaCounts:
    """Count the replicas in all pools by state."""
    states: dict[str, int] = {}
    away: dict[str, list[str]] = {}
    for pool in pools:
        for item in pool.replicas:
            states[item.state] = states.get(item.state, 0) + 1
            if item.state not in FIT:
                names = away.setdefault(item.state, [])
                if len(names) < _LISTED:
                    names.append(f"{pool.name}/{item.name}")
    return schema.ReplicaCounts(sum(states.values()), states, {state: tuple(names) for state, names in away.items()})


def _critical(kind: schema.ProblemKind, subject: str, text: str, command: str) -> schema.Problem:
    return schema.Problem("critical", kind, subject, text, command)


def _warning(kind: schema.ProblemKind, subject: str, text: str, command: str) -> schema.Problem:
    return schema.Problem("warning", kind, subject, text, command)


def _of_process(observed: Observed) -> Iterator[schema.Problem]:
    if observed.waiting:
        yield _critical("not_ready", "", f"not ready: {observed.waiting}", "lbctl doctor")
    fleet = observed.fleet
    if fleet.read is not None and not fleet.valid:
        reason = fleet.refused or "they have errors"
        has_errors = any(item.severity == "error" for item in fleet.diagnostics)
        if observed.rolled_back and not has_errors:
            yield _critical("files", "", f"an earlier fleet is published: the files are {reason}", "lbctl history")
        else:
            is_shrink = bool(fleet.shrink) and not has_errors  # `validate` does not know which fleet is being served
            command = "lbctl reload --allow-shrink" if is_shrink else f"lbctl validate {' '.join(fleet.paths)}"
            yield _critical("files", "", f"the files are not published: {reason}", command)
    for item in fleet.shrink:
        yield _critical("shrink", "", item.text, "lbctl reload --allow-shrink")
    picker = observed.picker
    if picker is not None and not picker.running and not observed.dry_run:
        text = f"the picker at {picker.listens} is not running: {picker.reason or 'it is starting'}"
        yield _critical("picker", "", text, "lbctl doctor")
    if observed.unsaved:
        yield _warning("store", "", f"decisions are not saved: {observed.unsaved}", "lbctl doctor")
    if observed.refused:
        yield _warning("store", "", observed.refused, "lbctl doctor")
    for note in observed.state_notes:
        yield _warning("state", "", note, "lbctl doctor")


def _of_pools(pools: Sequence[schema.Pool]) -> Iterator[schema.Problem]:
    """Yield the pools that cannot respond or that return only errors."""
    for pool in pools:
        command = f"lbctl status pools --pool {pool.name}"
        if not pool.in_use:
            continue
        outage = unavailable(
            pool.name, (ReplicaReport(item.name, item.state, item.state_reason) for item in pool.replicas)
        )
        answers = pool.errors is not None and not pool.failing
        if outage and not (pool.fail_open and answers):
            yield _critical("pool_down", pool.name, outage, command)
        elif pool.shedding:
            text = f"proxies reject requests for pool {pool.name}: {pool.shedding}"
            yield _critical("pool_shedding", pool.name, text, command)
        elif pool.failing:
            text = f"pool {pool.name} returns only errors"
            yield _critical("pool_failing", pool.name, text, command)


def _of_picks(observed: Observed) -> Iterator[schema.Problem]:
    """Yield the pools that do not use the picker, or that bypass it too often, although it is running."""
    if observed.picker is None or not observed.picker.running:
        return
    for pool in observed.pools:
        row = pool.picks
        if row is None or row.requests < MIN_REQUESTS:
            continue
        if row.missed == row.requests and not row.in_flight:
            text = (
                f"proxies do not use the picker for pool {pool.name}: {row.requests} requests in the last minute, "
                "none of them picked (the log of serve lists the proxies without the picker's key)"
            )
            yield _critical("picker_unasked", pool.name, text, _PROXIES)
        elif row.missed > _MISSED * row.requests:
            text = (
                f"at least {row.missed / row.requests:.0%} of the requests for pool {pool.name} are sent without a pick"
            )
            yield _warning("picks_missed", pool.name, text, _PROXIES)


def _of_proxies(observed: Observed) -> Iterator[schema.Problem]:
    """Yield the proxies that do not have the published fleet, and the proxies that are missing.

    Unconfirmed nodes cause only warnings, because any user on this machine can connect.
    """
    rows = [row for row in observed.proxies if row.kind != "reader"]
    unconfirmed = [row for row in rows if not row.confirmed and row.connected]
    entries: dict[str, list[schema.Proxy]] = {}
    for row in rows:
        if not row.confirmed:
            continue
        if row.state not in _FINE:
            yield _critical("proxy", row.node, _of_proxy(row), _PROXIES)
        if row.proxy is not None:
            entries.setdefault(row.proxy, []).append(row)
    yield from _of_entries(entries, is_alone=observed.is_alone)
    if observed.is_alone and observed.seconds > _WAITED and not observed.dry_run:
        missing = [proxy for proxy in observed.expected if proxy.name not in entries]
        yield from _of_missing(missing, unconfirmed)
    for row in unconfirmed[:_SHOWN]:
        text = f"unconfirmed {_of_proxy(row)}"
        yield _warning("proxy_unconfirmed", row.node, text, _PROXIES)
    if len(unconfirmed) > _SHOWN:
        yield _warning("proxy_unconfirmed", "", f"{len(unconfirmed) - _SHOWN} more nodes are unconfirmed", _PROXIES)


def _of_proxy(row: schema.Proxy) -> str:
    return f"{row.kind} {row.node} is {row.state}" + (f": {row.reason}" if row.reason else "")


def _of_entries(entries: Mapping[str, Sequence[schema.Proxy]], *, is_alone: bool) -> Iterator[schema.Problem]:
    """Yield the `proxies` entries whose proxy is disconnected."""
    for name, rows in entries.items():
        gone = [row.node for row in rows if row.state == "GONE"]
        if not gone:
            continue
        have = "has" if len(gone) == 1 else "have"
        if len(gone) == len(rows) and is_alone:
            text = f"{_none_of(rows[0].kind, name)} is connected: {_listed(gone)} {have} left"
            yield _critical("no_proxy", name, text, _PROXIES)
        else:
            text = f"{len(gone)} of {len(rows)} proxies of the entry {name} {have} left: {_listed(gone)}"
            yield _warning("proxy_gone", name, text, _PROXIES)


def _of_missing(missing: Iterable[Proxy], unconfirmed: Sequence[schema.Proxy]) -> Iterator[schema.Problem]:
    """Yield the `proxies` entries that have no proxy."""
    for proxy in missing:
        nodes = [row.node for row in unconfirmed if row.proxy == proxy.name]
        names_nodes = bool(proxy.nodes) or proxy.node_san is not None
        hint = "" if nodes or names_nodes else " (if it uses rendered files, set `config` in the entry)"
        act = f"accepted a fleet since lbctl started: {_listed(nodes)}" if nodes else "connected since lbctl started"
        yield _critical("no_proxy", proxy.name, f"{_none_of(proxy.kind, proxy.name)} has {act}{hint}", _PROXIES)


def _none_of(kind: str, entry: str) -> str:
    """Return the subject of a sentence about a `proxies` entry; the kind of proxy if the entry is not in the files."""
    return f"no {kind}" if entry == kind else f"no {kind} of the entry {entry}"


def _of_keys(observed: Observed) -> Iterator[schema.Problem]:
    """Yield the routes whose API keys are rejected by a connected proxy; this is critical if it rejects all of them."""
    nodes: dict[HashOnly, list[str]] = {}
    for row in observed.proxies:
        if row.connected and row.confirmed and row.proxy is not None:
            for keys in observed.refused_keys.get(row.proxy, ()):
                nodes.setdefault(keys, []).append(row.node)
    for keys, names in nodes.items():
        rejects = f"the proxy {names[0]} rejects" if len(names) == 1 else f"the proxies {_listed(names)} reject"
        part = "all API keys" if keys.count == keys.total else f"{keys.count} of {keys.total} API keys"
        text = f"{rejects} {part} of the route {keys.route}, because the key file contains only their hashes"
        problem = _critical if keys.count == keys.total else _warning
        yield problem("keys_refused", keys.route, text, f"lbctl lint {' '.join(observed.fleet.paths)}")


def _of_replicas(pools: Sequence[schema.Pool]) -> Iterator[schema.Problem]:
    kinds: Mapping[str, schema.ProblemKind] = {
        "down": "replica_down",
        "ejected": "replica_down",
        UNKNOWN: "replica_unknown",
        "starting": "replica_starting",
    }
    for state, kind in kinds.items():
        troubled = [(pool.name, item) for pool in pools for item in pool.replicas if item.state == state]
        for name, item in troubled[:_SHOWN]:
            text = f"{name}/{item.name} is {state}: {item.state_reason}"
            yield _warning(kind, f"{name}/{item.name}", text, f"lbctl status pools --pool {name}")
        if len(troubled) > _SHOWN:
            text = f"{len(troubled) - _SHOWN} more replicas are {state}"
            yield _warning(kind, "", text, "lbctl status pools")
    yield from _of_suspects(pools)
    for pool in pools:
        if pool.failing:
            continue
        command = f"lbctl status pools --pool {pool.name}"
        failing = [item for item in pool.replicas if (item.errors or 0.0) > _ERRORS]
        for item in failing:
            if item.state in FIT:
                text = f"{pool.name}/{item.name} fails more than {_ERRORS:.0%} of its requests"
                yield _warning("replica_errors", f"{pool.name}/{item.name}", text, command)
        is_refused = (pool.errors or 0.0) > _ERRORS and not failing and not pool.shedding
        if is_refused and any(item.state in FIT for item in pool.replicas):
            text = f"the proxies reject requests for pool {pool.name}: more than {_ERRORS:.0%} of all requests fail"
            yield _warning("pool_errors", pool.name, text, command)


def _of_suspects(pools: Sequence[schema.Pool]) -> Iterator[schema.Problem]:
    """Yield the replicas that have probably stalled, according to the picker."""
    stalled = [(pool.name, item) for pool in pools for item in pool.replicas if SUSPECTED in item.state_reason]
    for name, item in stalled[:_SHOWN]:
        text = f"{name}/{item.name} is {item.state_reason}"
        yield _warning("replica_stalled", f"{name}/{item.name}", text, f"lbctl explain weight {name}/{item.name}")
    if len(stalled) > _SHOWN:
        text = f"{len(stalled) - _SHOWN} more replicas have probably stalled, according to the picker"
        yield _warning("replica_stalled", "", text, "lbctl status pools")


def _of_rollouts(rollouts: Sequence[schema.Rollout]) -> Iterator[schema.Problem]:
    """Yield the rollouts that cannot start, that have been rolled back, or that have been paused by their analysis.

    If an automatic rollout cannot start, the files are not in effect, so the problem is critical.
    """
    for item in rollouts:
        command = f"lbctl rollout status {item.route}"
        why = item.unavailable or (item.reason if item.mode != "manual" else None)  # a follower has only the reason
        if item.phase == "waiting" and why:
            text = f"the rollout of {item.route} cannot start: {why}"
            problem = _warning if item.mode == "manual" else _critical
            yield problem("rollout_waiting", item.route, text, command)
        elif item.phase == "rolled_back" or (item.phase == "paused" and _has_failed(item.analysis)):
            act = "was rolled back" if item.phase == "rolled_back" else "was paused by its analysis"
            reason = f": {item.reason}" if item.reason else ""
            text = f"the rollout of {item.route} {act} at {item.since}{reason}"
            yield _warning("rollout_failed", item.route, text, command)


def _has_failed(analysis: schema.RolloutAnalysis | None) -> bool:
    return analysis is not None and analysis.failures >= analysis.max_failures


def _of_sources(observed: Observed) -> Iterator[schema.Problem]:
    for pool, failing in observed.sources.pools.items():
        sources = "1 metrics source" if failing == 1 else f"{failing} metrics sources"
        text = f"{sources} of pool {pool} {'is' if failing == 1 else 'are'} failing"
        yield _warning("metrics", pool, text, f"lbctl status signals --pool {pool}")


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
