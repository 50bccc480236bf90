"""The documents of the API, built from what the other parts know when they are asked for."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from pathlib import Path

from lbctl import __version__
from lbctl.api import schema
from lbctl.base.diagnostics import dotted
from lbctl.ir.proxies import xds_proxies
from lbctl.ir.settings import of_fleet
from lbctl.serve.api import history_rows, member_rows, pick_rows, status_rows
from lbctl.serve.api.dashboard.service import DashboardService
from lbctl.serve.api.decision_views import DecisionViews
from lbctl.serve.api.forwarding import LeaderAddress
from lbctl.serve.api.operations import Operations
from lbctl.serve.api.problems import Observed, problems, replica_counts
from lbctl.serve.api.view_parts import ViewParts
from lbctl.serve.ha.requests import MemberRequests
from lbctl.serve.picker.feed import Feed
from lbctl.targets import xds_kinds

_MIN_FREE_BYTES = 1 << 20
"""Bytes of free space below which the disk of the state is full: a write needs up to as many."""
NO_FLEET = "no fleet yet: the files cannot be served, and the state holds no earlier one"
_STARTING = "starting"


class Views(DecisionViews, Operations):
    """Builds each document of the API when it is asked for, from what the other parts know."""

    def __init__(self, parts: ViewParts) -> None:
        super().__init__(parts)
        self.events = parts.events
        self.dashboard = DashboardService(self, parts.events)
        self._ending = False
        self._since = time.time()

    def end(self) -> None:
        """Report from now on that the process ends, and end the streams of events."""
        self._ending = True
        self.events.close()
        self.dashboard.end()

    def ready(self) -> str:
        """Return why no proxy is answered yet; empty when proxies are answered."""
        if self._ending:
            return "ending"
        if self._parts.reconciler.last_reload is None:
            return _STARTING
        if self._parts.live.served is None:
            return NO_FLEET
        return "" if self._parts.endpoints.opened.xds or self._parts.options.dry_run else _STARTING

    def status(self) -> schema.Status:
        """Return `/api/v1/status`."""
        served, proxies = self._parts.live.served, self.proxies().proxies
        envoys_and_driven = [item for item in proxies if item.kind != "reader"]
        pools, files, picker = self.newest_pools(), self._fleet_files(), pick_rows.status(self._parts.picker)
        sources = self._sources()
        topology = served.composed.whole.topology if served else None
        found = Observed(
            self.ready() or self.unseen(), files, pools, proxies,
            xds_proxies(topology, xds_kinds()).named if topology else (), self._parts.member is None,
            time.time() - self._since, picker, sources, self._unsaved(), self._parts.audit.notes,
            self._parts.options.dry_run, self._parts.rollbacks.history.rollback is not None, self.rollouts().rollouts,
            self._parts.member.refused if self._parts.member is not None else "",
            served.refused_keys if served else {},
        )  # fmt: skip
        return schema.Status(
            version=__version__,
            since=status_rows.timestamp(self._since),
            ready=not self.ready(),
            waiting=self.ready() or None,
            problems=problems(found),
            replicas=replica_counts(pools),
            dry_run=self._parts.options.dry_run,
            snapshot=self._snapshot(),
            fleet=files,
            served=history_rows.served(self._parts.rollbacks.history),
            restart=self._parts.endpoints.restart_needed(served.loaded.source) if served else (),
            proxies=dict(sorted(Counter(map(_counted_state, envoys_and_driven)).items())),
            unmatched=tuple(
                schema.UnmatchedNode(item.node, item.reason) for item in envoys_and_driven if item.state == "REFUSED"
            ),
            overrides=self.overrides().overrides,
            control=self._control(),
            sources=sources,
            names=tuple(status_rows.discovered_name(item) for item in self._parts.discovery.names()),
            listens=self._listens(),
            picker=picker,
            member=member_rows.own(self._parts.member),
        )

    def _unsaved(self) -> str:
        """Return why what is decided is not saved; empty where it is."""
        member = self._parts.member
        problem = (member.election.problem if member is not None else "") or self._parts.audit.problem
        return problem or _full(self._listens().state)

    def fleet(self) -> schema.FleetSettings:
        """Return `/api/v1/fleet`."""
        served = self._parts.live.served
        settings = of_fleet(served.loaded.compiled.topology) if served else {}
        return schema.FleetSettings({dotted(path): value for path, value in settings.items()})

    def picks(self) -> schema.Picks:
        """Return `GET /api/v1/picks`."""
        return pick_rows.picks(self._parts.picker)

    @property
    def pick_feed(self) -> Feed:
        """The tables for pickers."""
        return self._parts.picker.feed

    def metrics(self) -> bytes:
        """Return the page of metrics in the text format of Prometheus."""
        return self._parts.metrics.page()

    def members(self) -> schema.Members:
        """Return `GET /api/v1/members`."""
        return member_rows.members(self._parts.member)

    def age(self) -> float | None:
        """Return how old what is read here may be, in seconds; None where this process decides."""
        return self._parts.member.lag if self._parts.member is not None else None

    def forwards_to(self) -> LeaderAddress | None:
        """Return where writes are forwarded to; None where this process carries them out."""
        if self._parts.member is None or self._parts.member.leads:
            return None
        member, status = self._parts.member, self._parts.member.records.leader
        return LeaderAddress(
            member.name, status.member if status else "", member.leader_api, self._api_certificate(), member.requests
        )

    def member_requests(self) -> MemberRequests | None:
        """Return what verifies the requests of other members; None where this process is the only one."""
        return self._parts.member.requests if self._parts.member is not None else None

    def _api_certificate(self) -> str | None:
        tls = self._parts.endpoints.settings.control.api_tls if self._parts.endpoints.settings else None
        return tls.certificate if tls else None

    def _fleet_files(self) -> schema.FleetFiles:
        """Return the result of the last read, with losses in the files or in answers to names that wait."""
        last_reload = self._parts.reconciler.last_reload
        served = self._parts.live.served
        pending = (*(last_reload.shrink if last_reload else ()), *(served.refused_answers if served else ()))
        return schema.FleetFiles(
            paths=self._parts.options.paths,
            directory=_working_directory(),
            valid=last_reload is not None and last_reload.valid,
            read=status_rows.when(last_reload.at if last_reload else None),
            refused=last_reload.refused if last_reload else None,
            shrink=status_rows.diagnostics(pending),
            diagnostics=status_rows.diagnostics(last_reload.diagnostics if last_reload else ()),
        )

    def _listens(self) -> schema.Listens:
        settings, opened = self._parts.endpoints.settings, self._parts.endpoints.opened
        state = settings.control.state if settings and not self._parts.options.dry_run else None
        return schema.Listens(xds=opened.xds, xds_socket=opened.socket, api=opened.api, state=state)


def _counted_state(row: schema.Proxy) -> str:
    return row.state if row.confirmed else "UNCONFIRMED"


def _working_directory() -> str:
    """Return the working directory; empty where it is deleted."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _full(state: str | None) -> str:
    """Return that the disk of the state directory is full; an empty text where it is not, or where that is unknown."""
    try:
        is_full = state is not None and shutil.disk_usage(state).free < _MIN_FREE_BYTES
    except OSError:
        return ""
    return f"the disk of {state} is full" if is_full else ""
