"""Stops the proxies that the tests of this package share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.processes import shared


@pytest.fixture(scope="session", autouse=True)
def _shared_proxies_end(_nothing_stays: None) -> Iterator[None]:
    yield
    shared.close()
