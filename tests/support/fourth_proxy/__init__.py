"""A fourth kind of proxy, added as a contributor would add it: a target, a driver, and one line in each of the two
registries.

`python -m tests.support.fourth_proxy ARGUMENTS` is `lbctl ARGUMENTS` with this kind. Its proxy is a small program in
this package (`proxy`) that balances real requests by weights.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.own_lines import OwnLinesPlace
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Forward
from lbctl.ir.snapshot import View
from lbctl.ir.weight import Weight
from lbctl.targets.features import FEATURES
from lbctl.targets.replica_weights import quantise
from lbctl.targets.target import (
    CONTROL_PLANE,
    Bundle,
    Capability,
    Complaint,
    File,
    Rendered,
    Shedding,
    Unsupported,
    Version,
)

KIND = "toy"
_RENDERED = {
    "listener.bind", "route.match", "route.pool", "pool.replicas", "pool.model", "pool.protocol.http1", "fleet",
    "pool.balance.round_robin", "pool.replicas.drain", "proxies",
}  # fmt: skip
_NO = Unsupported("it is a toy", "nothing")
_MAX_WEIGHT = 100
"""Maximum weight of a replica."""


class ToyTarget:
    """Renders `toy.json`: each listener's first route to a pool, and the weights of the pool."""

    kind = KIND
    title = "Toy"
    binary = "toyproxy"
    install_hint = "write toyproxy"
    wheel = ""
    forms: Sequence[str] = ("json",)
    versions: Sequence[Version] = ((1, 0),)
    served_by_xds = False
    counted_with = None
    done_by_control_plane = frozenset({"pool.health.http"})
    compares_hashes = False
    retries_grpc = False
    prefers_idle_replicas = False
    reads_bodies = True
    capabilities: Mapping[str, Capability] = {
        item.id: Rendered() if item.id in _RENDERED else CONTROL_PLANE.get(item.id, _NO) for item in FEATURES
    }

    own_line_places: Mapping[str, OwnLinesPlace] = {
        "http": OwnLinesPlace(),
        "backend": OwnLinesPlace("pools", in_fragments=False),
    }
    fragment_example = "/etc/toy/lbctl.json"
    service_config = ""

    def sheds(self, pool: Pool, have_fallback: Sequence[bool]) -> Shedding:
        del pool, have_fallback
        return "none"

    def readmission(self, pool: Pool) -> str:
        del pool
        return ""

    def unfit_for_service(self, view: View) -> str:
        del view
        return ""

    def log_files(self, view: View) -> Sequence[str]:
        del view
        return ()

    def companions(self, proxy: Proxy, pools: Sequence[Pool]) -> Sequence[str]:
        del proxy
        return ["toy.map"] if len(pools) > 1 else []

    def refusals(self, view: View) -> Iterable[Diagnostic]:
        del view
        return ()

    def served(self, view: View) -> View:
        return view

    def object_names(self, view: View) -> Collection[tuple[str, str, str]]:
        del view
        return ()

    def render(self, view: View, form: str = "json") -> Bundle:
        del form
        listeners = [dict(_listener(view, item.name, str(item.bind))) for item in view.listeners]
        return Bundle((File("toy.json", json.dumps({"listeners": listeners}, indent=1) + "\n"),))

    def diagnostics(self, view: View) -> tuple[Diagnostic, ...]:
        del view
        return ()

    def quantised_weights(self, pool: Pool, weights: tuple[Weight, ...]) -> list[int]:
        del pool
        return quantise(tuple(item.rate for item in weights), _MAX_WEIGHT)

    def check_command(self, binary: str, prefix: str, main: str) -> list[str]:
        del prefix
        return [binary, "--check", main]

    def complaints(self, output: str, bundle: Bundle) -> Iterable[Complaint]:
        return [Complaint(line, bundle.main.name) for line in output.splitlines()]


def _listener(view: View, name: str, bind: str) -> Iterator[tuple[str, Any]]:
    yield "name", name
    yield "bind", bind
    rules = next(item.rules for item in view.listeners if item.name == name)
    actions = (view.routes[rule.route].action for rule in rules)
    names = [share.pool for action in actions if isinstance(action, Forward) for share in action.shares]
    for pool in [view.pools[each] for each in names[:1]]:
        weights = TARGET.quantised_weights(pool, view.weights[pool.name])
        yield (
            "replicas",
            [
                {"name": item.name, "address": str(item.address), "weight": weight}
                for item, weight in zip(pool.replicas, weights, strict=True)
                if item.name not in view.drained[pool.name]
            ],
        )


TARGET = ToyTarget()
