"""The same fleet gives the same bytes: whatever the hash seed, and in whatever order its maps are written."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from lbctl.targets import KINDS
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

FLEET = ROOT / "tests" / "golden" / "whole-contract" / "in.yaml"


def render(kind: str, fleet: Path, seed: str) -> dict[str, bytes]:
    """Every file that a process of its own makes."""
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "lbctl", "render", "-t", kind, "-d", directory, str(fleet)]
        env = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr.decode()
        return {path.name: path.read_bytes() for path in Path(directory).iterdir()}


def shuffled(value: Any, chance: random.Random) -> Any:
    """The same value, every map of it in another order; lists stay, for their order may mean something."""
    if isinstance(value, dict):
        keys = list(value)
        chance.shuffle(keys)
        return {key: shuffled(value[key], chance) for key in keys}
    return [shuffled(item, chance) for item in value] if isinstance(value, list) else value


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """The contract's fleet, in a directory of its own."""
    shutil.copy(FLEET.parent / "targets.json", tmp_path)
    return Path(shutil.copy(FLEET, tmp_path / "fleet.yaml"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_hash_seed_changes_no_byte(kind: str, fleet: Path) -> None:
    first, *others = (render(kind, fleet, seed) for seed in ("0", "1", "4242"))
    assert [other == first for other in others] == [True, True]


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_the_maps_changes_no_byte(kind: str, fleet: Path) -> None:
    before = render(kind, fleet, "0")
    tree = yaml.safe_load(fleet.read_text())
    for seed in range(3):
        fleet.write_text(yaml.safe_dump(shuffled(tree, random.Random(seed)), sort_keys=False))
        assert render(kind, fleet, "0") == before
