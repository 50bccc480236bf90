"""The file modes of rendered configurations with and without credentials."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from lbctl.apply.files import write_bundle
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, view
from lbctl.targets import KINDS, target
from tests.support.fleet import OLDEST, compiled
from tests.support.fleets import fleet_text

_SECRET = "not-a-real-key-1"
_ROUTES: dict[str, dict[str, Any]] = {
    "set": {"headers": {"request": {"set": {"authorization": f"Bearer {_SECRET}"}}}},
    "matched": {"match": {"path_prefix": "/", "headers": {"x-api-key": _SECRET}}},
    "matched by another name": {"match": {"path_prefix": "/", "headers": {"x-internal-access-token": _SECRET}}},
}


def write_configuration(kind: str, route: dict[str, Any], directory: Path) -> None:
    topology = compiled(fleet_text(route=route)).topology
    bundle = target(kind).render(view(Snapshot(topology), Proxy("edge", kind, OLDEST[kind])))
    write_bundle(bundle, str(directory))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("route", _ROUTES)
def test_configuration_with_a_credential_is_private(kind: str, route: str, tmp_path: Path) -> None:
    write_configuration(kind, _ROUTES[route], tmp_path)
    secret_files = [item for item in tmp_path.iterdir() if _SECRET in item.read_text().replace("\\", "")]
    assert [stat.S_IMODE(item.stat().st_mode) for item in secret_files] == [0o600]


@pytest.mark.parametrize("kind", KINDS)
def test_configuration_without_credentials_is_readable(kind: str, tmp_path: Path) -> None:
    write_configuration(kind, {}, tmp_path)
    assert {stat.S_IMODE(item.stat().st_mode) for item in tmp_path.iterdir()} == {0o644}
