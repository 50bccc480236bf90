"""`--check` needs no root: the whole contract, rendered and checked by somebody who owns nothing.

Under root the command runs as nobody, with a copy of the project and, if nobody may not read this Python, the system's.
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
from tests.support.processes.binaries import KINDS, Kind, require

NOBODY = 65534
NEEDED = "import click, jinja2, pydantic, yaml, google.protobuf, envoy.config.cluster.v3.cluster_pb2"


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A readable copy of the project, with a directory `out` in which everybody may write."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for folder in ("lbctl", "templates", "schemas", "examples"):
            shutil.copytree(ROOT / folder, place / folder, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", place)
        (place / "out").mkdir()
        for path in (place, *place.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        (place / "out").chmod(0o777)
        yield place


@pytest.mark.e2e
@pytest.mark.parametrize("kind", KINDS)
def test_a_checked_fleet_is_rendered_without_root(kind: Kind, place: Path) -> None:
    require(kind)
    command = ["-m", "lbctl", "render", "-t", kind, "--check", "-d", str(place / "out" / kind), "examples/fleet.yaml"]
    done = as_nobody([python(place), *command], place)
    assert done.returncode == 0, done.stderr
    written = list((place / "out" / kind).iterdir())
    assert written
    assert {path.stat().st_uid for path in written} != {0}


def test_a_proxy_that_cannot_be_started_is_said_and_not_a_traceback(place: Path) -> None:
    broken = place / "out" / "nginx.sh"
    broken.write_text("#!/nowhere/at/all\n")
    broken.chmod(0o755)
    command = ["-m", "lbctl", "render", "-t", "nginx", "--check", "examples/quickstart.yaml"]
    done = as_nobody([python(place), *command], place, LBCTL_NGINX=str(broken))
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.splitlines() == [f"lbctl: --check cannot start {broken}: No such file or directory"]


def python(place: Path) -> str:
    """One that nobody may start, with all that lbctl imports."""
    found = next((path for path in (sys.executable, "/usr/bin/python3") if _works(path, place)), None)
    if found is None:
        pytest.skip("nobody may read this Python, and the system's is another version")
    return found


def _works(path: str, place: Path) -> bool:
    try:
        return as_nobody([path, "-c", NEEDED], place).returncode == 0
    except OSError:
        return False


def as_nobody(command: Sequence[str], place: Path, **more: str) -> subprocess.CompletedProcess[str]:
    found = os.pathsep.join([str(place), *(path for path in sys.path if path.endswith("site-packages"))])
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": found, "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/", **more}
    who = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        command, cwd=place, env=env, capture_output=True, text=True, timeout=90, check=False, **who
    )
