"""How near a replica is to a proxy is one rule: nginx, HAProxy and Envoy give a replica the same place in the order."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
import yaml

from lbctl.ir.address import Address
from lbctl.ir.listeners import Listener, Rule
from lbctl.ir.pools import Balance, Locality, Pool, Replica
from lbctl.ir.proxies import Proxy
from lbctl.ir.routes import Forward, Route, Share
from lbctl.ir.snapshot import Snapshot, View, view
from lbctl.ir.topology import Topology
from lbctl.targets import target

Place = tuple[str | None, str | None]
_HOME: Place = ("east", "a")
_EXPECTED: tuple[tuple[Place, Place, str], ...] = (
    (_HOME, ("east", "a"), "zone"),
    (_HOME, ("east", "b"), "region"),
    (_HOME, ("east", None), "region"),
    (_HOME, ("west", "a"), "rest"),
    (_HOME, ("west", "b"), "rest"),
    (_HOME, (None, "a"), "zone"),
    (_HOME, (None, "b"), "rest"),
    (_HOME, (None, None), "rest"),
    ((None, "a"), ("west", "a"), "zone"),
    ((None, "a"), (None, "a"), "zone"),
    ((None, "a"), ("west", "b"), "rest"),
    (("east", None), ("east", "a"), "region"),
    (("east", None), ("west", "a"), "rest"),
    (("east", None), (None, None), "rest"),
)
"""(region, zone) of the proxy, of the replica, and whose tier the replica is in."""


def _view(kind: str, home: Place, *places: Place, prefer: str = "zone") -> View:
    """The replicas are called r0, r1, … in the order of `places`."""
    members = tuple(
        Replica(f"r{number}", Address("127.0.0.1", 9000 + number), region=region, zone=zone)
        for number, (region, zone) in enumerate(places)
    )
    pool = Pool("p", members, balance=Balance("round_robin"), locality=Locality(prefer))  # type: ignore[arg-type]
    listener = Listener("l", Address("127.0.0.1", 8080), rules=(Rule("r"),))
    route = Route("r", Forward((Share("p", 1),)), ("l",))
    version = {"nginx": (1, 22), "haproxy": (2, 6), "envoy": (1, 40)}[kind]
    proxy = Proxy("edge", kind, version, region=home[0], zone=home[1])
    return view(Snapshot(Topology((listener,), (route,), (pool,))), proxy)


def _tiers(kind: str, given: View) -> dict[str, int]:
    """Replica → in which step it gets requests, as the text of the proxy has it."""
    text = target(kind).render(given).main.text
    return dict({"nginx": _nginx, "haproxy": _haproxy, "envoy": _envoy}[kind](text))


def _nginx(text: str) -> Iterator[tuple[str, int]]:
    for port, rest in re.findall(r"server 127\.0\.0\.1:90(\d\d)([^;]*);", text):
        yield f"r{int(port)}", int("backup" in rest)


def _haproxy(text: str) -> Iterator[tuple[str, int]]:
    """The backend of a tier has the replicas of all tiers before it, too: the first one counts."""
    backends = re.findall(r"^backend pool_p(?:\.NEAR\.\d)?\n(.*?)(?=^\S|\Z)", text, re.M | re.S)
    for tier, body in reversed(list(enumerate(backends))):
        yield from ((name, tier) for name in re.findall(r"^\s+server (r\d+) ", body, re.M))


def _envoy(text: str) -> Iterator[tuple[str, int]]:
    clusters = yaml.safe_load(text)["static_resources"]["clusters"]
    (assignment,) = (item["load_assignment"] for item in clusters if "load_assignment" in item and item["name"] == "p")
    for group in assignment["endpoints"]:
        yield from ((item["endpoint"]["hostname"], group.get("priority", 0)) for item in group["lb_endpoints"])


@pytest.mark.parametrize(("home", "place", "expected"), _EXPECTED)
@pytest.mark.parametrize("kind", ["nginx", "haproxy", "envoy"])
def test_a_replica_is_in_the_tier_of_those_that_are_as_near(
    kind: str, home: Place, place: Place, expected: str
) -> None:
    """r1 is in the proxy's zone, r2 in another zone of its region, r3 in another region."""
    tiers = _tiers(kind, _view(kind, home, place, home, (home[0], "other"), ("elsewhere", "other")))
    nearest = {"zone": tiers["r1"], "region": tiers["r2"], "rest": tiers["r3"]}
    assert tiers["r0"] == nearest[expected]
    assert (nearest["zone"] < nearest["rest"]) or home[1] is None


@pytest.mark.parametrize("kind", ["nginx", "haproxy", "envoy"])
def test_where_the_region_is_preferred_a_zone_counts_for_nothing(kind: str) -> None:
    tiers = _tiers(kind, _view(kind, _HOME, ("east", "a"), ("east", "b"), ("west", "a"), (None, "a"), prefer="region"))
    assert tiers == {"r0": 0, "r1": 0, "r2": 1, "r3": 1}


def test_nginx_says_that_a_lost_zone_is_shared_by_region_and_rest() -> None:
    three = _view("nginx", _HOME, ("east", "a"), ("east", "b"), ("west", "a"))
    (said,) = target("nginx").render(three).diagnostics
    assert (said.code, said.path) == ("LB467", ("pools", "p", "locality"))
    assert target("nginx").render(_view("nginx", _HOME, ("east", "a"), ("west", "a"))).diagnostics == ()
    assert target("nginx").render(replace(three, proxy=replace(three.proxy, zone=None))).diagnostics == ()
