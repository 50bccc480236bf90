"""`python -m tests.benchmarks.starts`: measure the processor time of a start of `lbctl serve`.

Every restart, every new member and every test that starts a process pays this cost. The process is ended as soon as it
serves. The figure is processor time of all threads, so that it depends little on other work on the machine. `--runs N`
(default 7) is the number of starts.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

_FLEET = Path(__file__).resolve().parents[2] / "examples" / "quickstart.yaml"
_LIMIT = 0.75
"""Maximum processor seconds."""
_HEAD = f"{'START':<44} {'MEDIAN':>8} {'MIN–MAX':>15} {'LIMIT':>8}"


def seconds() -> float:
    """Return the processor seconds of an `lbctl serve` with the smallest fleet, which is ended once it has published
    the fleet."""
    with tempfile.TemporaryDirectory() as state:
        arguments = ["serve", "--state", state, "--xds-bind", "127.0.0.1:0", "--api-bind", "127.0.0.1:0", str(_FLEET)]
        process = subprocess.Popen([sys.executable, "-m", "lbctl", *arguments], stderr=subprocess.PIPE, text=True)
        assert process.stderr is not None
        log = ""
        for line in process.stderr:
            log += line
            if " published " in line:
                process.terminate()
        _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"lbctl serve: exit code {process.returncode}\n{log[-2000:]}")
    return used.ru_utime + used.ru_stime


def main() -> int:
    """Print the row of the smallest fleet. The exit code is 1 if the fleet was not served."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.starts")
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    try:
        each = [seconds() for _ in range(runs + 1)][1:]
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    median = statistics.median(each)
    spread = f"{min(each) * 1000:.0f}–{max(each) * 1000:.0f} ms"
    judged = f"{_LIMIT * 1000:5.0f} ms {'ok' if median <= _LIMIT else 'MISSED'}"
    print(f"{_HEAD}\n{'serve, quickstart, processor time':<44} {median * 1000:5.0f} ms {spread:>15} {judged}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
