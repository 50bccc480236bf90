"""The live view's figures of all requests are those of the requests, however many have ended before."""

from __future__ import annotations

import time
from random import Random

import pytest

from lbctl.demo.load import LoadGenerator, SentRequest
from lbctl.demo.totals import Totals


def test_figures_that_were_added_up_are_those_of_all_requests() -> None:
    load, chance, began = LoadGenerator([1], "/x", 5.0), Random("totals"), time.monotonic() - 1000
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
                request.first = request.at + chance.expovariate(5)
                request.status, request.last = 200, request.first + 1
        if number % 7 == 0:
            totals.update()
    late = load.sent[1]
    late.last = (late.first or 0.0) + 30
    totals.update()
    every = load.outcomes(began, began + 1000)
    assert (totals.requests, totals.failed) == (2_000, every.failed)
    for percentile in (25, 50, 90, 99):
        assert totals.first_token(percentile) == pytest.approx(every.first_token(percentile), rel=0.05)


def test_without_requests_there_are_no_times() -> None:
    assert Totals(LoadGenerator([1], "/x")).first_token(50) == 0.0
