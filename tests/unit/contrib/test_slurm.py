"""contrib/slurm converts the output of Slurm's commands to the replicas of a pool."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.fleets import fleet_of, load_fleet
from tests.support.paths import ROOT

_SCRIPT = ROOT / "contrib" / "slurm" / "slurm_targets.py"
_RECORDED = ROOT / "tests" / "fixtures" / "slurm" / "squeue.txt"
_SCONTROL = f"""#!/bin/sh
[ "$1 $2" = "show hostnames" ] || exit 1
case "$3" in
  "gpu-h100-[03-04]") cat {_RECORDED.with_name("hostnames.txt")} ;;
  *) printf '%s\\n' "$3" ;;
esac
"""


class _Slurm:
    """A directory with the commands of Slurm. `squeue` prints a recorded output, and records its arguments."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.output = directory / "targets.json"
        self.command("scontrol", _SCONTROL)
        self.command("squeue", f'#!/bin/sh\necho "$@" > {directory}/asked\ncat {_RECORDED}\n')

    def command(self, name: str, text: str) -> None:
        (self.directory / name).write_text(text)
        (self.directory / name).chmod(0o755)

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.directory}:{os.environ['PATH']}"
        command = [sys.executable, str(_SCRIPT), "--name", "vllm", "--port", "8000", "--output", str(self.output)]
        return subprocess.run(
            [*command, "--user", "ops", *options], env={"PATH": path}, capture_output=True, text=True, check=False
        )

    def addresses(self) -> dict[str, str]:
        """Return the address of each replica, as lbctl reads the file."""
        fleet = fleet_of({"discovery": {"file": {"path": "targets.json"}}})
        (pool,) = load_fleet(self.directory, fleet).compiled.topology.pools
        return {replica.name: str(replica.address) for replica in pool.replicas}


@pytest.fixture
def slurm(tmp_path: Path) -> _Slurm:
    return _Slurm(tmp_path)


@pytest.mark.slow
def test_running_job_is_a_replica_at_its_first_node(slurm: _Slurm) -> None:
    assert slurm.run("--gpu", "H100-SXM", "--partition", "gpu").returncode == 0
    assert slurm.addresses() == {
        "job-48211": "gpu-h100-03:8000",
        "job-48212": "gpu-h100-03:8001",
        "job-48230_2": "gpu-h100-11:9010",
    }
    arguments = (slurm.directory / "asked").read_text().split()
    assert arguments == [
        "--noheader",
        "--states=RUNNING",
        "--name=vllm",
        "--user=ops",
        "--partition=gpu",
        "--format=%i|%N|%k",
    ]
    assert {group["labels"]["gpu"] for group in json.loads(slurm.output.read_text())} == {"H100-SXM"}
    written = slurm.output.stat()
    assert slurm.run("--gpu", "H100-SXM").returncode == 0
    assert slurm.output.stat() == written


def test_each_rank_is_a_replica(slurm: _Slurm) -> None:
    slurm.command("squeue", "#!/bin/sh\necho '7|gpu-1|port=9010'\n")
    assert slurm.run("--ports", "2").returncode == 0
    assert slurm.addresses() == {"job-7-0": "gpu-1:9010", "job-7-1": "gpu-1:9011"}


@pytest.mark.parametrize("squeue", ["echo down >&2; exit 1", "echo '7|gpu-1|port=65535'", "echo nonsense"])
def test_file_is_kept_without_a_valid_answer(slurm: _Slurm, squeue: str) -> None:
    slurm.output.write_text("[]\n")
    slurm.command("squeue", f"#!/bin/sh\n{squeue}\n")
    process = slurm.run("--ports", "2")
    assert (process.returncode, slurm.output.read_text()) == (1, "[]\n")
    assert "is not changed" in process.stderr
    assert [file.name for file in slurm.directory.glob(".targets*")] == []
