"""Envoy accepts the rendered files; its errors are reported at their places in the fleet."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.targets.envoy import TARGET
from lbctl.targets.target import Bundle
from tests.support.envoy import FLEET, check_bundle, envoy_bundle


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_envoy_accepts_the_configuration_without_warning(form: str, tmp_path: Path) -> None:
    code, output = check_bundle(envoy_bundle(form=form), tmp_path, "warning")
    assert (code, [line for line in output.splitlines() if "[warning]" in line]) == (0, [])


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("(?:/.*)?", "(?:/.*)?(", ("routes", "rpc")),
        ("port_value: 9007", "port_value: 90070", ("pools", "ranked")),
        ("path: /gone", "path: /gone, no_such_field: 1", ()),
    ],
)
def test_rejected_value_is_reported_at_its_object(old: str, new: str, path: tuple[str, ...], tmp_path: Path) -> None:
    bundle = envoy_bundle()
    assert old in bundle.main.text
    broken = Bundle((type(bundle.main)(bundle.main.name, bundle.main.text.replace(old, new), bundle.main.sources),))
    code, output = check_bundle(broken, tmp_path)
    complaints = list(TARGET.complaints(output, broken))
    assert (code, [item.path for item in complaints]) == (1, [path])
    assert len(complaints[0].message) < 400


def test_missing_file_is_reported_at_its_pool(tmp_path: Path) -> None:
    text = FLEET.replace("  shadow: {replicas", "  shadow: {tls: {ca: /nowhere/ca.crt}, replicas")
    bundle = envoy_bundle(text)
    _, output = check_bundle(bundle, tmp_path)
    assert [(item.path, item.message) for item in TARGET.complaints(output, bundle)] == [
        (("pools", "shadow"), "Invalid path: /nowhere/ca.crt")
    ]
