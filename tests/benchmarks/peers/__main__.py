"""`make bench-peers [ARGS="…"]`: run every system in every case, and write docs/develop/benchmarks.md.

Each result is appended to docs/develop/benchmarks.jsonl, and runs whose results are in that file are skipped. `--case
NAME` and `--system WORD` select a part of the runs; without them, the page is written at the end. `--results FILE`
stores the results in another file, and does not write the page. `--seeds 3` makes fewer runs of each case. With
`--page`, no run is made. If a system does not start, or the file of a trace is missing, the other runs continue, and
the exit code is 1. If a system does not start, the page is not written either.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.descriptors import many_connections
from tests.benchmarks.peers import cases, report, systems
from tests.benchmarks.peers.cases import TRACE_SOURCE, Case
from tests.benchmarks.peers.intervals import MAX_SEEDS
from tests.benchmarks.peers.results import Result, Results, append_machine, append_result
from tests.benchmarks.peers.routers import BIN
from tests.benchmarks.peers.systems import System
from tests.benchmarks.peers.trial import SEEDS, run


def main() -> int:
    """Measure, and write the page."""
    try:
        return _measured(_options())
    except KeyboardInterrupt:
        print("stopped: the same command continues with the missing runs", file=sys.stderr)
        return 130


def _measured(options: argparse.Namespace) -> int:
    """Make the missing runs, and write the page if these are all runs. Return the exit code."""
    path: Path = options.results
    unavailable: list[Case] = []
    if not options.page:
        if not BIN.is_dir():
            print(f"no routers in {BIN}: make bench-peers installs them", file=sys.stderr)
            return 1
        if not _continue(path):
            return 1
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all started processes are stopped
        many_connections(20_000)
        runs = [*_runs(Results.read(path), options.case, options.system, options.seeds)]
        if not runs:
            print(f"nothing to run: {path} contains all results. To measure again, choose another file with --results.")
        unavailable = [*dict.fromkeys(case for case, _, _ in runs if not case.is_available)]
        for case in unavailable:
            print(
                f"{case.name} needs {case.trace}, in the folder that LBCTL_DATA names: {TRACE_SOURCE}", file=sys.stderr
            )
        missing = [
            f"{name} ({case.name}, seed {seed})"
            for case, seed, group in runs
            if case not in unavailable
            for name in _measure(case, seed, group, path)
        ]
        if missing:
            print(f"not started: {'; '.join(missing)}. Run the same command again to try again.", file=sys.stderr)
            return 1
    if path == report.RESULTS and not options.case and not options.system:
        report.write(Results.read(path))
    return 1 if unavailable else 0


def _measure(case: Case, seed: int, group: Sequence[System], path: Path) -> list[str]:
    """Make one run, and store its results. Return the names of systems that did not start."""
    began = time.monotonic()
    print(f"{case.name}, seed {seed}: {'; '.join(each.name for each in group)}", flush=True)
    results, missing = run(case, group, seed)
    for result in results:
        append_result(path, result)
        print(f"  {_line(result)}", flush=True)
    print(f"  {time.monotonic() - began:.0f} s", flush=True)
    return missing


def _line(result: Result) -> str:
    first, harness = result.first, result.harness
    return (
        f"{result.system:<32} TTFT p50 {first.p50:6.0f} ms, p99 {first.p99:6.0f} ms, whole p99 "
        f"{result.whole.p99:6.0f} ms, {result.failed} of {result.requests} failed, cached {result.cached or 0:.2f}, "
        f"{result.cpu.data_path:.2f} ms CPU, machine {harness.machine:.0%}, late {harness.late_ms:.0f} ms"
    )


def _runs(kept: Results, case: str, system: str, seeds: int) -> Iterator[tuple[Case, int, Sequence[System]]]:
    """Yield the missing runs: every case once before any case twice."""
    for seed in range(seeds):
        for each in (each for each in cases.CASES if case in ("", each.name)):
            left = [it for it in systems.of(each) if system in it.name and seed not in kept.of(each.name, it.name)]
            for is_slow in (False, True):
                if group := [it for it in left if it.is_slow is is_slow]:
                    yield each, seed, group


def _continue(path: Path) -> bool:
    """Return whether this machine can add results to the file. An empty one gets the description of the machine."""
    here, kept = _machine(), Results.read(path).machine
    if not kept:
        append_machine(path, {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), **here})
        return True
    different = [f"{name} ({kept.get(name)} and {value})" for name, value in here.items() if kept.get(name) != value]
    if different:
        print(f"{path} has results with a different {', '.join(different)}: delete it first", file=sys.stderr)
    return not different


def _machine() -> dict[str, Any]:
    rows = Path("/proc/cpuinfo").read_text().splitlines()
    memory = Path("/proc/meminfo").read_text().split()[1]
    return {
        "versions": systems.versions(),
        "processor": next((row.partition(": ")[2] for row in rows if row.startswith("model name")), "unknown"),
        "cores": os.cpu_count(),
        "memory_gib": round(int(memory) / 2**20, 1),
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, choices=range(1, MAX_SEEDS + 1), metavar="N")
    parser.add_argument("--case", default="", choices=[case.name for case in cases.CASES])
    parser.add_argument("--system", default="", metavar="WORD")
    parser.add_argument("--results", type=Path, default=report.RESULTS)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    names = {it.name for each in cases.CASES if options.case in ("", each.name) for it in systems.of(each)}
    if not any(options.system in name for name in names):
        parser.error(f"no system's name contains {options.system!r}. The systems are: {'; '.join(sorted(names))}")
    return options


if __name__ == "__main__":
    sys.exit(main())
