"""Another user of Slurm can neither receive prompts through the name of a job nor stop discovery through its
comment."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

SCRIPT = ROOT / "contrib" / "slurm" / "slurm_targets.py"
SQUEUE = """#!/bin/sh
echo "$@" > "$(dirname "$0")/asked"
case "$*" in
  *--user=ops*) printf '101|gpu1|(null)\\n102|gpu2|%b\\n' "$COMMENT" ;;
  *--account=infer*) printf '101|gpu1|(null)\\n' ;;
  *--user=*) ;;
  *) printf '666|evil1|\\n' ;;
esac
"""


def discover(directory: Path, *options: str, comment: str = "(null)") -> tuple[subprocess.CompletedProcess[str], str]:
    """Run the script with Slurm commands that filter by user. Return its process and the targets."""
    for name, text in (("squeue", SQUEUE), ("scontrol", '#!/bin/sh\necho "$3"\n')):
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    output, environment = directory / "targets.json", {"PATH": f"{directory}:{os.environ['PATH']}", "COMMENT": comment}
    command = [sys.executable, str(SCRIPT), "--name", "vllm", "--port", "8000", "--output", str(output), *options]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    targets = json.loads(output.read_text()) if output.exists() else []
    return process, " ".join(target for group in targets for target in group["targets"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [(("--user", "ops"), "gpu1:8000 gpu2:8000"), (("--account", "infer"), "gpu1:8000"), ((), "")],
)
def test_jobs_of_other_users_are_not_replicas(options: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    process, targets = discover(tmp_path, *options)
    assert (process.returncode, targets) == (0, expected)
    asked = (tmp_path / "asked").read_text()
    assert options or f"--user={pwd.getpwuid(os.geteuid()).pw_name}" in asked, (
        "by default the jobs of the user that runs it"
    )
    is_told = not options and os.geteuid() == 0
    assert ("set --user or --account" in process.stderr) == is_told


@pytest.mark.parametrize("comment", ["port=0", "port=99999", "a\\nb", "x\\n103|--help|port=1", "a\\n103|gpu9;id|"])
def test_bad_comment_stops_no_other_job(comment: str, tmp_path: Path) -> None:
    process, targets = discover(tmp_path, "--user", "ops", comment=comment)
    assert process.returncode == 0
    assert targets in ("gpu1:8000", "gpu1:8000 gpu2:8000")
    assert "skipped" in process.stderr
    assert "gpu9" not in targets
