"""`make bench-peers [ARGS="…"]`: run every system in every case, and write docs/develop/benchmarks.md.

`--repetitions N` (default 3) is the number of runs, `--seconds S` (default 20) their duration, and `--beside N`
(default 9) the number of systems that run side by side. `--case WORD` and `--system WORD` select a part; the page is
then printed instead of written. `--results FILE` stores each result as a line of JSON, and skips runs whose result is
in the file. With `--page` no run is made, and the page shows the stored results.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.benchmarks.descriptors import many_connections
from tests.benchmarks.peers import cases, report, systems
from tests.benchmarks.peers.cases import Case
from tests.benchmarks.peers.systems import System
from tests.benchmarks.peers.trial import Result, run
from tests.support.paths import ROOT

_PAGE = ROOT / "docs" / "develop" / "benchmarks.md"


class Kept:
    """The results so far. Each is also written to a file if there is one."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._results: dict[tuple[str, str, int], Result] = {}
        for line in file.read_text().splitlines() if file and file.exists() else ():
            case, system, repetition, result = json.loads(line)
            self._results[case, system, repetition] = Result(**result)

    def __contains__(self, key: tuple[str, str, int]) -> bool:
        return key in self._results

    def add(self, case: str, repetition: int, results: dict[str, Result]) -> None:
        """Store the results of one run."""
        for system, result in results.items():
            self._results[case, system, repetition] = result
            if self._file:
                with self._file.open("a") as stream:
                    print(json.dumps([case, system, repetition, dataclasses.asdict(result)]), file=stream)

    def of(self, case: str, system: str) -> list[Result]:
        """Return the stored repetitions."""
        return [result for key, result in sorted(self._results.items()) if key[:2] == (case, system)]


def _runs(
    chosen: Sequence[tuple[Case, Sequence[System]]], repetitions: int, beside: int, kept: Kept
) -> Iterator[tuple[Case, int, Sequence[System]]]:
    """Yield the missing runs: every case once before any case twice."""
    for repetition in range(repetitions):
        for case, group in chosen:
            left = [system for system in group if (case.name, system.name, repetition) not in kept]
            for start in range(0, len(left), beside):
                yield case, repetition, left[start : start + beside]


def main() -> int:
    """Measure, and write the page."""
    options = _options()
    if not systems.BIN.is_dir():
        print(f"no routers in {systems.BIN}: make bench-peers installs them", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all started processes are stopped
    many_connections(20_000)
    chosen = [
        (case, [system for system in systems.of(case) if options.system in system.name])
        for case in cases.CASES
        if options.case in case.name
    ]
    kept = Kept(options.results)
    arguments = " ".join(word for word in sys.argv[1:] if word != "--page")
    command = f'make bench-peers ARGS="{arguments}"' if arguments else "make bench-peers"
    repetitions = 0 if options.page else options.repetitions
    for case, repetition, group in _runs(chosen, repetitions, options.beside, kept):
        print(f"{case.name}, repetition {repetition + 1}: {'; '.join(each.name for each in group)}", flush=True)
        results = run(case, group, cases.plan(case, options.seconds, repetition), options.seconds)
        print("\n".join(report.lines(results)), flush=True)
        kept.add(case.name, repetition, results)
    table = [(case, {system.name: kept.of(case.name, system.name) for system in group}) for case, group in chosen]
    text = report.page(table, systems.versions(), command, options.seconds, options.repetitions)
    if options.case or options.system:
        print(text)
    else:
        _PAGE.write_text(text)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.peers", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--beside", type=int, default=9)
    parser.add_argument("--case", default="", metavar="WORD")
    parser.add_argument("--system", default="", metavar="WORD")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--page", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
