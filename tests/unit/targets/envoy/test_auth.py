from __future__ import annotations

from typing import Any

import pytest
import yaml

from lbctl.targets.target import Bundle
from tests.support.envoy import API_KEY, bundle_with_key


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
