"""A picture of several replays: time to the first token of each policy, from the median to 99 %, on one scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from lbctl.simulate.results import Summary

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 860, 250, 30, 34, 64
_TICKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#333}.t{font-weight:600;font-size:15px}.s{fill:#666;font-size:12px}"
    ".g{stroke:#ddd}.b{stroke:#3465a4;stroke-width:6;stroke-linecap:round;opacity:.45}.m{fill:#204a87}"
    ".n{fill:#fff;stroke:#204a87;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.s{fill:#aaa}.g{stroke:#444}.m{fill:#8ab4f8}.n{fill:#222;stroke:#8ab4f8}}"
)


def svg(title: str, summaries: Sequence[tuple[str, Summary]]) -> str:
    """Return the picture as SVG. `summaries`: (name of the row, figures)."""
    values = [value for _, item in summaries for value in (item.ttft.p50, item.ttft.p99) if value > 0]
    low, high = (min(values), max(values)) if values else (0.1, 1.0)
    low, high = _floor(low), _ceiling(high)
    height = _TOP + _ROW * len(summaries) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
        f'<text class="t" x="16" y="26">{escape(title)}</text>',
        '<text class="s" x="16" y="46">time to the first token: median (filled), 95 %, 99 % (open); log scale</text>',
    ]
    parts += [line for tick in _TICKS if low <= tick <= high for line in _tick(tick, low, high, height)]
    for row, (name, item) in enumerate(summaries):
        parts += _bar(name, item, _TOP + _ROW * row + 20, low, high)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _tick(tick: float, low: float, high: float, height: int) -> list[str]:
    x = _x(tick, low, high)
    text = f"{tick:g} s" if tick >= 1 else f"{1000 * tick:g} ms"
    return [
        f'<line class="g" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{height - 30}"/>',
        f'<text class="s" x="{x:.1f}" y="{height - 12}" text-anchor="middle">{text}</text>',
    ]


def _bar(name: str, item: Summary, y: int, low: float, high: float) -> list[str]:
    left, middle, right = (_x(max(value, low), low, high) for value in (item.ttft.p50, item.ttft.p95, item.ttft.p99))
    failed = f", {100 * item.failed:.1f} % failed" if item.failed else ""
    return [
        f'<text x="16" y="{y + 4}">{escape(name)}</text>',
        f'<line class="b" x1="{left:.1f}" y1="{y}" x2="{right:.1f}" y2="{y}"/>',
        f'<circle class="m" cx="{left:.1f}" cy="{y}" r="5"/>',
        f'<circle class="m" cx="{middle:.1f}" cy="{y}" r="3"/>',
        f'<circle class="n" cx="{right:.1f}" cy="{y}" r="5"><title>{item.ttft.p99:.3g} s{failed}</title></circle>',
    ]


def _x(value: float, low: float, high: float) -> float:
    span = math.log(high / low) or 1.0
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log(value / low) / span


def _floor(value: float) -> float:
    return max((tick for tick in _TICKS if tick <= value), default=value)


def _ceiling(value: float) -> float:
    return min((tick for tick in _TICKS if tick >= value), default=value)
