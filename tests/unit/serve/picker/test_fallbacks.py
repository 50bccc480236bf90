"""The count of requests without a pick survives restarts of the picker, and starts when a pool is picked."""

from __future__ import annotations

from collections import Counter

from lbctl.picker.reports import PickerReport
from lbctl.serve.picker.fallbacks import Fallbacks


def test_new_picker_keeps_the_count() -> None:
    requests = Counter[str]()
    fallbacks = Fallbacks(lambda: requests)
    fallbacks.use_pools(["chat"])
    requests["chat"] = 100
    fallbacks.reported(1, PickerReport(finished={"chat": 90}, open_by_pool={"chat": 5}))
    assert fallbacks.counts() == {"chat": 10}
    requests["chat"] = 130  # the five that the ended picker had open, and 25 while there is none
    fallbacks.reported(2, PickerReport())
    assert fallbacks.counts() == {"chat": 35}
    requests["chat"] = 150
    fallbacks.reported(2, PickerReport(finished={"chat": 20}))
    assert fallbacks.counts() == {"chat": 35}


def test_requests_before_the_pool_was_picked_do_not_count() -> None:
    requests = Counter({"chat": 1000})
    fallbacks = Fallbacks(lambda: requests)
    fallbacks.use_pools(["chat"])
    requests["chat"] += 3
    fallbacks.reported(1, PickerReport(finished={"chat": 2}))
    assert fallbacks.counts() == {"chat": 1}
    fallbacks.use_pools([])
    assert fallbacks.counts() == {}
    requests["chat"] += 500
    fallbacks.use_pools(["chat"])
    assert fallbacks.counts() == {"chat": 0}


def test_count_is_never_negative() -> None:
    fallbacks = Fallbacks(Counter)
    fallbacks.use_pools(["chat"])
    fallbacks.reported(1, PickerReport(finished={"chat": 2}))
    assert fallbacks.counts() == {"chat": 0}


def test_first_report_of_a_separate_picker_starts_the_count() -> None:
    """`serve` restarts while a separate picker picks ten requests a second."""
    requests, now = Counter[str](), 0.0
    fallbacks = Fallbacks(lambda: requests, lambda: now)
    fallbacks.use_pools(["chat"])
    for second in range(40):
        now = float(second)
        requests["chat"] += 10
        if second >= 5:
            fallbacks.reported(-7, PickerReport(finished={"chat": 10 * (second - 5)}), is_alone=True)
            if second < 15:
                assert not fallbacks.recent()
    (row,) = fallbacks.recent().values()
    assert (row.requests, row.picked, row.missed) == (240, 240, 0)
    assert fallbacks.counts() == {"chat": 0}
    requests["chat"] += 30
    now += 1.0
    fallbacks.reported(-7, PickerReport(finished={"chat": 340}), is_alone=True)
    assert fallbacks.counts() == {"chat": 30}
    requests["chat"] += 20
    now += 1.0
    fallbacks.reported(-8, PickerReport(), is_alone=True)
    assert fallbacks.counts() == {"chat": 50}, "a separate picker that restarts does not hide requests without a pick"
