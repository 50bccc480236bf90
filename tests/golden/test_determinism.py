"""The same fleet gives the same bytes, for each hash seed and each order of its maps."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lbctl.cli import run
from lbctl.targets import KINDS
from tests.golden.cases import DIRECTORY
from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

CONTRACT = DIRECTORY / "whole-contract"


RENDER_ALL = """
import sys
from lbctl.cli import run
from lbctl.targets import KINDS
fleet, directory = sys.argv[1:]
sys.exit(max(run(["render", "-t", kind, "-d", f"{directory}/{kind}", fleet]) for kind in KINDS))
"""


def files_below(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def rendered_with_hash_seed(seed: str, fleet: Path, directory: Path) -> dict[str, bytes]:
    """Return each file that a process with this hash seed renders, for all kinds of proxies."""
    command = [sys.executable, "-c", RENDER_ALL, str(fleet), str(directory)]
    env = os.environ | {"PYTHONHASHSEED": seed}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return files_below(directory)


def shuffled(value: Any, chance: random.Random) -> Any:
    """Return the same value with each map in another order. Lists stay, because their order may have a meaning."""
    if isinstance(value, dict):
        keys = list(value)
        chance.shuffle(keys)
        return {key: shuffled(value[key], chance) for key in keys}
    return [shuffled(item, chance) for item in value] if isinstance(value, list) else value


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    shutil.copy(CONTRACT / "targets.json", tmp_path)
    return Path(shutil.copy(CONTRACT / "in.yaml", tmp_path / "fleet.yaml"))


def test_hash_seed_changes_no_byte(fleet: Path, tmp_path: Path) -> None:
    first, *others = (rendered_with_hash_seed(seed, fleet, tmp_path / seed) for seed in ("0", "1", "4242"))
    assert len(first) > len(KINDS)
    assert [other == first for other in others] == [True, True]


@pytest.mark.parametrize("kind", KINDS)
def test_order_of_maps_changes_no_byte(kind: str, fleet: Path, tmp_path: Path) -> None:
    def rendered(name: str) -> dict[str, bytes]:
        assert run(["render", "-t", kind, "-d", str(tmp_path / name), str(fleet)]) == 0
        return files_below(tmp_path / name)

    before = rendered("as written")
    tree = yaml.safe_load(fleet.read_text())
    for seed in range(3):
        fleet.write_text(yaml.safe_dump(shuffled(tree, random.Random(seed)), sort_keys=False))
        assert rendered(f"shuffled {seed}") == before
