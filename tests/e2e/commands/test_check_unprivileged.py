"""`lbctl render --check` works without root, for a fleet with every key.

As root, the test runs the command as the unprivileged user `nobody` in a copy of the project. If that user cannot run
this Python, the test uses the system's Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.processes.binaries import Kind, require

NOBODY = 65534
NEEDED = "import click, jinja2, pydantic, yaml, google.protobuf, envoy.config.cluster.v3.cluster_pb2"


@pytest.fixture(scope="module")
def project_copy() -> Iterator[Path]:
    """A readable copy of the project, with a directory `out` that all users may write to."""
    with tempfile.TemporaryDirectory() as name:
        project_copy = Path(name)
        for folder in ("lbctl", "templates", "schemas", "examples"):
            shutil.copytree(ROOT / folder, project_copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", project_copy)
        (project_copy / "out").mkdir()
        for path in (project_copy, *project_copy.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        (project_copy / "out").chmod(0o777)
        yield project_copy


def test_render_with_check_works_without_root(kind: Kind, project_copy: Path) -> None:
    require(kind)
    out = project_copy / "out" / kind
    command = ["-m", "lbctl", "render", "-t", kind, "--check", "-d", str(out), "examples/fleet.yaml"]
    process = as_nobody([python(project_copy), *command], project_copy)
    assert process.returncode == 0, process.stderr
    written = list(out.iterdir())
    assert written
    assert {path.stat().st_uid for path in written} != {0}


def test_proxy_that_cannot_start_is_reported(project_copy: Path) -> None:
    broken = project_copy / "out" / "nginx.sh"
    broken.write_text("#!/nowhere/at/all\n")
    broken.chmod(0o755)
    command = ["-m", "lbctl", "render", "-t", "nginx", "--check", "examples/quickstart.yaml"]
    process = as_nobody([python(project_copy), *command], project_copy, LBCTL_NGINX=str(broken))
    assert (process.returncode, process.stdout) == (4, "")
    assert process.stderr.splitlines() == [f"lbctl: --check cannot start {broken}: No such file or directory"]


def python(project_copy: Path) -> str:
    """Return a Python that the unprivileged user may run, and that has the packages of lbctl."""
    executable = next((path for path in (sys.executable, "/usr/bin/python3") if _works(path, project_copy)), None)
    if executable is None:
        pytest.skip("the user nobody cannot read this Python, and the system's has another version")
    return executable


def _works(path: str, project_copy: Path) -> bool:
    try:
        return as_nobody([path, "-c", NEEDED], project_copy).returncode == 0
    except OSError:
        return False


def as_nobody(command: Sequence[str], project_copy: Path, **more: str) -> subprocess.CompletedProcess[str]:
    module_path = os.pathsep.join([str(project_copy), *(path for path in sys.path if path.endswith("site-packages"))])
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": module_path, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/", **more}
    identity = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        command, cwd=project_copy, env=env, capture_output=True, text=True, timeout=90, check=False, **identity
    )
