"""Key files that are truncated, removed or half written while `lbctl serve` runs: their clients keep access."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.processes import edges
from tests.support.processes.client import Client, Steady
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.http1 import Request
from tests.support.processes.invocation import Invocation, invoke
from tests.support.processes.lbctl_process import HAPROXY_RELOADS, short_pauses
from tests.support.processes.replicas import replicas
from tests.support.processes.tokens import ISSUER, Issuer, bearer
from tests.support.processes.waiting import eventually

_HOLD = 0.7
"""Seconds in which requests would fail if the damage reached a proxy."""
_KEYS = "".join(f"sk-of-{number}: tenant{number}\n" for number in range(10))
_GOOD = Request("GET", "/", [("authorization", "Bearer sk-of-9")], timeout=20.0)


@dataclass(frozen=True)
class Site:
    """An Envoy, a HAProxy and an nginx that one `lbctl serve` drives."""

    control: ControlPlane
    clients: Mapping[str, Client]
    fleet: str

    @property
    def keys(self) -> Path:
        return self.control.files / "keys"

    def deploy(self, text: str, name: str = "keys") -> None:
        self.control.write_text(text, name)

    def statuses(self, key: str) -> set[int]:
        return {each.get(headers={"authorization": key}).status for each in self.clients.values()}

    def refused(self) -> str:
        return str(self.control.status["fleet"]["refused"])

    def check(self) -> Invocation:
        return invoke(["status", "--check", "--server", self.control.url])

    def restore(self) -> None:
        """Restore the initial fleet and keys."""
        self.deploy(self.fleet, "fleet.yaml")
        self.deploy(_KEYS)

        def is_served() -> bool:
            self.control.reload(allow_shrink=True)
            return self.statuses("sk-of-9") == {200} and self.statuses("sk-of-3") == {200}

        eventually(is_served, pause=0.2)


@pytest.fixture(scope="module")
def running_site() -> Iterator[Site]:
    with (
        short_pauses(HAPROXY_RELOADS),
        replicas("a") as (a,),
        edges.haproxy(min_interval="100ms") as ha,
        edges.nginx(min_interval="100ms") as ng,
        ExitStack() as stack,
    ):
        route = {"auth": {"api_keys": {"file": "keys"}}}
        fleet = fleet_of(pool_of([a]), route=route, **driven("edge"))
        del fleet["listeners"]["gateway"]
        edges.add(fleet, ha, ng)
        for site in (ha, ng):
            stack.enter_context(edges.started_edge(site, fleet))
        control = stack.enter_context(controlling(fleet, files={"keys": _KEYS}))
        eventually(lambda: all(control.proxies[site.name]["state"] == "SYNCED" for site in (ha, ng)))
        envoy = stack.enter_context(control.envoy("edge", ["edge"], by_socket=True))
        text = (control.files / "fleet.yaml").read_text()
        yield Site(control, {"envoy": envoy.client(), "haproxy": ha, "nginx": ng}, text)


@pytest.fixture
def site(running_site: Site) -> Site:
    running_site.restore()
    return running_site


@contextmanager
def _no_client_refused(site: Site) -> Iterator[None]:
    """Send requests with a valid key through each proxy. The test fails if one is rejected.

    Each has its own connection: a reload closes idle ones, even while a client begins to use them again.
    """
    with ExitStack() as stack:
        steady = (each.steady(20, _GOOD, keep_alive=False) for each in site.clients.values())
        loads: list[Steady] = [stack.enter_context(each) for each in steady]
        yield
    for load in loads:
        load.load.assert_no_failure()


def test_damaged_key_file_keeps_clients_and_is_reported(site: Site) -> None:
    with _no_client_refused(site):
        site.keys.write_text("")
        eventually(lambda: "contains no keys" in site.refused())
        time.sleep(_HOLD)
        check = site.check()
        assert check.code == 3
        problem = "NOT served: key file 'keys' contains no keys: the 10 keys that it contained before stay in use"
        assert problem in check.stdout
        assert site.control.metrics()["lbctl_key_files_held"] == 1
        assert site.control.metrics()["lbctl_fleet_valid"] == 0
        assert "LB531" in site.control.log

        site.keys.unlink()
        eventually(lambda: "cannot be used" in site.refused())
        time.sleep(_HOLD)
        with site.keys.open("w") as file:
            for line in _KEYS.splitlines(keepends=True):
                file.write(line)
                file.flush()
                time.sleep(0.15)
        eventually(lambda: bool(site.control.status["fleet"]["valid"]))
    assert site.control.metrics()["lbctl_key_files_held"] == 0
    eventually(lambda: site.check().code == 0)
    assert "sk-of" not in site.control.log


def test_one_key_is_revoked_at_once_and_all_after_confirmation(site: Site) -> None:
    with _no_client_refused(site):
        site.deploy(_KEYS.replace("sk-of-3: tenant3\n", ""))
        eventually(lambda: site.statuses("sk-of-3") == {401})
    site.deploy(_KEYS.replace("sk-of", "sk-new"))
    eventually(lambda: site.statuses("sk-new-9") == {200} and site.statuses("sk-of-9") == {401})
    site.deploy("# no keys\n")
    eventually(lambda: "contains no keys" in site.refused())
    assert site.statuses("sk-new-9") == {200}
    assert site.control.reload(allow_shrink=True).json()["result"] == "published"
    eventually(lambda: site.statuses("sk-new-9") == {401})


def test_fleet_with_wrong_key_file_path_is_not_served(site: Site) -> None:
    with _no_client_refused(site):
        site.deploy(site.fleet.replace("file: keys", "file: kyes"), "fleet.yaml")
        eventually(lambda: "kyes" in site.refused())
        time.sleep(_HOLD)
        line = next(number for number, text in enumerate(site.fleet.splitlines(), 1) if "file: keys" in text)
        check = site.check()
    assert check.code == 3
    assert f"fleet.yaml:{line}:" in check.stdout
    assert "error LB530 routes.everything.auth.api_keys.file" in check.stdout


@dataclass(frozen=True)
class TokenSite:
    """An Envoy that accepts the tokens of one issuer."""

    control: ControlPlane
    client: Client
    issuer: Issuer

    @property
    def keys(self) -> Path:
        return self.control.files / "jwks.json"


@pytest.fixture(scope="module")
def token_site() -> Iterator[TokenSite]:
    issuer = Issuer()
    route = {"auth": {"jwt": {"issuer": ISSUER, "jwks_file": "jwks.json"}}}
    with (
        replicas("a") as (a,),
        controlling(fleet_of([a], route=route), files={"jwks.json": issuer.jwks()}) as control,
        control.envoy("edge", by_socket=True) as envoy,
    ):
        yield TokenSite(control, envoy.client(), issuer)


@pytest.mark.parametrize("damage", ["", '{"keys": []}', '{"keys": [{"kty"', None])
def test_damaged_jwks_keeps_its_tokens_valid(token_site: TokenSite, damage: str | None) -> None:
    control, client, token = token_site.control, token_site.client, bearer(token_site.issuer.rs256())
    control.write_text(token_site.issuer.jwks(), "jwks.json")
    eventually(lambda: bool(control.status["fleet"]["valid"]) and client.get(headers=token).ok)
    if damage is None:
        token_site.keys.unlink()
    else:
        token_site.keys.write_text(damage)
    eventually(lambda: not control.status["fleet"]["valid"])
    assert "key file 'jwks.json'" in control.status["fleet"]["refused"]
    time.sleep(_HOLD)
    assert client.get(headers=token).ok
    assert client.get().status == 401
