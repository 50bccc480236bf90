"""Everything that CI, the image and `make install` download is pinned by a digest."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT

LOCKS = ROOT / ".ci" / "locks"


def test_actions_are_pinned_to_commits() -> None:
    used = [step["uses"] for path in workflows() for step in steps(path) if "uses" in step]
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action)] == []


def test_images_of_others_are_pinned_to_digests() -> None:
    composition = yaml.safe_load((ROOT / "deploy/docker/compose.yaml").read_text(encoding="utf-8"))
    (base,) = re.findall(r"^ARG BASE=(.+)$", (ROOT / "deploy/docker/Dockerfile").read_text(encoding="utf-8"), re.M)
    images = [base, *(service["image"] for service in composition["services"].values())]
    unpinned = [image for image in images if not re.search(r"@sha256:[0-9a-f]{64}$", image)]
    assert {*unpinned} == {"lbctl"}


@pytest.mark.parametrize(
    ("name", "extras"), [("envoy", ["agent", "envoy"]), ("test", ["docs", "envoy", "redis", "test"])]
)
def test_locks_hold_what_the_project_asks_for(name: str, extras: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    locked = versions(LOCKS / f"{name}.txt")
    wanted = [requirement for line in lines if (requirement := Requirement(line)).name]
    assert [
        str(requirement)
        for requirement in wanted
        if not requirement.specifier.contains(locked.get(canonicalize_name(requirement.name), "0"), prereleases=True)
    ] == [], "run `make lock`"


@pytest.mark.parametrize("name", ["build", "envoy", "lock", "release", "test"])
def test_every_locked_package_has_hashes(name: str) -> None:
    text = (LOCKS / f"{name}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    packages = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert packages
    assert [line for line in packages if not re.search(r"--hash=sha256:[0-9a-f]{64}", line)] == []


def workflows() -> list[Path]:
    """Return the files of the workflows."""
    return sorted((ROOT / ".github/workflows").glob("*.yml"))


def steps(path: Path) -> Iterator[dict[str, object]]:
    """Yield the steps of every job of a workflow. A job that runs another workflow has none."""
    for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values():
        yield from job.get("steps", ())


def versions(path: Path) -> dict[str, str]:
    """Return the version of each package in a lock file."""
    found = re.findall(r"^([\w.-]+)==(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}
