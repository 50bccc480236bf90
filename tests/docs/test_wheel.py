"""What is shipped works without the checkout: built, installed elsewhere, run from `/`."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.paths import ROOT

pytestmark = pytest.mark.slow

FLEET = """\
version: 1
listeners:
  public: {bind: "127.0.0.1:8080"}
routes:
  chat: {match: {path_prefix: /v1/}, pool: llama}
pools:
  llama:
    replicas:
      - {name: big, address: "127.0.0.1:9101", gpu: A100-80GB}
      - {name: small, address: "127.0.0.1:9102", gpu: T4}
    health: {active: {http: {path: /health}}}
"""


@dataclass(frozen=True)
class Shipped:
    """`sdist`: the source archive. `wheel`: what was built from it. `home`: where that is installed."""

    sdist: Path
    wheel: Path
    home: Path

    def run(self, *command: str | Path) -> str:
        """Standard output of a command that must succeed, run from `/` with the wheel before anything else."""
        env = os.environ | {"PYTHONPATH": str(self.home)}
        done = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    made = tmp_path_factory.mktemp("dist")
    home = tmp_path_factory.mktemp("home")
    python("build", "--no-isolation", "--outdir", made, ROOT)
    (wheel,) = made.glob("*.whl")
    (sdist,) = made.glob("*.tar.gz")
    python("pip", "install", "--quiet", "--no-index", "--no-deps", "--target", home, wheel)
    return Shipped(sdist, wheel, home)


def python(module: str, *arguments: str | Path) -> None:
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_installed_lbctl_uses_its_own_files(shipped: Shipped) -> None:
    code = "from lbctl.base import resources as r; print(r.__file__, r.templates(), r.schemas(), sep='\\n')"
    places = shipped.run(sys.executable, "-c", code).splitlines()
    assert [place for place in places if not place.startswith(f"{shipped.home}/lbctl/")] == []


def test_the_wheel_carries_every_template_and_schema(shipped: Shipped) -> None:
    for name in ("templates", "schemas"):
        carried = files_below(shipped.home / "lbctl" / "_data" / name)
        assert carried == files_below(ROOT / name)
        assert carried


def test_the_wheel_carries_every_file_of_the_dashboard(shipped: Shipped) -> None:
    static = Path("lbctl/serve/api/dashboard/static")
    carried = files_below(shipped.home / static)
    assert carried == files_below(ROOT / static)
    assert {"index.html", "main.js", "app.css", "uPlot.iife.min.js", "uPlot.LICENSE.txt"} <= set(map(str, carried))


@pytest.mark.parametrize("proxy", ["nginx", "haproxy", "envoy"])
def test_the_installed_lbctl_renders_from_any_directory(shipped: Shipped, proxy: str, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    by_module = shipped.run(sys.executable, "-m", "lbctl", "render", "-t", proxy, fleet)
    by_script = shipped.run(shipped.home / "bin" / "lbctl", "render", "-t", proxy, fleet)
    assert "9101" in by_module
    assert "9102" in by_module
    assert by_script == by_module


def test_the_source_archive_holds_what_is_needed_to_build_and_to_test(shipped: Shipped) -> None:
    with tarfile.open(shipped.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", ".ci/run", ".ci/need", "tests/docs/test_wheel.py"}
    assert needed - names == set()
    for folder in ("contrib", "deploy", "docs", "examples", "schemas", "templates"):
        assert {f"{folder}/{file}" for file in files_below(ROOT / folder)} - names == set()


def test_manual_pages_completion_and_the_install_kit_are_where_others_look_for_them(
    shipped: Shipped,
) -> None:
    """`pip install --target` puts the data of a wheel beside its packages."""
    for folder in ("contrib", "deploy"):
        assert files_below(shipped.home / "share" / "lbctl" / folder) == files_below(ROOT / folder)
    for name in files_below(ROOT / "docs" / "share"):
        assert (shipped.home / "share" / name).read_bytes() == (ROOT / "docs" / "share" / name).read_bytes()


def test_the_wheel_and_what_it_requires_are_enough(shipped: Shipped, tmp_path: Path) -> None:
    """In a new environment that has the declared dependencies alone, none of those of the tests."""
    home = tmp_path / "venv"
    python("venv", "--without-pip", home)
    site = next(home.glob("lib/python3*/site-packages"))
    for name in requirements("lbctl"):
        link_distribution(name, site)
    python("pip", "--python", home / "bin" / "python", "install", "--quiet", "--no-index", "--no-deps", shipped.wheel)
    fleet = tmp_path / "fleet.yaml"
    for arguments, shown in (
        (["version"], "lbctl "),
        (["init", "-f", fleet], ""),
        (["validate", fleet], ""),
        *((["render", "-t", proxy, fleet], "127.0.0.1") for proxy in ("nginx", "haproxy", "envoy")),
    ):
        done = subprocess.run(
            [home / "bin" / "lbctl", *arguments],
            cwd="/",
            env={},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (arguments, done.stderr)
        assert shown in done.stdout


def requirements(name: str) -> set[str]:
    """What a distribution of this environment requires, without extras, and what that requires."""
    wanted, closure = [name], set[str]()
    while wanted:
        for line in metadata.distribution(wanted.pop()).requires or []:
            requirement = Requirement(line)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if applies and requirement.name not in closure:
                closure.add(requirement.name)
                wanted.append(requirement.name)
    return closure


def link_distribution(name: str, site: Path) -> None:
    """Link the packages and the metadata of a distribution of this environment into another one."""
    distribution = metadata.distribution(name)
    for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
        place = site / top
        if not place.exists():
            place.symlink_to(Path(str(distribution.locate_file(top))))


def files_below(folder: Path) -> list[str]:
    """Without what pip compiles when it installs."""
    files = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    return sorted(str(file) for file in files if "__pycache__" not in file.parts)
