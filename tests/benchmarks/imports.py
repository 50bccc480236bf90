"""`python -m tests.benchmarks.imports`: the table of docs/import.md, by importing and comparing every sample."""

from __future__ import annotations

from pathlib import Path

from lbctl.importer.compare.processes import NotStartedError
from lbctl.importer.compare.run import Row, compare
from lbctl.importer.run import KINDS
from tests.support.importer import imported, samples

HEAD = "| sample | directives | carried over | done anyway | comments | requests that agree | what differs |"


def counts(kind: str, file: Path) -> str:
    """Return the first cells of a sample's row: what became of its directives."""
    carried, implied, noted = imported(kind, file)[0].draft.ledger.counts()
    return f"| {kind}/{file.name} | {carried + implied + noted} | {carried} | {implied} | {noted} |"


def main() -> None:
    """Print the table."""
    print(f"{HEAD}\n|---|---|---|---|---|---|---|", flush=True)
    for kind in KINDS:
        for file in samples(kind):
            print(f"{counts(kind, file)} {_compared(kind, file)} |", flush=True)


def _compared(kind: str, file: Path) -> str:
    try:
        rows = compare(kind, [str(file)], imported(kind, file)[0].draft)
    except NotStartedError as error:
        return f"none | {error}"
    compared = [row for row in rows if not row.skipped]
    agree = sum(not row.differences for row in compared)
    return f"{agree} of {len(compared)} | {'; '.join(_reasons(rows))}"


def _reasons(rows: list[Row]) -> list[str]:
    return list(
        dict.fromkeys(
            [*(each for row in rows for each in row.differences), *(row.skipped for row in rows if row.skipped)]
        )
    )


if __name__ == "__main__":
    main()
