"""`python -m tests.docs.regenerate`: write the files that are generated from the code (`make docs`).

Review the diff.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lbctl.cli import gpus, schema
from lbctl.lint import pages as rule_pages
from lbctl.signals import page as signals_page
from lbctl.targets import capability_page
from tests.benchmarks.peers import report
from tests.benchmarks.peers.results import Results
from tests.benchmarks.peers.table import table
from tests.docs import api_page, cli_page, completion_files, diagrams, man_pages, reference_page, simulate_page
from tests.newer import results
from tests.support.paths import ROOT

PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/http-api.md": api_page.page,
    "docs/reference/capabilities.md": lambda: capability_page.page(results.section()),
    "docs/reference/cli.md": cli_page.page,
    "docs/reference/gpus.md": gpus.page,
    "docs/reference/codes.md": rule_pages.document,
    "docs/reference/signals.md": signals_page.page,
    "docs/reference/simulate.md": simulate_page.page,
    "schemas/lbctl.schema.json": schema.page,
    **completion_files.pages(),
    **diagrams.pages(),
    **man_pages.pages(),
    **reference_page.pages(),
    **report.pages(table(Results.read(report.RESULTS))),
}
"""Path in the repository → function that makes its text."""


def main() -> None:
    for stale in orphans():
        stale.unlink()
        print(f"{_name(stale)} is removed")
    for name, page in PAGES.items():
        path, text = ROOT / name, page()
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"{name} is written anew")


def orphans() -> list[Path]:
    """Return the files of docs/share that are no longer generated."""
    return [
        path for path in sorted((ROOT / "docs" / "share").rglob("*")) if path.is_file() and _name(path) not in PAGES
    ]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
