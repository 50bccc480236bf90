from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, view
from lbctl.targets.envoy.auth import gates
from lbctl.targets.target import Bundle
from tests.support.envoy import API_KEY, bundle_with_key
from tests.support.fleets import fleet_of, load_fleet, pool, replica
from tests.support.jwks import ec_jwk, jwks


def _listeners(bundle: Bundle) -> list[list[str]]:
    main, apart = (yaml.safe_load(file.text) for file in bundle.files)
    return [[item["name"] for item in items] for items in (main["static_resources"]["listeners"], apart["resources"])]


def test_listener_with_keys_is_in_a_secret_file() -> None:
    bundle = bundle_with_key()
    assert [(file.name, file.secret) for file in bundle.files] == [
        ("envoy.yaml", False),
        ("envoy-listeners.yaml", True),
    ]
    assert _listeners(bundle) == [["internal"], ["public"]]
    assert API_KEY not in bundle.main.text


@pytest.mark.parametrize(
    ("config", "path"),
    [(None, "./envoy-listeners.json"), ("/etc/envoy/envoy.json", "/etc/envoy/envoy-listeners.json")],
)
def test_secret_file_is_next_to_the_configuration(config: str | None, path: str) -> None:
    main: dict[str, Any] = yaml.safe_load(bundle_with_key("json", config).main.text)
    assert main["dynamic_resources"]["lds_config"]["path_config_source"] == {"path": path}


def test_key_of_a_websocket_is_removed_next_to_a_token(tmp_path: Path) -> None:
    """Every way into the route removes the key from the subprotocols, including a request with a valid token."""
    (tmp_path / "keys").write_text("sk-abc: acme\n")
    (tmp_path / "jwks.json").write_text(jwks(ec_jwk("P-256", kid="k")))
    auth = {
        "api_keys": {"file": "keys", "websocket_protocol": True},
        "jwt": {"issuer": "https://issuer.example", "jwks_file": "jwks.json", "audiences": ["inference"]},
    }
    loaded = load_fleet(tmp_path, fleet_of(pool(replica("a")), route={"websocket": True, "auth": auth}))
    snapshot = Snapshot(loaded.compiled.topology, secrets=loaded.secrets)
    rendered = view(snapshot, Proxy("e", "envoy", (1, 40)))
    ways = [filters for _, filters in gates(rendered, rendered.routes["everything"])]
    assert len(ways) == 2
    assert all("lbctl.websocket_key" in filters for filters in ways)
