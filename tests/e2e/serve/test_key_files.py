"""Key files that are truncated, gone or half written while `lbctl serve` runs: who was let in goes on being let in."""

from __future__ import annotations

import subprocess
import sys
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
from tests.support.processes.replicas import replicas
from tests.support.processes.tokens import ISSUER, Issuer, bearer
from tests.support.processes.waiting import eventually

_KEYS = "".join(f"sk-of-{number}: tenant{number}\n" for number in range(10))
_GOOD = Request("GET", "/", [("authorization", "Bearer sk-of-9")], timeout=20.0)


@dataclass(frozen=True)
class Site:
    """An Envoy, a HAProxy and an nginx that one `lbctl serve` drives."""

    control: ControlPlane
    clients: Mapping[str, Client]

    @property
    def keys(self) -> Path:
        return self.control.files / "keys"

    def deploy(self, text: str, name: str = "keys") -> None:
        self.control.write_text(text, name)

    def statuses(self, key: str) -> set[int]:
        return {each.get(headers={"authorization": key}).status for each in self.clients.values()}

    def refused(self) -> str:
        return str(self.control.status["fleet"]["refused"])

    def check(self) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "lbctl", "status", "--check", "--server", self.control.url]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@contextmanager
def _site() -> Iterator[Site]:
    with (
        replicas("a") as (a,),
        edges.haproxy(min_interval="100ms") as ha,
        edges.nginx(min_interval="100ms") as ng,
        ExitStack() as stack,
    ):
        route = {"auth": {"api_keys": {"file": "keys"}}}
        fleet = fleet_of(pool_of([a]), route=route, **driven("edge"))
        del fleet["listeners"]["gateway"]
        for site in (ha, ng):
            for section, entries in site.sections.items():
                fleet[section] = {**fleet[section], **entries}
            stack.enter_context(edges.started_edge(site, fleet))
        control = stack.enter_context(controlling(fleet, files={"keys": _KEYS}))
        eventually(lambda: all(control.proxies[site.name]["state"] == "SYNCED" for site in (ha, ng)))
        envoy = stack.enter_context(control.envoy("edge", ["edge"], by_socket=True))
        site = Site(control, {"envoy": envoy.client(), "haproxy": ha, "nginx": ng})
        eventually(lambda: site.statuses("sk-of-9") == {200})
        yield site


@contextmanager
def _let_in(site: Site) -> Iterator[None]:
    """Requests with a good key through each proxy, of which none may be refused.

    Each has a connection of its own: a reload closes idle ones, also in the moment in which they are used again.
    """
    with ExitStack() as stack:
        steady = (each.steady(20, _GOOD, keep_alive=False) for each in site.clients.values())
        loads: list[Steady] = [stack.enter_context(each) for each in steady]
        yield
    for load in loads:
        load.load.assert_no_failure()


def test_whatever_happens_to_the_key_file_its_clients_are_let_in_and_it_is_said_everywhere() -> None:
    with _site() as site:
        with _let_in(site):
            site.keys.write_text("")
            eventually(lambda: "holds no key" in site.refused())
            time.sleep(1.5)
            shown = site.check()
            assert shown.returncode == 3
            words = "NOT served: key file 'keys' holds no key: the 10 keys that it held before stay in use"
            assert words in shown.stdout
            assert site.control.metrics()["lbctl_key_files_held"] == 1
            assert site.control.metrics()["lbctl_fleet_valid"] == 0
            assert "LB531" in site.control.log

            site.keys.unlink()
            eventually(lambda: "cannot be used" in site.refused())
            time.sleep(1.5)
            with site.keys.open("w") as file:
                for line in _KEYS.splitlines(keepends=True):
                    file.write(line)
                    file.flush()
                    time.sleep(0.3)
            eventually(lambda: bool(site.control.status["fleet"]["valid"]))
        assert site.control.metrics()["lbctl_key_files_held"] == 0
        eventually(lambda: site.check().returncode == 0)
        assert "sk-of" not in site.control.log


def test_single_keys_are_revoked_at_once_and_all_of_them_when_it_is_confirmed() -> None:
    with _site() as site:
        with _let_in(site):
            site.deploy(_KEYS.replace("sk-of-3: tenant3\n", ""))
            eventually(lambda: site.statuses("sk-of-3") == {401})
        site.deploy(_KEYS.replace("sk-of", "sk-new"))
        eventually(lambda: site.statuses("sk-new-9") == {200} and site.statuses("sk-of-9") == {401})
        site.deploy("# nobody any more\n")
        eventually(lambda: "holds no key" in site.refused())
        assert site.statuses("sk-new-9") == {200}
        assert site.control.reload(allow_shrink=True).json()["result"] == "published"
        eventually(lambda: site.statuses("sk-new-9") == {401})


def test_a_path_with_a_typo_is_not_served_and_locks_nobody_out() -> None:
    with _site() as site, _let_in(site):
        text = (site.control.files / "fleet.yaml").read_text()
        site.deploy(text.replace("file: keys", "file: kyes"), "fleet.yaml")
        eventually(lambda: "kyes" in site.refused())
        time.sleep(1)
        line = next(number for number, words in enumerate(text.splitlines(), 1) if "file: keys" in words)
        shown = site.check()
        assert shown.returncode == 3
        assert f"fleet.yaml:{line}:" in shown.stdout
        assert "error LB530 routes.everything.auth.api_keys.file" in shown.stdout


@pytest.mark.parametrize("damage", ["", '{"keys": []}', '{"keys": [{"kty"', None])
def test_a_damaged_jwks_leaves_its_tokens_good(damage: str | None) -> None:
    issuer = Issuer()
    route = {"auth": {"jwt": {"issuer": ISSUER, "jwks_file": "jwks.json"}}}
    with (
        replicas("a") as (a,),
        controlling(fleet_of([a], route=route), files={"jwks.json": issuer.jwks()}) as control,
        control.envoy("edge", by_socket=True) as envoy,
    ):
        client, token = envoy.client(), bearer(issuer.rs256())
        eventually(lambda: client.get(headers=token).ok)
        file = control.files / "jwks.json"
        if damage is None:
            file.unlink()
        else:
            file.write_text(damage)
        eventually(lambda: not control.status["fleet"]["valid"])
        assert "key file 'jwks.json'" in control.status["fleet"]["refused"]
        time.sleep(1)
        assert client.get(headers=token).ok
        assert client.get().status == 401
