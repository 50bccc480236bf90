"""Proxies that have a driver, the keys they need, and lazy imports of drivers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from lbctl.base.registry import Registry
from lbctl.ir.address import Address
from lbctl.ir.proxies import Proxy, Reload
from lbctl.ir.topology import Topology
from lbctl.serve.drivers import registry
from lbctl.serve.drivers.eligibility import driven, needs_driver, undriven
from lbctl.targets import KINDS, target
from tests.support.paths import FIXTURES

RELOAD = Reload(("reload",))


@pytest.mark.parametrize(
    ("proxy", "reason"),
    [
        (Proxy("a", "nginx", (1, 22)), "it has no config with reload"),
        (Proxy("a", "nginx", (1, 22), config="/etc/nginx.conf"), "it has no config with reload"),
        (Proxy("a", "nginx", (1, 22), config="/etc/nginx.conf", reload=RELOAD), ""),
        (Proxy("a", "haproxy", (2, 6)), "it has no runtime_api, no agent_check, and no config with reload"),
        (Proxy("a", "haproxy", (2, 6), runtime_api="/run/haproxy.sock"), ""),
        (Proxy("a", "haproxy", (2, 6), agent_check=Address("127.0.0.1", 1)), ""),
        (Proxy("a", "envoy", (1, 40)), ""),
        (Proxy("a", "envoy", (1, 40), config="/etc/envoy.yaml"), "Envoy with `config` reads files unless it connects"),
        (Proxy("a", "envoy", (1, 40), config="/etc/envoy.yaml", nodes=("a-*",)), ""),
        (Proxy("a", "envoy", (1, 40), config="/etc/envoy.yaml", node_san="a"), ""),
    ],
)
def test_proxy_is_driven_if_its_entry_has_the_keys(proxy: Proxy, reason: str) -> None:
    assert undriven(proxy) == reason
    by_driver = proxy.kind != "envoy"
    assert [item.name for item in needs_driver(Topology((), (), (), (proxy,)))] == ["a"] * (by_driver or bool(reason))
    assert [item.name for item in driven(Topology((), (), (), (proxy,)))] == ["a"] * (by_driver and not reason)


def test_kind_without_driver_is_not_driven(monkeypatch: pytest.MonkeyPatch) -> None:
    haproxy = registry.DRIVERS.get("haproxy")
    monkeypatch.setattr(registry, "DRIVERS", Registry({"haproxy": haproxy}))
    proxy = Proxy("edge", "nginx", (1, 22), config="/etc/nginx.conf", reload=RELOAD)
    assert undriven(proxy) == "lbctl has no driver for nginx"
    assert driven(Topology((), (), (), (proxy,))) == ()


def test_every_kind_has_a_driver_or_is_served_by_xds() -> None:
    assert {kind for kind in KINDS if not target(kind).served_by_xds} == set(registry.DRIVERS.names)


def test_checks_by_serve_are_declared_by_the_target() -> None:
    for kind in registry.DRIVERS.names:
        checked = registry.DRIVERS.get(kind).active_checks
        assert checked == ("pool.health.http" in target(kind).done_by_control_plane)


@pytest.mark.parametrize("arguments", [("validate",), ("render", "-t", "nginx", "-d", "{out}")])
@pytest.mark.slow
def test_offline_command_imports_no_driver(arguments: tuple[str, ...], tmp_path: Path) -> None:
    arguments_of_run = [item.format(out=tmp_path) for item in (*arguments, str(FIXTURES / "quickstart.yaml"))]
    script = (
        "import sys; from lbctl.cli import run; code = run(sys.argv[1:])\n"
        "unwanted = ('lbctl.apply.nginx', 'lbctl.apply.haproxy', 'lbctl.serve.drivers.nginx',"
        " 'lbctl.serve.drivers.haproxy', 'lbctl.serve.drivers.supervisor')\n"
        "print([name for name in unwanted if name in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments_of_run], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "[]"), done.stderr
