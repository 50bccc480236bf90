from __future__ import annotations

import pytest
import yaml

from lbctl.model.fleet import Fleet
from tests.support.fleet import compiling
from tests.support.paths import FIXTURES
from tests.support.schema import leaves, places


@pytest.mark.parametrize("name", ["fleet", "full", "quickstart"])
def test_the_fixture_fleets_are_valid(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FIXTURES)
    fleet, diagnostics = compiling((FIXTURES / f"{name}.yaml").read_text())
    assert diagnostics == []
    assert fleet is not None


def test_the_full_fleet_uses_every_key_of_the_schema() -> None:
    document = yaml.safe_load((FIXTURES / "full.yaml").read_text())
    paths = list(leaves())
    assert len(paths) > 200
    assert [path for path in paths if not next(places(document, path), None)] == []
    assert {path[0] for path in paths} | {"defaults"} == set(Fleet.model_fields)
