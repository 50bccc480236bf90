"""The charts of the benchmarks are valid SVG, with bars in proportion to the values."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.benchmarks.peers.charts import WIDTH, Bar, Panel, chart
from tests.benchmarks.peers.intervals import Interval

_SVG = "{http://www.w3.org/2000/svg}"


def _bar(value: float, name: str = "smg", own: bool = False) -> Bar:
    return Bar(name, Interval(value * 0.9, value, value * 1.1), f"{value:.3g} s", own)


def _widths(text: str) -> list[float]:
    root = ElementTree.fromstring(text)
    return [float(each.get("width", "0")) for each in root.iter(f"{_SVG}rect") if "bar" in each.get("class", "")]


def test_chart_fits_a_phone_and_has_colours_for_dark_mode() -> None:
    text = chart([Panel("Load 85 %", [_bar(1.0)])])
    assert ElementTree.fromstring(text).get("viewBox", "").startswith(f"0 0 {WIDTH} ")
    assert WIDTH <= 390
    assert "prefers-color-scheme: dark" in text


def test_bars_are_proportional_to_their_values() -> None:
    short, middle, long = _widths(chart([Panel("", [_bar(1.0), _bar(2.0), _bar(3.0)])]))
    assert middle == pytest.approx(2 * short, rel=0.01)
    assert long == pytest.approx(3 * short, rel=0.01)


def test_bar_far_beyond_the_others_is_cut() -> None:
    text = chart([Panel("", [_bar(1.0), _bar(1.0), _bar(30.0)])])
    first, _, last = _widths(text)
    assert last == pytest.approx(4 * first, rel=0.01)
    assert text.count('class="cut"') == 1
    assert ">30 s<" in text


def test_interval_far_beyond_the_others_is_cut() -> None:
    wide = Bar("smg", Interval(0.0, 2.0, 9.0), "2 s")
    text = chart([Panel("", [_bar(1.0), _bar(1.0), wide])])
    assert text.count('class="cut"') == 1
    assert text.count('class="interval"') == 3
    assert 'class="cut"' not in chart([Panel("", [_bar(1.0), _bar(1.0), _bar(2.0)])])


def test_chart_states_that_shorter_bars_are_better() -> None:
    assert "A shorter bar is better." in chart([Panel("", [_bar(1.0)])])


def test_value_of_zero_has_no_bar() -> None:
    assert _widths(chart([Panel("", [_bar(0.0), _bar(0.0)])])) == [0.0, 0.0]


def test_own_systems_are_highlighted() -> None:
    text = chart([Panel("", [_bar(1.0, own=True), _bar(2.0)])])
    assert text.count('class="bar own"') == 1
    assert text.count('class="bar"') == 1


def test_text_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="wider than its place"):
        chart([Panel("", [_bar(1.0, name="a system with a long name")])])
