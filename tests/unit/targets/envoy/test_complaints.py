"""The errors that Envoy's checker printed for a broken file are reported at their places in the fleet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lbctl.apply.files import write_bundle
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, view
from lbctl.targets.envoy import TARGET
from tests.support.envoy import API_KEY, FLEET, bundle_with_key, envoy_bundle
from tests.support.fleets import fleet_of, load_fleet, pool, replica

LOGGED = (
    "[2026-11-28 17:23:27.289][27621][critical][main] [source/server/config_validation/server.cc:76] "
    "error initializing configuration '/tmp/envoy.yaml': "
)
REGEX = r"/x(?:\.|%2[Ee])Y(?:/.*)?("
NESTED = "embedded message failed validation | caused by "


def violation(dump: str, *fields: str) -> str:
    """Return the output for a violated constraint: the message, and the path to the field."""
    return f"{LOGGED}goo.gle/debugonly   \n{dump}\n: Proto constraint validation failed ({NESTED.join(fields)})\n"


@pytest.mark.parametrize(
    ("output", "path", "message"),
    [
        (
            f"{LOGGED}missing ): /x(?:\\.|%2[Ee])Y(?:/.*)?(\n",
            ("routes", "rpc"),
            r"missing ): /x(?:\.|%2[Ee])Y(?:/.*)?(",
        ),
        (
            violation(
                'node {\n  id: "edge-envoy"\n}',
                "BootstrapValidationError.StaticResources: ",
                "StaticResourcesValidationError.Clusters[0]: ",
                "SocketAddressValidationError.PortValue: value must be less than or equal to 65535",
            ),
            ("pools", "ranked"),
            "SocketAddress.PortValue: value must be less than or equal to 65535",
        ),
        (
            violation("node {\n}", "StaticResourcesValidationError.Listeners[1]: ", "ListenerValidationError.X: no"),
            ("listeners", "public"),
            "Listener.X: no",
        ),
        (
            violation('stat_prefix: "nowhere"', "RouteConfigurationValidationError.VirtualHosts[0]: no"),
            (),
            "RouteConfiguration.VirtualHosts[0]: no",
        ),
        (
            violation('stat_prefix: "public"', "RouteConfigurationValidationError.VirtualHosts[0]: no"),
            ("listeners", "public"),
            "RouteConfiguration.VirtualHosts[0]: no",
        ),
        (f"{LOGGED}no cluster 'shadow'\n", ("pools", "shadow"), "no cluster 'shadow'"),
        ("[2026-11-28 17:23:27.289][1][info][main] [server.cc:1] listening\n", None, ""),
    ],
)
def test_error_is_reported_at_its_object(output: str, path: tuple[str, ...] | None, message: str) -> None:
    complaints = [(item.path, item.message) for item in TARGET.complaints(output, envoy_bundle())]
    assert complaints == ([] if path is None else [(path, message)])


@pytest.mark.slow
def test_broken_route_is_reported_by_its_name() -> None:
    bundle = envoy_bundle()
    (listener,) = [
        item for item in yaml.safe_load(bundle.main.text)["static_resources"]["listeners"] if item["name"] == "public"
    ]
    hosts = listener["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]["virtual_hosts"]
    host, route = next(
        (f"VirtualHosts[{i}]", f"Routes[{j}]")
        for i, item in enumerate(hosts)
        for j, entry in enumerate(item["routes"])
        if entry.get("name") == "gone"
    )
    output = violation(
        'stat_prefix: "public"', f"AValidationError.{host}: ", f"BValidationError.{route}: ", "CValidationError.D: e"
    )
    (complaint,) = TARGET.complaints(output, bundle)
    assert (complaint.path, complaint.message) == (("routes", "gone"), "C.D: e")


def test_missing_file_is_reported_at_its_pool() -> None:
    bundle = envoy_bundle(FLEET.replace("  shadow: {replicas", "  shadow: {tls: {ca: /nowhere/ca.crt}, replicas"))
    (complaint,) = TARGET.complaints(f"{LOGGED}Invalid path: /nowhere/ca.crt\n", bundle)
    assert (complaint.path, complaint.message) == (("pools", "shadow"), "Invalid path: /nowhere/ca.crt")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (f'{LOGGED}Unable to parse JSON as proto (unexpected {API_KEY}): {{"node": 1}}\n', "(unexpected …)"),
        (f"{LOGGED}no such field: 'nonsense'\nkey {API_KEY}\n", "no such field: 'nonsense' key …"),
    ],
)
def test_error_contains_no_key(output: str, message: str) -> None:
    (complaint,) = TARGET.complaints(output, bundle_with_key())
    assert complaint.message.endswith(message)


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_checked_file_has_the_listeners_of_both_files(form: str, tmp_path: Path) -> None:
    bundle = bundle_with_key(form)
    write_bundle(bundle, str(tmp_path))
    checked = Path(TARGET.check_command("envoy", str(tmp_path), str(tmp_path / bundle.main.name))[-1])
    assert checked.stat().st_mode & 0o777 == 0o600
    content: dict[str, Any] = yaml.safe_load(checked.read_text())
    assert [item["name"] for item in content["static_resources"]["listeners"]] == ["internal", "public"]


def test_error_contains_no_key_of_a_replica(tmp_path: Path) -> None:
    """A cluster has the key of its health check, and Envoy prints a cluster that it refuses."""
    (tmp_path / "key").write_text("Bearer sk-100%-of-a-replica\n")
    fleet = fleet_of(
        pool(
            replica("a"),
            credentials={"header": "authorization", "file": "key"},
            health={"active": {"http": {"path": "/health"}}},
        )
    )
    loaded = load_fleet(tmp_path, fleet)
    snapshot = Snapshot(loaded.compiled.topology, secrets=loaded.secrets)
    bundle = TARGET.render(view(snapshot, Proxy("e", "envoy", (1, 40))))
    for written in ("sk-100%%-of-a-replica", "sk-100%-of-a-replica"):
        (complaint,) = TARGET.complaints(f"{LOGGED}refused: 'Bearer {written}'\n", bundle)
        assert complaint.message == "refused: '…'"
