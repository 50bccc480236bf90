"""The wheel and the source archive are complete: lbctl works when installed elsewhere and run from `/`."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support import init as fake
from tests.support.model_servers import ModelServer
from tests.support.paths import ROOT
from tests.support.processes.binaries import require
from tests.support.processes.up import alone_at_the_first_port, up

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
    """`sdist`: the source archive. `wheel`: the wheel. `home`: the directory in which the wheel is installed."""

    sdist: Path
    wheel: Path
    home: Path

    def run(self, *command: str | Path) -> str:
        """Run a command from `/` with the installed wheel, which must succeed, and return its standard output."""
        env = os.environ | {"PYTHONPATH": str(self.home)}
        process = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, timeout=60, check=False)
        assert process.returncode == 0, process.stderr
        return process.stdout


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    directory = tmp_path_factory.mktemp("dist")
    home = tmp_path_factory.mktemp("home")
    python("build", "--no-isolation", "--outdir", directory, ROOT)
    (wheel,) = directory.glob("*.whl")
    (sdist,) = directory.glob("*.tar.gz")
    python("pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile", "--target", home, wheel)
    return Shipped(sdist, wheel, home)


def python(module: str, *arguments: str | Path) -> None:
    command = [sys.executable, "-m", module, *arguments]
    process = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


def test_installed_lbctl_uses_its_own_files(shipped: Shipped) -> None:
    code = "from lbctl.base import resources as r; print(r.__file__, r.templates(), r.schemas(), sep='\\n')"
    places = shipped.run(sys.executable, "-c", code).splitlines()
    assert [place for place in places if not place.startswith(f"{shipped.home}/lbctl/")] == []


def test_wheel_has_every_template_and_schema(shipped: Shipped) -> None:
    for name in ("templates", "schemas"):
        carried = files_below(shipped.home / "lbctl" / "_data" / name)
        assert carried == files_below(ROOT / name)
        assert carried


def test_wheel_has_every_file_of_the_dashboard(shipped: Shipped) -> None:
    static = Path("lbctl/serve/api/dashboard/static")
    carried = files_below(shipped.home / static)
    assert carried == files_below(ROOT / static)
    assert {"index.html", "main.js", "app.css", "uPlot.iife.min.js", "uPlot.LICENSE.txt"} <= set(map(str, carried))


def test_wheel_has_the_page_of_every_code(shipped: Shipped) -> None:
    pages = Path("lbctl/lint/codes")
    assert files_below(shipped.home / pages) == files_below(ROOT / pages)
    assert "no such pool" in shipped.run(shipped.home / "bin/lbctl", "rule", "LB101")


@pytest.mark.parametrize("proxy", ["nginx", "haproxy", "envoy"])
def test_installed_lbctl_renders_from_any_directory(shipped: Shipped, proxy: str, tmp_path: Path) -> None:
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(FLEET)
    text = shipped.run(shipped.home / "bin" / "lbctl", "render", "-t", proxy, fleet)
    assert "9101" in text
    assert "9102" in text


def test_installed_lbctl_runs_as_a_module(shipped: Shipped) -> None:
    assert shipped.run(sys.executable, "-m", "lbctl", "version") == shipped.run(shipped.home / "bin/lbctl", "version")


@pytest.mark.e2e
def test_installed_lbctl_runs_a_fleet_by_up(shipped: Shipped, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require("envoy")
    monkeypatch.setenv("PYTHONPATH", str(shipped.home))
    with alone_at_the_first_port(), up(tmp_path) as run, fake.serving(ModelServer()) as servers:
        run.start("--from", servers[0].url)
        (curl,) = re.findall(r"^ +try +(curl .*)$", run.await_ready(), re.MULTILINE)
        answer = subprocess.run([*shlex.split(curl), "-s"], capture_output=True, text=True, timeout=60, check=True)
        assert json.loads(answer.stdout)["choices"][0]["message"]["content"].startswith("Hello!")
        run.signal(signal.SIGINT)
        assert run.wait() == 0


def test_source_archive_has_all_files_to_build_and_test(shipped: Shipped) -> None:
    with tarfile.open(shipped.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"LICENSE", "README.md", "CHANGELOG.md", "Makefile", ".ci/run", ".ci/need", "tests/docs/test_wheel.py"}
    assert needed - names == set()
    for folder in ("contrib", "deploy", "docs", "examples", "schemas", "templates"):
        assert {f"{folder}/{file}" for file in files_below(ROOT / folder)} - names == set()


def test_data_files_are_at_their_usual_paths(
    shipped: Shipped,
) -> None:
    """`pip install --target` puts the data of a wheel next to its packages."""
    for folder in ("contrib", "deploy"):
        assert files_below(shipped.home / "share" / "lbctl" / folder) == files_below(ROOT / folder)
    for name in files_below(ROOT / "docs" / "share"):
        assert (shipped.home / "share" / name).read_bytes() == (ROOT / "docs" / "share" / name).read_bytes()


def test_wheel_works_with_only_its_requirements(shipped: Shipped, tmp_path: Path) -> None:
    """The new environment contains only the declared dependencies, not the dependencies of the tests."""
    home = tmp_path / "venv"
    python("venv", "--without-pip", home)
    site = next(home.glob("lib/python3*/site-packages"))
    for name in requirements("lbctl"):
        link_distribution(name, site)
    install = ("install", "--quiet", "--no-index", "--no-deps", "--no-compile")
    python("pip", "--python", home / "bin" / "python", *install, shipped.wheel)
    fleet = tmp_path / "fleet.yaml"
    for arguments, shown in (
        (["version"], "lbctl "),
        (["init", "-f", fleet], ""),
        *((["render", "-t", proxy, fleet], "127.0.0.1") for proxy in ("nginx", "haproxy", "envoy")),
    ):
        process = subprocess.run(
            [home / "bin" / "lbctl", *arguments],
            cwd="/",
            env={},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert process.returncode == 0, (arguments, process.stderr)
        assert shown in process.stdout


def requirements(name: str) -> set[str]:
    """Return the direct and indirect requirements of a distribution of this environment, without extras."""
    pending, closure = [name], set[str]()
    while pending:
        for line in metadata.distribution(pending.pop()).requires or []:
            requirement = Requirement(line)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if applies and requirement.name not in closure:
                closure.add(requirement.name)
                pending.append(requirement.name)
    return closure


def link_distribution(name: str, site: Path) -> None:
    """Link the packages and the metadata of a distribution of this environment into another one."""
    distribution = metadata.distribution(name)
    for top in {file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")}:
        place = site / top
        if not place.exists():
            place.symlink_to(Path(str(distribution.locate_file(top))))


def files_below(folder: Path) -> list[str]:
    """Return the files below a folder, without those that pip compiles."""
    files = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    return sorted(str(file) for file in files if "__pycache__" not in file.parts)
