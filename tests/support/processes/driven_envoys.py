"""One control plane and two Envoys, shared by several tests. Each test writes its own fleet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.fleets import Fleet
from tests.support.processes.control import ControlPlane, XdsEnvoy, controlling, driven
from tests.support.processes.driving import BOTH, both, synced
from tests.support.processes.fleet import fleet_of
from tests.support.processes.waiting import eventually


class DrivenEnvoys:
    """A running `lbctl serve`, and an Envoy for each protocol variant, each with the listener of its name."""

    def __init__(self, control: ControlPlane, envoys: tuple[XdsEnvoy, XdsEnvoy], sections: Fleet) -> None:
        self.control = control
        self.envoys = envoys
        self._sections = sections

    def fleet_of(self, pool: Any, **more: Any) -> Fleet:
        """Return a fleet with this pool and the listeners of both Envoys."""
        return fleet_of(pool, **self._sections, **more)

    def serve(self, fleet: Fleet) -> None:
        """Write the fleet of a test, even if it removes most of the previous replicas, and wait for both Envoys."""
        control = self.control
        if not control.ready():  # a failed test may have left it killed
            control.kill()
            control.start()
        addresses = {item["address"] for pool in fleet["pools"].values() for item in pool["replicas"]}
        control.write(fleet)

        def is_served() -> bool:
            if control.status["fleet"]["shrink"]:
                control.reload(allow_shrink=True)
            pools = control.get("pools")["pools"]
            return {item["address"] for pool in pools for item in pool["replicas"]} == addresses

        eventually(is_served)
        synced(control)


@contextmanager
def driven_pair() -> Iterator[DrivenEnvoys]:
    """Run a control plane and two Envoys. A test calls `serve` with its fleet first."""
    sections = driven(*BOTH)
    nowhere = {"replicas": [{"address": "127.0.0.1:9"}]}
    with controlling(fleet_of(nowhere, **sections)) as control, both(control) as envoys:
        yield DrivenEnvoys(control, envoys, sections)
