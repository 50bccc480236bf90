"""Every file in examples/ is a fleet that compiles, and that each of the real proxies accepts."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from lbctl.cli import run
from tests.e2e.support.binaries import KINDS, Kind, require

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples"
FLEETS = sorted(str(path.relative_to(FOLDER)) for path in (*FOLDER.glob("*.yaml"), *FOLDER.glob("migrating/*.yaml")))
PARTS = {"targets.json", "keys/tenants.yaml"}
"""Files that a fleet names."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FLEETS)
def test_an_example_is_rendered_and_accepted(
    name: str, kind: Kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require(kind)
    code = run(["render", "-t", kind, "--check", "-d", str(tmp_path), str(FOLDER / name)])
    said = capsys.readouterr().err
    assert code == 0, said
    assert ": error " not in said
    assert list(tmp_path.iterdir())


@pytest.mark.parametrize("name", FLEETS)
def test_an_example_begins_with_its_story(name: str) -> None:
    head = (FOLDER / name).read_text(encoding="utf-8").splitlines()[0]
    assert re.fullmatch(r"# [A-Z].{20,}[.:]?.*", head), head


def test_nothing_else_stands_among_the_examples() -> None:
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()}
    assert files == {*FLEETS, *PARTS}


def test_the_sample_keys_are_made_up_and_say_so() -> None:
    """Each hash is that of a key which the file itself shows, so that no real one can stand there."""
    text = (FOLDER / "keys" / "tenants.yaml").read_text(encoding="utf-8")
    shown = {hashlib.sha256(key.encode()).hexdigest() for key in re.findall(r'"(example-key-[a-z-]+)"', text)}
    assert set(re.findall(r"^sha256:([0-9a-f]{64}): ", text, re.MULTILINE)) == shown
    assert len(shown) == 2
    assert len([line for line in text.splitlines() if not line.startswith("#")]) == 2
