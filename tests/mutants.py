"""`python -m tests.mutants`: break one behaviour at a time, and report whether the tests notice it.

The faults are the rows of tests/mutants.md, which explains their columns. They are applied to a copy of this checkout
in a temporary directory, so the working tree does not change.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".md")
_CELL = re.compile(r"(?<!\\)\|")
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_ALL_PASSED, _SOME_FAILED = 0, 1
"""Exit codes of pytest. With any other one the tests have not run, for example because a file is missing."""


@dataclass(frozen=True)
class Mutant:
    """One row of the table."""

    number: int
    file: str
    before: str
    after: str
    behaviour: str
    tests: tuple[str, ...]
    """Arguments of pytest."""

    def problem(self, text: str) -> str:
        """Return why the fault cannot be applied to this text of the file; empty if it can."""
        count = text.count(self.before)
        return "" if count == 1 else f"its fragment occurs {count} times instead of once: {self.before}"

    def line(self, text: str) -> int:
        """Return the number of the line that the fault changes."""
        return text[: text.index(self.before)].count("\n") + 1


@dataclass(frozen=True)
class TestRun:
    """The result of the tests of one row."""

    code: int
    """The exit code of pytest."""
    output: str
    seconds: float

    @property
    def first_failure(self) -> str:
        """The name of the first test that failed; empty if none did."""
        match = _FAILED.search(self.output)
        return match[1] if match else ""


def mutants(table: str) -> Iterator[Mutant]:
    """Yield the rows of the table that begin with a number."""
    for row in table.splitlines():
        cells = [cell.strip().replace("\\|", "|") for cell in _CELL.split(row)[1:-1]]
        if len(cells) == 6 and cells[0].isdigit():
            number, file, before, after, behaviour, tests = (_without_backticks(cell) for cell in cells)
            yield Mutant(int(number), file, before, after, behaviour, tuple(shlex.split(tests)))


def _without_backticks(cell: str) -> str:
    return cell[1:-1] if len(cell) > 1 and cell[0] == cell[-1] == "`" else cell


class Checkout:
    """A copy of this checkout, from which pytest and the processes that it starts import lbctl."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._environment = {**os.environ, "PYTHONPATH": str(root)}
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, root / name)
        self._check_import()

    def _check_import(self) -> None:
        """Raise RuntimeError if a process that starts in another directory imports another lbctl."""
        command = [sys.executable, "-c", "import lbctl; print(lbctl.__file__)"]
        done = subprocess.run(command, cwd="/", env=self._environment, capture_output=True, text=True, check=True)
        if not Path(done.stdout.strip()).is_relative_to(self.root):
            raise RuntimeError(f"the tests would import {done.stdout.strip()} and not {self.root}/lbctl")

    @contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        """Apply a fault while the block runs."""
        file = self.root / mutant.file
        status, text = file.stat(), file.read_text()
        file.write_text(text.replace(mutant.before, mutant.after))
        try:
            yield
        finally:
            file.write_text(text)
            # Python compiles a file anew only if its size or its time has changed.
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))

    def test(self, arguments: tuple[str, ...]) -> TestRun:
        """Run pytest until the first failure."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *arguments]
        started = time.monotonic()
        done = subprocess.run(
            command, cwd=self.root, env=self._environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
        )  # fmt: skip
        return TestRun(done.returncode, done.stdout, time.monotonic() - started)


def try_mutant(mutant: Mutant, checkout: Checkout, *, intact: bool) -> bool:
    """Run the tests of a row, print what they found, and return whether that is right.

    With `intact` the fault is not applied, and the tests must pass.
    """
    file = checkout.root / mutant.file
    text = file.read_text() if file.is_file() else ""
    problem = mutant.problem(text)
    if problem:
        print(f"{mutant.number:02} ERROR {mutant.file} {problem}", flush=True)
        return False
    if intact:
        run = checkout.test(mutant.tests)
    else:
        with checkout.changed(mutant):
            run = checkout.test(mutant.tests)
    passed, failed = ("passed", "FAILED") if intact else ("SURVIVED", "found")
    verdict = {_ALL_PASSED: passed, _SOME_FAILED: failed}.get(run.code, "ERROR")
    place = f"{mutant.file}:{mutant.line(text)}"
    failure = f" [{run.first_failure}]" if run.first_failure else ""
    print(f"{mutant.number:02} {verdict} {place} {mutant.behaviour} ({run.seconds:.0f} s){failure}", flush=True)
    if verdict == "ERROR":
        print(run.output, flush=True)
    return verdict in {"passed", "found"}


def main() -> int:
    """Return 1 if the tests have not noticed a fault, or if a fault could not be tried."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.splitlines()[0])
    parser.add_argument("numbers", metavar="NUMBER", type=int, nargs="*", help="rows of the table (default: all)")
    parser.add_argument("--table", type=Path, default=TABLE, help="another table (default: tests/mutants.md)")
    parser.add_argument("--intact", action="store_true", help="run the same tests without the faults: they must pass")
    options = parser.parse_args()
    known = {item.number: item for item in mutants(options.table.read_text())}
    unknown = [number for number in options.numbers if number not in known]
    if unknown:
        parser.error(f"the table has no row {unknown[0]}")
    chosen = [known[number] for number in options.numbers or sorted(known)]
    with tempfile.TemporaryDirectory(prefix="lbctl-mutants-") as directory:
        checkout = Checkout(Path(directory).resolve())
        missed = [item.number for item in chosen if not try_mutant(item, checkout, intact=options.intact)]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} {'passed' if options.intact else 'found'}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
