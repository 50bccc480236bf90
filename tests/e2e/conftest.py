"""Fixtures of the end-to-end tests: `kind` runs a test on every proxy unless the test names kinds itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import background, ports
from tests.support.processes.binaries import KINDS, Kind

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests here as `e2e`. Their coverage is not measured, because they run lbctl in other processes."""
    for item in items:
        if _HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.no_cover)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Return each proxy in turn; `@pytest.mark.parametrize("kind", ["haproxy", "envoy"])` selects fewer."""
    chosen: Kind = request.param
    return chosen


@pytest.fixture(scope="session", autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    background.close()
    ports.release()
