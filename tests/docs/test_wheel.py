"""What is shipped works without the checkout: built, installed elsewhere, run from `/`."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

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
    """`sdist`: the source archive. `home`: where the wheel that was built from it is installed."""

    sdist: Path
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
    return Shipped(sdist, home)


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
    for folder in ("docs", "examples", "schemas", "templates"):
        assert {f"{folder}/{file}" for file in files_below(ROOT / folder)} - names == set()


def files_below(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
