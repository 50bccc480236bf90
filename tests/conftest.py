"""Options of the tests."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As of a job in the background of a script: what tests start would inherit it, and some of that is interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# An example that takes long on a busy machine is no failure, nor is one whose data take long to draw.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests come first: one of them that is begun last would be waited for alone, with idle workers beside it."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write what tests/golden expects anew")
