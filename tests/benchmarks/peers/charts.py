"""Bar charts as SVG files, readable on a phone, and in light and dark mode.

A chart has a panel for each case, one below the other. A panel has a bar for each system, with the interval of its
value as a line, and the value as text. All bars of a panel begin at 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from tests.benchmarks.peers.intervals import Interval

WIDTH = 380
"""Pixels. Almost the whole width of a phone with 390 pixels, so that texts are not scaled down there."""
_EDGE, _NAME_WIDTH, _VALUE_WIDTH = 12, 112, 62
_BAR_LEFT, _BAR_WIDTH = _EDGE + _NAME_WIDTH, WIDTH - 2 * _EDGE - _NAME_WIDTH - _VALUE_WIDTH
_ROW, _BAR, _TITLE, _GAP = 18, 10, 24, 14
_CHARACTER = 12 * 0.6
"""Mean width of a character of a wide sans-serif font, in pixels."""
_MAX_RATIO = 4.0
"""A bar or the line of an interval is cut if it is longer than the median of its panel by this factor. So the other
bars stay readable."""
_STYLE = """\
text { font: 12px system-ui, sans-serif; fill: #1f2933 }
.title { font-weight: 600 }
.own { font-weight: 600; fill: #00695c }
.ground { fill: #fff }
.bar { fill: #b0bec5 }
.bar.own { fill: #26a69a }
.axis { stroke: #78909c }
.interval { stroke: #263238; stroke-width: 1.5 }
.cut { fill: #fff }
@media (prefers-color-scheme: dark) {
  text { fill: #eceff1 }
  .own { fill: #80cbc4 }
  .ground, .cut { fill: #1e2129 }
  .bar { fill: #546e7a }
  .bar.own { fill: #00897b }
  .axis { stroke: #90a4ae }
  .interval { stroke: #fff }
}"""


@dataclass(frozen=True, slots=True)
class Bar:
    """One system. `own`: a system of lbctl."""

    name: str
    value: Interval
    text: str
    own: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """The bars of one case, from top to bottom."""

    title: str
    bars: Sequence[Bar]


def chart(panels: Sequence[Panel]) -> str:
    """Return the text of the SVG file. Raises ValueError if a text is wider than its place."""
    elements, top = list[str](), _EDGE
    for panel in panels:
        elements += _panel(panel, top)
        top += _TITLE + _ROW * len(panel.bars) + _GAP
    elements.append(f'<text x="{_EDGE}" y="{top + 4}">A shorter bar is better.</text>')
    height = top + _EDGE
    size = f'viewBox="0 0 {WIDTH} {height}" width="{WIDTH * 1.2:.0f}" height="{height * 1.2:.0f}"'
    ground = f'<rect class="ground" width="{WIDTH}" height="{height}" rx="8"/>'
    parts = [f"<style>\n{_STYLE}\n</style>", ground, *elements]
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n' + "\n".join(parts) + "\n</svg>\n"


def _panel(panel: Panel, top: int) -> Iterator[str]:
    end = _end([bar.value for bar in panel.bars])
    yield f'<text class="title" x="{_EDGE}" y="{top + 12}">{_fitting(panel.title, WIDTH - 2 * _EDGE)}</text>'
    first = top + _TITLE
    for row, bar in enumerate(panel.bars):
        yield from _bar(bar, first + row * _ROW + _ROW // 2, end)
    yield f'<path class="axis" d="M{_BAR_LEFT} {first}V{first + len(panel.bars) * _ROW}"/>'


def _end(values: Sequence[Interval]) -> float:
    """Return the value at the end of the axis."""
    middle, longest = sorted(each.middle for each in values)[len(values) // 2], max(each.high for each in values)
    return min(longest, _MAX_RATIO * middle) if middle else longest


def _bar(bar: Bar, middle: int, end: float) -> Iterator[str]:
    """Draw a bar at this height. The axis ends at the value `end`."""
    own = " own" if bar.own else ""
    yield f'<text class="name{own}" x="{_EDGE}" y="{middle + 4}">{_fitting(bar.name, _NAME_WIDTH)}</text>'
    right = _place(bar.value.middle, end)
    place = f'x="{_BAR_LEFT}" y="{middle - _BAR // 2}" width="{right - _BAR_LEFT:.1f}"'
    yield f'<rect class="bar{own}" {place} height="{_BAR}"/>'
    if bar.value.middle <= end:
        low, high = _place(bar.value.low, end), _place(bar.value.high, end)
        yield f'<path class="interval" d="M{low:.1f} {middle}H{high:.1f}"/>'
    if bar.value.high > end:
        yield f'<path class="cut" d="M{_place(end, end) - 14:.1f} {middle + 7}l5 -14h4l-5 14z"/>'
    place = f'x="{WIDTH - _EDGE}" y="{middle + 4}" text-anchor="end"'
    yield f'<text class="value{own}" {place}>{_fitting(bar.text, _VALUE_WIDTH)}</text>'


def _place(value: float, end: float) -> float:
    """Return the position of a value. A value beyond the end of the axis is at its end."""
    return _BAR_LEFT + (_BAR_WIDTH * min(max(value, 0.0), end) / end if end else 0.0)


def _fitting(text: str, width: float) -> str:
    if len(text) * _CHARACTER > width:
        raise ValueError(f"the text {text!r} is wider than its place")
    return escape(text)
