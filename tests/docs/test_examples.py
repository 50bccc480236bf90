"""Every file in examples/ is a fleet that compiles, and that each of the real proxies accepts."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
import yaml

from lbctl.cli import run
from tests.support.paths import ROOT
from tests.support.processes.binaries import KINDS, Kind, require

FOLDER = ROOT / "examples"
FLEETS = sorted(str(path.relative_to(FOLDER)) for path in (*FOLDER.glob("*.yaml"), *FOLDER.glob("migrating/*.yaml")))
TO_COPY = sorted({path.name for path in FOLDER.glob("*.yaml")} - {"fleet.yaml", "quickstart.yaml"})
"""Not the one that shows every key, nor the smallest."""
PARTS = {"targets.json", "keys/tenants.yaml"}
"""Files that a fleet names."""
MODELINE = "# yaml-language-server: $schema="


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FLEETS)
def test_an_example_is_rendered_and_accepted(
    name: str, kind: Kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require(kind)
    for proxy in _named(name, kind):
        out = tmp_path / "-".join(("out", *proxy))
        code = run(["render", "-t", kind, *proxy, "--check", "-d", str(out), str(FOLDER / name)])
        said = capsys.readouterr().err
        assert code == 0, said
        assert ": error " not in said
        assert list(out.iterdir())


def _named(name: str, kind: Kind) -> list[list[str]]:
    """Each proxy of the kind that the fleet names, as an option; without any, one that it does not."""
    fleet = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    found = [proxy for proxy, keys in fleet.get("proxies", {}).items() if keys["kind"] == kind]
    return [["--proxy", proxy] for proxy in found] or [[]]


@pytest.mark.parametrize("name", FLEETS)
def test_an_example_begins_with_its_story(name: str) -> None:
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    head = next(line for line in lines if not line.startswith(MODELINE))
    assert re.fullmatch(r"# [A-Z].{20,}[.:]?.*", head), head


@pytest.mark.parametrize("name", TO_COPY)
def test_an_example_to_copy_says_what_to_change_and_what_to_watch(name: str) -> None:
    modeline, *lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    head = lines[: lines.index("version: 1")]
    assert (FOLDER / modeline.removeprefix(MODELINE)).resolve() == ROOT / "schemas" / "lbctl.schema.json"
    assert 3 <= len(head) <= 7
    assert all(any(line.startswith(f"# To {what}: ") for line in head) for what in ("change", "watch"))


def test_nothing_else_stands_among_the_examples() -> None:
    """What is for pipelines has a folder of its own."""
    files = {path.relative_to(FOLDER) for path in FOLDER.rglob("*") if path.is_file()}
    assert {str(path) for path in files if path.parts[0] != "ci"} == {*FLEETS, *PARTS}


def test_the_sample_keys_are_made_up_and_say_so() -> None:
    """Each hash is that of a key which the file itself shows, so that no real one can stand there."""
    text = (FOLDER / "keys" / "tenants.yaml").read_text(encoding="utf-8")
    shown = {hashlib.sha256(key.encode()).hexdigest() for key in re.findall(r'"(example-key-[a-z-]+)"', text)}
    assert set(re.findall(r"^sha256:([0-9a-f]{64}): ", text, re.MULTILINE)) == shown
    assert len(shown) == 2
    assert len([line for line in text.splitlines() if not line.startswith("#")]) == 2
