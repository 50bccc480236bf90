"""The running totals of the live view equal the totals over all requests."""

from __future__ import annotations

import time
from random import Random

import pytest

from lbctl.demo.load import LoadGenerator, SentRequest
from lbctl.demo.totals import SLOW, Totals


def test_running_totals_equal_the_totals_of_all_requests() -> None:
    load, randomness, began = LoadGenerator([1], "/x", 5.0), Random("totals"), time.monotonic() - 1000
    totals = Totals(load)
    for number in range(2_000):
        request = SentRequest(began + number / 100, 10)
        load.sent.append(request)
        match number % 20:
            case 0:
                request.broken = True
            case 1:
                request.first = request.at + 0.2
            case _:
                request.first = request.at + randomness.expovariate(5)
                request.status, request.last = 200, request.first + 1
        if number % 7 == 0:
            totals.update()
    late = load.sent[1]
    late.last = (late.first or 0.0) + 30
    totals.update()
    expected = load.outcomes(began, began + 1000)
    assert (totals.requests, totals.failed) == (2_000, expected.failed)
    assert totals.slow_share == pytest.approx(expected.slow(SLOW) / 2_000)
    for percentile in (25, 50, 90, 99):
        assert totals.first_token(percentile) == pytest.approx(expected.first_token(percentile), rel=0.05)


def test_without_requests_the_latency_is_0() -> None:
    totals = Totals(LoadGenerator([1], "/x"))
    assert (totals.first_token(50), totals.slow_share) == (0.0, 0.0)
