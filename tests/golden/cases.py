"""The golden cases: folders with a fleet and its expected outputs."""

from __future__ import annotations

from pathlib import Path

DIRECTORY = Path(__file__).parent
CASES = sorted(path.parent.name for path in DIRECTORY.glob("*/in.yaml"))
INPUTS = {"in.yaml", "targets.json"}
CONFIGURATIONS = {"nginx": "*.conf", "haproxy": "*.cfg", "envoy": "envoy.yaml"}


def expected_outputs(case: str) -> dict[str, str]:
    """Return the text of each expected output by file name."""
    files = (path for path in (DIRECTORY / case).iterdir() if path.is_file() and path.name not in INPUTS)
    return {path.name: path.read_text() for path in files}


def configurations(kind: str) -> dict[str, str]:
    """Return the expected main configuration of a kind of proxy by case, for the cases that have one."""
    files = sorted(path for case in CASES for path in (DIRECTORY / case).glob(CONFIGURATIONS[kind]))
    return {path.parent.name: path.read_text() for path in files}


def update(case: str, outputs: dict[str, str]) -> None:
    """Replace the expected outputs of the case."""
    for name in expected_outputs(case).keys() - outputs.keys():
        (DIRECTORY / case / name).unlink()
    for name, text in outputs.items():
        (DIRECTORY / case / name).write_text(text)
