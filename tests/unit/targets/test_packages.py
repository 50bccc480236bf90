"""The packages of the proxies are independent of each other."""

from __future__ import annotations

import tomllib

from lbctl.targets import KINDS, MANIFESTS, PACKAGES
from tests.support.paths import ROOT


def test_each_proxy_package_is_in_the_independence_contract() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (independence,) = (contract for contract in contracts if contract["type"] == "independence")
    packages = {PACKAGES.get(kind) for kind in KINDS} | {MANIFESTS.get(kind) for kind in MANIFESTS.names}
    assert set(independence["modules"]) == packages
