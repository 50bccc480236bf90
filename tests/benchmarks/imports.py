"""`python -m tests.benchmarks.imports`: print the tables of docs/develop/import-samples.md.

It imports and compares every sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from lbctl.importer.compare.processes import NotStartedError
from lbctl.importer.compare.run import ComparedRequest, compare
from lbctl.importer.draft import CLOSED_STATUS, addresses
from lbctl.importer.run import KINDS, Imported
from tests.support.importer import imported, samples

HEAD = (
    "| sample | directives | converted | implied | comments | requests that agree | differences | level |\n"
    "|---|---|---|---|---|---|---|---|"
)
LEVELS = ("whole", "nearly", "in part", "not")
_LOST = (
    "take the next",
    "to a pool",
    "full host names",
    "full values",
    "external processor",
    "only the cert",
    "the whole route",
)
"""Words in the reasons of comments about directives that affect requests."""
_INTENDED = "status 302 → 301"
"""An intentional difference of a fleet: redirects to https have status 301 or 308."""


def counts(kind: str, file: Path) -> str:
    """Return the first cells of a sample's row, which count its directives by result."""
    carried, implied, noted = imported(kind, file)[0].draft.ledger.counts()
    return f"| {kind}/{file.name} | {carried + implied + noted} | {carried} | {implied} | {noted} |"


def rows(kind: str, names: Collection[str] = ()) -> Iterator[str]:
    """Yield the rows of all samples of a kind, or of those with these file names."""
    yield from (_row(kind, file) for file in samples(kind) if not names or file.name in names)


def _row(kind: str, file: Path) -> str:
    result = imported(kind, file)[0]
    try:
        compared = compare(kind, [str(file)], result.draft).rows
    except NotStartedError as error:
        return f"{counts(kind, file)} none | {error} | not |"
    seen = [row for row in compared if not row.skipped]
    agree = sum(not row.differences for row in seen)
    reasons = _by_pool(result, "; ".join(_reasons(compared)))
    return f"{counts(kind, file)} {agree} of {len(seen)} | {reasons} | {level(result, compared)} |"


def _by_pool(result: Imported, text: str) -> str:
    """Return the text with pool names instead of replica addresses, because a proxy may choose any replica of a
    pool."""
    for name, pool in result.draft.fleet["pools"].items():
        for address in addresses(pool):
            text = text.replace(address, name)
    return text.replace("replica ", "pool ")


def _reasons(compared: Sequence[ComparedRequest]) -> list[str]:
    return list(
        dict.fromkeys(
            [*(each for row in compared for each in row.differences), *(row.skipped for row in compared if row.skipped)]
        )
    )


def level(result: Imported, compared: Sequence[ComparedRequest]) -> str:
    """Return how completely the fleet replaces a configuration.

    `whole`: no comment remains, and all requests agree. `nearly`: the remaining comments do not affect requests. `in
    part`: a route is closed, or a request has a different result. `not`: no request reaches a replica.
    """
    routes = result.draft.fleet["routes"].values()
    if not any("pool" in item or "split" in item for item in routes):
        return "not"
    closed = any(item.get("respond", {}).get("status") == CLOSED_STATUS for item in routes)
    differ = any(each != _INTENDED for row in compared for each in row.differences)
    notes = result.draft.ledger.notes
    if closed or differ or any(word in note.reason for note in notes for word in _LOST):
        return "in part"
    return "nearly" if notes else "whole"


def total(lines: Sequence[str]) -> str:
    """Return the sentence with the number of samples of each level."""
    number = Counter(line.rstrip(" |").rpartition("| ")[2] for line in lines)
    return f"Of {len(lines)} samples: {', '.join(f'{number[each]} {each}' for each in LEVELS)}."


def main() -> None:
    """Print the table, and the number of samples of each level."""
    lines = [line for kind in KINDS for line in rows(kind)]
    print(HEAD, *lines, "", total(lines), sep="\n")


if __name__ == "__main__":
    main()
