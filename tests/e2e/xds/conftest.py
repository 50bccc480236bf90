"""The control plane and the two Envoys that the tests of this package share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.processes.driven_envoys import DrivenEnvoys, driven_pair


@pytest.fixture(scope="package")
def driven_envoys() -> Iterator[DrivenEnvoys]:
    """Yield a control plane and two Envoys for all tests of the package. A test calls `serve` with its fleet first."""
    with driven_pair() as shared:
        yield shared
