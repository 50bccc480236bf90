"""Texts for the report of a failed test: the end of the logs of its processes, and its fleet.

Support code that starts a process does so within `diagnosed`. `tests/conftest.py` adds the texts to the report of a
test that fails, also for processes that several tests share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

LOG_CHARACTERS, FLEET_CHARACTERS = 4_000, 20_000
_in_use: dict[object, Callable[[], str]] = {}
_after_errors: list[str] = []
_idle = False


@contextmanager
def diagnosed(describe: Callable[[], str]) -> Iterator[None]:
    """Print the result of `describe` if a test fails within the block.

    `describe` may read files that are removed after the block.
    """
    key = object()
    if not _idle:
        _in_use[key] = describe
    try:
        yield
    except BaseException:
        _after_errors.append(_text(describe))
        raise
    finally:
        _in_use.pop(key, None)


@contextmanager
def started_idle() -> Iterator[None]:
    """Within the block, start processes whose logs are printed only by tests that use them within another
    `diagnosed`."""
    global _idle
    before, _idle = _idle, True
    try:
        yield
    finally:
        _idle = before


def start_test() -> None:
    """Forget the texts of the previous test."""
    _after_errors.clear()


def texts() -> list[str]:
    """Return the texts of all processes that the failed test used."""
    every = [*_after_errors, *(_text(describe) for describe in _in_use.values())]
    return list(dict.fromkeys(text for text in every if text))


def _text(describe: Callable[[], str]) -> str:
    try:
        return describe()
    except Exception as error:  # noqa: BLE001 -- the failure of the test must be reported in any case
        return f"no description: {error!r}"


def tail_of(*files: Path, characters: int = LOG_CHARACTERS) -> str:
    """Return the ends of these files, each below its name. Files that are empty or missing are skipped."""
    logs = [(file.name, file.read_text(errors="replace")[-characters:]) for file in files if file.is_file()]
    return "\n".join(f"── {name}\n{text}" for name, text in logs if text)
