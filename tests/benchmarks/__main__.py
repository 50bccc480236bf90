"""`python -m tests.benchmarks`: measure time and memory of whole lbctl processes against their limits.

It prints a table of commands, then of the control plane compared with its floor (xDS). The benchmarks in `LIVE` follow,
each in a separate process: the start of `lbctl serve`, building the resources of Envoys, a decision of the control
loop, scraping, load reports, the time from a sample to an acknowledged weight, and a simulation.

The exit code is 1 only if a command failed. A missed limit does not count, because the machine may be busy. `--runs N`
(default 7) is the number of runs of each command; `-k WORD` selects the rows whose name contains the word.

The benefit of live weights takes minutes to measure and has a separate command: `python -m tests.benchmarks.weighting`,
or `make weights`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lbctl.targets import KINDS
from tests.benchmarks.fleets import fleet
from tests.benchmarks.measure import Cost, FailedError, measure

QUICKSTART = Path(__file__).resolve().parents[2] / "examples" / "quickstart.yaml"
LIVE = ("starts", "build", "control", "scrape", "load_reports", "live", "simulate")
MAX_MEMORY = 200.0
MAX_RATIO = 12.0
_HEAD = f"{'COMMAND':<44} {'MEDIAN':>8} {'MIN–MAX':>15} {'LIMIT':>8} {'':4} {'PEAK RSS':>9} {'LIMIT':>7}"


@dataclass(frozen=True, slots=True)
class Row:
    """One command and its limit in seconds. `ratio_to`: the row with a tenth of the replicas."""

    name: str
    arguments: tuple[str, ...]
    limit: float | None = None
    ratio_to: str = ""


def rows(directory: Path) -> Iterator[Row]:
    """Yield every command, and write its fleet to `directory`."""
    yield Row("--help", ("--help",), 0.100)
    yield Row("validate, quickstart", ("validate", str(QUICKSTART)), 0.300)
    small = _written(directory, 100, 10)
    large = _written(directory, 100, 100)
    commands: dict[str, tuple[str, ...]] = {"validate": ("validate",), "lint": ("lint",)}
    commands |= {f"render {kind}": ("render", "-t", kind) for kind in KINDS}
    for name, command in commands.items():
        before, after = f"{name}, 1,000 replicas", f"{name}, 10,000 replicas"
        yield Row(before, (*command, str(small)))
        yield Row(after, (*command, str(large)), 1.0 if name == "validate" else 1.5, before)
    named = _written(directory, 100, 100, "named", "".join(f"  {kind}: {{kind: {kind}}}\n" for kind in KINDS))
    yield Row("lint, 10,000 replicas, each kind of proxy", ("lint", str(named)), 1.5)
    changed = directory / "changed.yaml"
    changed.write_text(named.read_text().replace("gpu: L4,", "gpu: L40S,").replace("/v1/m7/", "/v2/m7/"))
    diff = ("diff", "--against", str(named), str(changed))
    yield Row("diff, 10,000 replicas", diff, 3.0)
    yield from (Row(f"diff {kind}, 10,000 replicas", (*diff, "-t", kind), 3.0) for kind in KINDS)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("-k", metavar="WORD", default="")
    options = parser.parse_args()
    print(_HEAD)
    costs: dict[str, Cost] = {}
    with tempfile.TemporaryDirectory() as directory:
        for row in rows(Path(directory)):
            if options.k not in row.name:
                continue
            try:
                costs[row.name] = measure(row.arguments, options.runs)
            except FailedError as error:
                print(error, file=sys.stderr)
                return 1
            print(_line(row, costs), flush=True)
    try:
        asyncio.run(_xds(options.k, options.runs))
    except (RuntimeError, TimeoutError) as error:
        print(f"xDS: {error!r}", file=sys.stderr)
        return 1
    return max((_process(name) for name in LIVE if options.k in name), default=0)


def _process(name: str) -> int:
    """Run a benchmark in a separate process, because it measures itself. Return its exit code."""
    return subprocess.run([sys.executable, "-m", f"tests.benchmarks.{name}"], check=False).returncode


async def _xds(word: str, runs: int) -> None:
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # before the import: grpc logs the end of every connection
    from tests.benchmarks import xds

    chosen = xds.chosen(word)
    if chosen:
        print(xds.HEAD)
    for scenario in chosen:
        async for line in xds.lines(scenario, runs):
            print(line, flush=True)


def _line(row: Row, costs: dict[str, Cost]) -> str:
    cost = costs[row.name]
    spread = f"{_time(min(cost.seconds))}–{_time(max(cost.seconds))}"
    limit = f"{_time(row.limit)} {_holds(cost.median <= row.limit)}" if row.limit else f"{'':8}"
    memory = f"{cost.memory:6.0f} MB {MAX_MEMORY:4.0f} MB {_holds(cost.memory <= MAX_MEMORY)}"
    line = f"{row.name:<44} {_time(cost.median)} {spread:>15} {limit:<13} {memory}"
    if row.ratio_to in costs:
        ratio = cost.median / costs[row.ratio_to].median
        held = _holds(ratio <= MAX_RATIO)
        line += f"\n{'    ten times the replicas':<44} {ratio:7.1f}× {'':15} {MAX_RATIO:7.0f}× {held}"
    return line


def _time(seconds: float) -> str:
    return f"{seconds * 1000:5.0f} ms"


def _holds(held: bool) -> str:
    return "ok" if held else "MISSED"


def _written(directory: Path, pools: int, replicas: int, name: str = "plain", proxies: str = "") -> Path:
    """Write a fleet file, and return its path. `proxies`: the YAML lines of that section."""
    path = directory / f"{name}-{pools}x{replicas}.yaml"
    path.write_text(fleet(pools, replicas) + (f"proxies:\n{proxies}" if proxies else ""))
    return path


if __name__ == "__main__":
    sys.exit(main())
