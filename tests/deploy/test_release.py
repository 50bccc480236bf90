"""All files of a release state one version, and the workflows that build and publish it are valid."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lbctl import __version__
from tests.deploy import release, sbom
from tests.support.paths import ROOT

WORKFLOWS = ROOT / ".github" / "workflows"
CHANGELOG = """\
# Changelog

## [Unreleased]

## [1.2.0] - 2026-12-01

### Added

- A thing.

## [1.1.0] - 2026-11-01

- Another one.
"""


def test_all_files_state_the_version_of_the_package() -> None:
    assert release.differences(__version__) == []


@pytest.mark.parametrize(("version", "text"), [("1.2.0", "### Added\n\n- A thing."), ("1.1.0", "- Another one.")])
def test_notes_are_the_section_of_the_version(version: str, text: str) -> None:
    assert release.notes(CHANGELOG, version) == text


@pytest.mark.parametrize("version", ["Unreleased", "1.2", "2.0.0"])
def test_version_without_a_dated_section_has_no_notes(version: str) -> None:
    assert release.notes(CHANGELOG, version) is None


def test_tag_of_another_version_is_rejected() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "tests.deploy.release", "v99.0.0"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (process.returncode, process.stdout) == (1, "")
    *places, changelog = process.stderr.splitlines()[: len(release.PLACES) + 1]
    assert [line for line in places if not line.endswith(f" {__version__}, not 99.0.0")] == []
    assert changelog == "CHANGELOG.md: no dated section with the changes of 99.0.0"


def test_sbom_is_about_lbctl_and_lists_its_dependencies() -> None:
    lbctl = {"bom-ref": "lbctl==1.2.0", "name": "lbctl", "version": "1.2.0", "type": "library"}
    click = {"bom-ref": "click==8.2.0", "name": "click", "version": "8.2.0", "type": "library"}
    dependencies = [{"ref": "lbctl==1.2.0", "dependsOn": ["click==8.2.0"]}]
    installed = lbctl | {"externalReferences": [{"type": "distribution", "url": "file:///home/dist/lbctl.whl"}]}
    bom = {"bomFormat": "CycloneDX", "components": [click, installed], "dependencies": dependencies}
    assert sbom.about_lbctl(bom) == {
        "bomFormat": "CycloneDX",
        "metadata": {"component": lbctl | {"type": "application", "purl": "pkg:pypi/lbctl@1.2.0"}},
        "components": [click],
        "dependencies": dependencies,
    }


@pytest.mark.parametrize("path", sorted(WORKFLOWS.glob("*.yml")), ids=lambda path: path.name)
def test_workflow_is_valid_by_its_schema(path: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


def test_nothing_is_published_before_the_checks_and_tests() -> None:
    jobs = read("release.yml")["jobs"]
    publishing = {name for name, job in jobs.items() if "write" in job.get("permissions", {}).values()}
    assert publishing == {"pypi", "image", "github"}
    for name in publishing:
        assert {"check", "ci"} <= needed(jobs, name)
    assert jobs["ci"]["uses"] == "./.github/workflows/ci.yml"
    assert "workflow_call" in read("ci.yml")["on"]


def test_artifacts_that_are_published_are_built_by_ci() -> None:
    built = {step["with"]["name"] for step in steps("ci.yml") if "upload-artifact" in step.get("uses", "")}
    assert {"packages", "sbom"} == built
    own = {step["with"]["name"] for step in steps("release.yml") if "upload-artifact" in step.get("uses", "")}
    taken = {step["with"]["name"] for step in steps("release.yml") if "download-artifact" in step.get("uses", "")}
    assert taken == built | own


def test_values_reach_scripts_by_variables_alone() -> None:
    assert [step["run"] for step in steps("release.yml") if "${{" in step.get("run", "")] == []


def read(name: str) -> Any:
    return yaml.load((WORKFLOWS / name).read_text(encoding="utf-8"), yaml.BaseLoader)


def steps(name: str) -> list[Any]:
    return [step for job in read(name)["jobs"].values() for step in job.get("steps", ())]


def needed(jobs: Any, name: str) -> set[str]:
    """Return the jobs that a job needs, directly or indirectly."""
    needs = jobs[name].get("needs", [])
    direct = {needs} if isinstance(needs, str) else set(needs)
    return direct.union(*(needed(jobs, other) for other in direct))
