"""A member of a control plane in this process, with a real store and without endpoints."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from lbctl.ir.proxies import Store
from lbctl.runtime import log
from lbctl.runtime.guard import end_tasks
from lbctl.serve import wiring
from lbctl.serve.api.endpoints import Endpoints
from lbctl.serve.ha.member import FleetMember
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.settings import Options
from lbctl.serve.wiring import Services, Shared
from lbctl.store.lease import Authority
from lbctl.store.open import open_shared
from lbctl.store.saved import SavedState
from lbctl.xds.protocol.node_status import NodeStatus
from tests.support.fleets import fleet_text, pool, replica
from tests.support.publishing import open_nothing

ENVOY = {"edge": {"kind": "envoy"}}


def fleet_with(name: str) -> str:
    """Return the YAML of a fleet with the replicas a and `name`, and one Envoy."""
    return fleet_text(pool(replica("a", "127.0.0.1:9"), replica(name, "127.0.0.2:9")), proxies=ENVOY)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(90):
        while not condition():
            await asyncio.sleep(0.01)


class Running:
    """A member without endpoints, its fleet file, and its parts."""

    def __init__(self, name: str, path: Path, services: Services, state: SavedState) -> None:
        assert services.member is not None
        self.name = name
        self.path = path
        self.services = services
        self.state = state
        self.member: FleetMember = services.member


def write_keys(directory: Path, *lines: str) -> str:
    """Write a key file with these lines, and return its path."""
    path = directory / "store-keys"
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


@asynccontextmanager
async def running(
    name: str,
    directory: Path,
    port: int,
    prefix: str,
    password: str | None = None,
    fleet: str = "",
    keys: str = "",
    lease: float = 60,
) -> AsyncIterator[Running]:
    """Run a member whose store is a Redis at this port, with the keys of this prefix.

    Its default fleet has the replicas a and b.

    Args: keys: The content of its key file. lease: Duration of its lease in seconds. Pass a short one only in a test in
    which a lease expires: a member on a busy machine may stall for longer than that.
    """
    path = directory / name / "fleet.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(fleet or fleet_with("b"))
    settings = Store(f"redis://127.0.0.1:{port}", prefix, lease=round(lease * 1000), password_file=password)
    if keys:
        settings = replace(settings, key_file=write_keys(path.parent, keys))
    store = open_shared(settings, name)
    shared = Shared(name, store, lease, Authority())
    options, nodes, metrics = Options((str(path),), str(path.parent / "state")), NodeStatus(), Metrics()
    state = SavedState(store, log.warn, shared.authority)
    services, restored = await wiring.build_from(
        options, Endpoints(options, nodes, metrics), metrics, nodes, state, shared
    )
    await services.reconciler.start(restored.fleet, open_nothing)
    assert services.member is not None
    tasks = [services.guard.start(task, work) for task, work in services.member.tasks().items()]
    try:
        yield Running(name, path, services, state)
    finally:
        await end_tasks(tasks)
        await services.discovery.stop()
        with suppress(Exception):
            await state.close()


@asynccontextmanager
async def leading(
    directory: Path, port: int, prefix: str = "", fleet: str = "", lease: float = 60
) -> AsyncIterator[Running]:
    """Run the member cp-1, which leads when the block begins. Without a prefix it uses its own keys."""
    async with running(
        "cp-1", directory, port, prefix or f"test:{secrets.token_hex(4)}", fleet=fleet, lease=lease
    ) as member:
        await until(lambda: member.member.leads)
        yield member


def served(member: Running) -> set[str]:
    """Return the names of the replicas that the member publishes."""
    published = member.services.live.served
    assert published is not None
    return {item.name for pool in published.composed.whole.topology.pools for item in pool.replicas}


def version(member: Running) -> str:
    """Return the version that the member publishes by xDS."""
    published = member.services.live.served
    assert published is not None
    return published.cached_snapshot.version
