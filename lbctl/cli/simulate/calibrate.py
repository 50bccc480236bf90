"""`lbctl simulate --calibrate URL`, which scrapes a live replica's metrics and fits an engine model to them."""

from __future__ import annotations

import time

import click

from lbctl.api.client import innermost_reason
from lbctl.base.bounded import TooLargeError, whole_of
from lbctl.base.deadline import within
from lbctl.base.urls import without_values
from lbctl.signals.source import SourceReading
from lbctl.simulate import calibrate

_SCRAPES = 30
_MIN_PAUSE = 0.2
_TIMEOUT = 5.0
_MAX_BYTES = 16 << 20


def calibration(url: str, seconds: float) -> calibrate.Calibration:
    """Observe the replica for `seconds`. Raises ClickException if no engine model can be fitted."""
    if not url.startswith(("http://", "https://")):
        raise click.UsageError("--calibrate: not the URL of a metrics page, for example http://127.0.0.1:8000/metrics")
    pause = max(_MIN_PAUSE, seconds / _SCRAPES)
    begin = time.monotonic()
    readings = [_read(url)]
    while time.monotonic() - begin < seconds:
        time.sleep(pause)
        readings.append(_read(url))
    try:
        return calibrate.fit(readings)
    except ValueError as error:
        raise click.ClickException(f"--calibrate: {error}") from None


def _read(url: str) -> SourceReading:
    import requests

    shown = without_values(url)
    try:
        page = within(_TIMEOUT, lambda: _page(url, shown))
    except (TimeoutError, TooLargeError):
        limits = f"{_TIMEOUT:g} s and {_MAX_BYTES >> 20} MiB"
        raise click.ClickException(f"--calibrate: {shown} did not return its complete page within {limits}") from None
    except requests.RequestException as error:
        raise click.ClickException(f"--calibrate: {shown} cannot be read: {innermost_reason(error)}") from None
    reading = calibrate.reading(page, time.monotonic())
    if reading is None:
        raise click.ClickException(
            f"--calibrate: {shown} does not have the counters of iterations, tokens and inter-token times; use the "
            f"metrics page of one of {', '.join(calibrate.KINDS)}"
        )
    return reading


def _page(url: str, shown: str) -> bytes:
    import requests

    with requests.Session() as session:
        session.trust_env = False
        with session.get(url, timeout=_TIMEOUT, allow_redirects=False, stream=True) as response:
            if response.status_code != 200:
                raise click.ClickException(f"--calibrate: {shown} returned status {response.status_code}")
            return whole_of(response.iter_content(1 << 16), _MAX_BYTES)
