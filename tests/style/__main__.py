"""`python -m tests.style [FILE …]`: report new text that is not plain, standard English (`make check`)."""

from __future__ import annotations

import argparse
import sys

from tests.style import check

HEAD = "# Fingerprints of findings older than the checker. Only `python -m tests.style --prune` changes this file.\n"


def main(arguments: list[str] | None = None) -> int:
    """Print the findings. Return 1 if one of them is new."""
    parser = argparse.ArgumentParser(prog="python -m tests.style", description=__doc__)
    parser.add_argument("files", nargs="*", metavar="FILE", help="Files to check (default: all).")
    parser.add_argument("--all", action="store_true", help="Report known findings too.")
    parser.add_argument(
        "--prune", action="store_true", help="Remove entries from the baseline that no file contains any more."
    )
    options = parser.parse_args(arguments)
    known, found = check.baseline(), check.check([] if options.prune else options.files)
    if options.prune:
        prune({finding.fingerprint for finding in found})
        return 0
    reported = [finding for finding in found if options.all or finding.fingerprint not in known]
    for finding in reported:
        print(finding)
    if reported and not options.all:
        print(f"{len(reported)} findings. CONTRIBUTING.md explains them (“Plain English”).", file=sys.stderr)
    return 1 if reported else 0


def prune(current: set[str]) -> None:
    """Keep the entries of the baseline that are in `current`; nothing is added."""
    known = check.baseline()
    check.BASELINE.write_text(HEAD + "".join(f"{entry}\n" for entry in sorted(known & current)), encoding="utf-8")
    print(f"{len(known - current)} entries removed, {len(known & current)} left")


if __name__ == "__main__":
    sys.exit(main())
