"""The API documents, built on request from the state of the other parts."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lbctl import __version__
from lbctl.api import schema
from lbctl.api.openapi import document
from lbctl.base.diagnostics import dotted
from lbctl.ir.proxies import xds_proxies
from lbctl.ir.settings import of_fleet
from lbctl.serve.api import decision_views, history_rows, member_rows, operations, pick_rows, status_rows
from lbctl.serve.api.forwarding import LeaderAddress
from lbctl.serve.api.handlers import READY, operation
from lbctl.serve.api.problems import Observed, problems, replica_counts
from lbctl.serve.api.served_state import ServedState
from lbctl.serve.api.status_rows import proxy_rows, snapshot
from lbctl.serve.ha.requests import MemberRequests
from lbctl.targets import xds_kinds

_MIN_FREE_BYTES = 1 << 20
"""Number of free bytes below which the state directory's disk is considered full, because a write may need this
much."""
NO_FLEET = "no fleet yet: the files are not valid, and the state contains no earlier fleet"
_STARTING = "starting"


def ready(state: ServedState) -> str:
    """Return the reason why proxies are not getting a configuration yet; empty if they are."""
    if state.process.ending:
        return "ending"
    if state.reconciler.last_reload is None:
        return _STARTING
    if state.live.served is None:
        return NO_FLEET
    return "" if state.endpoints.opened.xds or state.options.dry_run else _STARTING


@operation
def healthz(_state: ServedState) -> schema.Probe:
    """Return `/healthz`."""
    return READY


@operation
def readyz(state: ServedState) -> schema.Probe:
    """Return `/readyz`."""
    waiting = ready(state)
    return schema.Probe(waiting) if waiting else READY


@operation
def openapi(_state: ServedState) -> Mapping[str, Any]:
    """Return `/api/v1/openapi.json`."""
    return document()


@operation
def status(state: ServedState) -> schema.Status:
    """Return `/api/v1/status`."""
    served = state.live.served
    rows = proxy_rows(state.nodes, state.supervisor)
    envoys_and_driven = [item for item in rows if item.kind != "reader"]
    newest, files, picker = state.replicas.newest(), _fleet_files(state), pick_rows.status(state.picker)
    sources = decision_views.source_counts(state)
    entries = xds_proxies(served.composed.whole.topology, xds_kinds()).named if served else ()
    found = Observed(
        ready(state) or state.replicas.unseen(), files, newest, rows,
        entries, state.member is None, time.time() - state.process.since, picker, sources, _unsaved(state),
        state.audit.notes, state.options.dry_run, state.rollbacks.history.rollback is not None,
        operations.rollouts(state).rollouts,
        state.member.refused if state.member is not None else "",
        served.refused_keys if served else {},
    )  # fmt: skip
    return schema.Status(
        version=__version__,
        since=status_rows.timestamp(state.process.since),
        ready=not ready(state),
        waiting=ready(state) or None,
        problems=problems(found),
        replicas=replica_counts(newest),
        dry_run=state.options.dry_run,
        snapshot=snapshot(state.live),
        fleet=files,
        served=history_rows.served(state.rollbacks.history),
        restart=state.endpoints.restart_needed(served.loaded.source) if served else (),
        proxies=dict(sorted(Counter(map(_counted_state, envoys_and_driven)).items())),
        unmatched=tuple(
            schema.UnmatchedNode(item.node, item.reason) for item in envoys_and_driven if item.state == "REFUSED"
        ),
        overrides=operations.overrides(state).overrides,
        control=decision_views.control(state),
        sources=sources,
        names=tuple(status_rows.discovered_name(item) for item in state.discovery.names()),
        listens=_listens(state),
        picker=picker,
        member=member_rows.own(state.member),
    )


def _unsaved(state: ServedState) -> str:
    """Return the reason why decisions are not being saved; empty if they are."""
    member = state.member
    problem = (member.election.problem if member is not None else "") or state.audit.problem
    return problem or _full(_listens(state).state)


@operation
def proxies(state: ServedState) -> schema.Proxies:
    """Return `/api/v1/proxies`."""
    return schema.Proxies(proxy_rows(state.nodes, state.supervisor))


@operation
def pools(state: ServedState) -> schema.Pools:
    """Return `/api/v1/pools`."""
    return state.replicas.pools()


@operation
def fleet(state: ServedState) -> schema.FleetSettings:
    """Return `/api/v1/fleet`."""
    served = state.live.served
    settings = of_fleet(served.loaded.compiled.topology) if served else {}
    return schema.FleetSettings({dotted(path): value for path, value in settings.items()})


@operation
def picks(state: ServedState) -> schema.Picks:
    """Return `GET /api/v1/picks`."""
    return pick_rows.picks(state.picker)


@operation
def members(state: ServedState) -> schema.Members:
    """Return `GET /api/v1/members`."""
    return member_rows.members(state.member)


def age(state: ServedState) -> float | None:
    """Return the maximum age of the returned data, in seconds; None if this process makes the decisions."""
    return state.member.lag if state.member is not None else None


def forwards_to(state: ServedState) -> LeaderAddress | None:
    """Return the address to which writes are forwarded; None if this process performs writes itself."""
    if state.member is None or state.member.leads:
        return None
    member, leader = state.member, state.member.records.leader
    return LeaderAddress(
        member.name, leader.member if leader else "", member.leader_api, _api_certificate(state), member.requests
    )


def member_requests(state: ServedState) -> MemberRequests | None:
    """Return the verifier for other members' requests; None if this process is the only member."""
    return state.member.requests if state.member is not None else None


def _api_certificate(state: ServedState) -> str | None:
    tls = state.endpoints.settings.control.api_tls if state.endpoints.settings else None
    return tls.certificate if tls else None


def _fleet_files(state: ServedState) -> schema.FleetFiles:
    """Return the result of the last read, with the losses that the files or withheld discovery answers would cause."""
    last_reload = state.reconciler.last_reload
    served = state.live.served
    pending = (*(last_reload.shrink if last_reload else ()), *(served.refused_answers if served else ()))
    return schema.FleetFiles(
        paths=state.options.paths,
        directory=_working_directory(),
        valid=last_reload is not None and last_reload.valid,
        read=status_rows.when(last_reload.at if last_reload else None),
        refused=last_reload.refused if last_reload else None,
        shrink=status_rows.diagnostics(pending),
        diagnostics=status_rows.diagnostics(last_reload.diagnostics if last_reload else ()),
    )


def _listens(state: ServedState) -> schema.Listens:
    settings, opened = state.endpoints.settings, state.endpoints.opened
    directory = settings.control.state if settings and not state.options.dry_run else None
    return schema.Listens(xds=opened.xds, xds_socket=opened.socket, api=opened.api, state=directory)


def _counted_state(row: schema.Proxy) -> str:
    return row.state if row.confirmed else "UNCONFIRMED"


def _working_directory() -> str:
    """Return the working directory; empty if it has been deleted."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _full(state: str | None) -> str:
    """Return a message if the state directory's disk is full; empty if it is not full or if this is unknown."""
    try:
        is_full = state is not None and shutil.disk_usage(state).free < _MIN_FREE_BYTES
    except OSError:
        return ""
    return f"the disk of {state} is full" if is_full else ""
