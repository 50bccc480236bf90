"""Cached prompt tokens: expected by pickers, and found by engines."""

from __future__ import annotations

import pytest

from lbctl.serve.picker.cached_tokens import CacheComparison, CacheUse, total
from lbctl.signals.cached import CachedTokens


class _Fleet:
    """A replica and its engine, with an update every ten seconds."""

    def __init__(self) -> None:
        self.now, self.process = 0.0, 1
        self.expected = 0
        self.engine: CachedTokens | None = CachedTokens(5_000_000.0, {"device": 5_000_000.0})
        self.comparison = CacheComparison(lambda: self.now)

    def run(self, seconds: int, *, expected: int = 0, found: int = 0, host: int = 0) -> CacheUse:
        """Add these tokens each second, and return the tokens of the last five minutes."""
        for _ in range(seconds):
            self.now += 1
            self.expected += expected
            if self.engine is not None:
                sources = dict(self.engine.by_source)
                sources["device"] += found
                if host:
                    sources["host"] = sources.get("host", 0.0) + host
                self.engine = self.engine._replace(total=self.engine.total + found + host, by_source=sources)
            self.comparison.update(self.process, {"chat": {"a": self.expected}}, lambda: {("chat", "a"): self.engine})
        return self.comparison.recent["chat"]["a"]


def test_found_tokens_are_compared_with_expected_ones() -> None:
    fleet = _Fleet()
    assert fleet.run(1) == CacheUse(0, 0, {"device": 0})
    use = fleet.run(100, expected=1000, found=700, host=200)
    assert use == CacheUse(100_000, 90_000, {"device": 70_000, "host": 20_000}, 100)
    assert (use.ratio, use.is_low) == (0.9, False)
    use = fleet.run(600, expected=1000, found=100)
    assert use.seconds in range(300, 331), "the last five minutes"
    assert use.expected == 1000 * use.seconds
    assert use.ratio == pytest.approx(0.1)
    assert use.is_low


def test_engine_without_counts_is_unknown() -> None:
    fleet = _Fleet()
    fleet.engine = None
    use = fleet.run(101, expected=1000)
    assert (use.found, use.by_source, use.ratio, use.is_low) == (None, {}, None, False)
    assert use.expected == 100_000
    assert fleet.comparison.totals()["chat", "a"].found is None


def test_comparison_begins_again_after_missing_counts() -> None:
    fleet = _Fleet()
    fleet.run(101, expected=1000, found=1000)
    engine, fleet.engine = fleet.engine, None
    assert fleet.run(50, expected=1000).found is None
    fleet.engine = engine
    assert fleet.run(10, expected=1000, found=900).expected == 0
    assert fleet.run(100, expected=1000, found=900) == CacheUse(100_000, 90_000, {"device": 90_000}, 100)


def test_restarted_engine_adds_only_new_tokens() -> None:
    fleet = _Fleet()
    fleet.run(101, expected=1000, found=1000)
    fleet.engine = CachedTokens(0.0, {"device": 0.0})
    use = fleet.run(100, expected=1000, found=500)
    assert use.found in range(140_000, 151_000)
    assert fleet.comparison.totals()["chat", "a"].found == use.found


def test_missing_line_does_not_add_the_history_of_the_engine() -> None:
    fleet = _Fleet()
    whole = CachedTokens(5_000_000.0, {"device": 5_000_000.0}, (0, 2))
    for engine in (whole, CachedTokens(1_000_000.0, {"device": 1_000_000.0}, (0, 1)), whole):
        fleet.engine = engine
        use = fleet.run(10)
    assert use == CacheUse(0, 0, {"device": 0}), "the comparison begins again"
    assert fleet.comparison.totals()["chat", "a"].found == 0
    assert fleet.run(11, expected=100, found=90) == CacheUse(1100, 990, {"device": 990}, 20)


def test_restarted_picker_begins_again() -> None:
    fleet = _Fleet()
    fleet.run(101, expected=1000, found=1000)
    fleet.process, fleet.expected = 2, 0
    assert fleet.run(1) == CacheUse(0, 0, {"device": 0})
    assert fleet.run(10, expected=1000, found=800) == CacheUse(10_000, 8_000, {"device": 8_000}, 10)


def test_history_of_another_picker_does_not_count() -> None:
    fleet = _Fleet()
    fleet.run(101, expected=1000, found=1000)
    fleet.process, fleet.expected = 2, 9_000_000
    assert fleet.run(1) == CacheUse(0, 0, {"device": 0})


def test_old_counts_do_not_count_as_recent_after_a_pause() -> None:
    fleet = _Fleet()
    fleet.run(101, expected=1000, found=1000)
    fleet.now += 3600
    assert fleet.run(1, expected=1000, found=1000) == CacheUse(0, 0, {"device": 0})
    assert fleet.run(10, expected=1000, found=1000).seconds == 10


def test_few_expected_tokens_are_not_judged() -> None:
    assert not CacheUse(9_999, 0, {}).is_low
    assert CacheUse(10_000, 0, {}).is_low
    assert CacheUse(0, 0, {}).ratio is None


def test_pool_sums_the_replicas_whose_engines_report() -> None:
    known = CacheUse(100, 90, {"device": 90}, 300), CacheUse(100, 50, {"device": 20, "disk": 30}, 20)
    assert total([*known, CacheUse(900, None, {})]) == CacheUse(200, 140, {"device": 110, "disk": 30}, 300)
    assert total([CacheUse(900, None, {}, 40)]) == CacheUse(900, None, {}, 40)


def test_replica_that_left_is_dropped() -> None:
    comparison = CacheComparison(iter(range(0, 100, 10)).__next__)
    comparison.update(1, {}, lambda: {("chat", "a"): None, ("chat", "b"): None})
    comparison.update(1, {"chat": {"a": 5}}, lambda: {("chat", "b"): None})
    assert comparison.recent == {"chat": {"b": CacheUse(0, None, {}, 10)}}
