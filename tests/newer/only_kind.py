"""A plugin of pytest: of the tests that run on several proxies, those of the kind in LBCTL_TESTS_KIND."""

from __future__ import annotations

import os

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    kind = os.environ["LBCTL_TESTS_KIND"]
    config.hook.pytest_deselected(items=[item for item in items if kind not in _parameters(item)])
    items[:] = [item for item in items if kind in _parameters(item)]


def _parameters(item: pytest.Item) -> list[object]:
    """The values of the parameters that say which proxy a test runs on."""
    callspec = getattr(item, "callspec", None)
    return [callspec.params.get(name) for name in ("kind", "edge")] if callspec else []
