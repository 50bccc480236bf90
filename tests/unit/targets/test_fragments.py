"""HAProxy fragments that need settings of the process are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.targets.load import load
from tests.support.fleets import Fleet, fleet_of, load_fleet, pool, write_fleet

_PROXY = {"kind": "haproxy", "config": "/etc/haproxy/lbctl.cfg"}
_NEEDS: dict[str, tuple[str, Fleet]] = {
    "models": ("tune.bufsize", fleet_of(route={"match": {"path_prefix": "/", "model": ["llama"]}})),
    "bodies": (
        "tune.bufsize",
        fleet_of(pool(balance={"algorithm": "hash", "hash": {"key": {"json_body": "$.user"}}})),
    ),
    "picker": ("tune.bufsize", fleet_of(pool(balance={"algorithm": "pick"}))),
    "client key": (
        "ssl-load-extra-del-ext",
        fleet_of(pool(tls={"ca": "ca.crt", "certificate": "c.crt", "key": "c.key"})),
    ),
}
"""The setting that a fleet needs in `global`."""


@pytest.mark.parametrize("feature", _NEEDS)
def test_haproxy_fragment_that_needs_the_process_is_refused(feature: str, tmp_path: Path) -> None:
    setting, fleet = _NEEDS[feature]
    diagnostics = Diagnostics()
    fragment = fleet | {"proxies": {"site": _PROXY | {"form": "fragment"}}}
    assert load([str(write_fleet(tmp_path, fragment))], diagnostics) is None
    errors = [item for item in diagnostics if item.severity == "error"]
    assert {item.code for item in errors} == {"LB135"}
    assert any(setting in item.message for item in errors)
    assert load_fleet(tmp_path, fleet | {"proxies": {"site": _PROXY}})
