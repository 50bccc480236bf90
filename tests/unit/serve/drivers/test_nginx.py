"""The state of nginx that `lbctl status proxies` shows."""

from __future__ import annotations

import pytest

from lbctl.serve.drivers.nginx import next_reload

_NOON = 1_764_417_600.0
"""2025-11-29, 12:00 UTC."""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(510.0, "its next reload is due at 2025-11-29T12:08:30Z;"), (-1.0, "its next reload is due;")],
)
def test_waiting_nginx_shows_when_its_reload_is_due(seconds: float, text: str) -> None:
    assert next_reload(30.0, seconds, _NOON).startswith(text)


@pytest.mark.parametrize("seconds", [None, float("-inf")])
def test_first_reload_has_no_due_time(seconds: float | None) -> None:
    assert next_reload(30.0, seconds, _NOON).startswith("its next reload is due;")
