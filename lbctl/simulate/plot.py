"""A chart of several replays.

Each replay has a row with the time to first token, the utilisation, and the requests without an answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from lbctl.simulate.results import Summary

_ROW, _TOP, _BOTTOM, _CHARACTER = 34, 84, 40, 7.6
_TIMES, _BUSY, _LOST, _GAP, _MARGIN = 440, 200, 150, 48, 16
"""Widths of the three panels, the gap between them, and the margin."""
_TICKS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#333}.t{font-weight:600;font-size:15px}.s{fill:#666;font-size:12px}"
    ".g{stroke:#ddd}.b{stroke:#3465a4;stroke-width:6;stroke-linecap:round;opacity:.45}.m{fill:#204a87}"
    ".n{fill:#fff;stroke:#204a87;stroke-width:2}.u{fill:#4e9a06;opacity:.55}.f{fill:#cc0000}.h{fill:#f57900}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.s{fill:#aaa}.g{stroke:#444}.m{fill:#8ab4f8}"
    ".n{fill:#222;stroke:#8ab4f8}}"
)


def svg(title: str, summaries: Sequence[tuple[str, Summary]]) -> str:
    """Return the chart as SVG. `summaries`: (row name, figures)."""
    left = _MARGIN + max(160, math.ceil(_CHARACTER * max((len(name) for name, _ in summaries), default=0))) + 12
    busy = left + _TIMES + _GAP
    lost = busy + _BUSY + _GAP
    width, height = lost + _LOST + _MARGIN + 30, _TOP + _ROW * len(summaries) + _BOTTOM
    values = [value for _, item in summaries for value in (item.ttft.p50, item.ttft.p99) if value > 0] or [0.1, 1.0]
    low, high = _floor(min(values)), _ceiling(max(values))
    most = max((item.unanswered for _, item in summaries), default=0.0) or 0.01
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{_text(title)}</title><style>{_STYLE}</style>",
        f'<text class="t" x="{_MARGIN}" y="26">{_text(title)}</text>',
        *_heads(left, busy, lost),
    ]
    ticks = _shown([tick for tick in _TICKS if low <= tick <= high])
    parts += [line for tick in ticks for line in _line(left + _x(tick, low, high), height, _time(tick))]
    parts += [line for part in (0, 50, 100) for line in _line(busy + _BUSY * part / 100, height, f"{part} %")]
    for row, (name, item) in enumerate(summaries):
        y = _TOP + _ROW * row + 20
        parts.append(f'<text x="{_MARGIN}" y="{y + 4}">{_text(name)}</text>')
        parts += [*_times(item, left, y, low, high), *_engines(item, busy, y), *_unanswered(item, lost, y, most)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _text(text: str) -> str:
    """Return the text escaped for XML, without control characters or lone surrogates."""
    return escape("".join(character if character.isprintable() else "\ufffd" for character in text))


def _heads(left: int, busy: int, lost: int) -> Iterator[str]:
    for x, head, note in (
        (left, "time to the first token", "median (filled), 95 %, 99 % (open); log scale"),
        (busy, "engines busy", "minimum to maximum, and mean"),
        (lost, "without an answer", "failed (red), shed (orange)"),
    ):
        yield f'<text class="s" x="{x}" y="52">{head}</text><text class="s" x="{x}" y="68">{note}</text>'


def _line(x: float, height: int, text: str) -> list[str]:
    return [
        f'<line class="g" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{height - 30}"/>',
        f'<text class="s" x="{x:.1f}" y="{height - 12}" text-anchor="middle">{text}</text>',
    ]


def _times(item: Summary, left: int, y: int, low: float, high: float) -> list[str]:
    first, middle, last = (
        left + _x(max(value, low), low, high) for value in (item.ttft.p50, item.ttft.p95, item.ttft.p99)
    )
    return [
        f'<line class="b" x1="{first:.1f}" y1="{y}" x2="{last:.1f}" y2="{y}"/>',
        f'<circle class="m" cx="{first:.1f}" cy="{y}" r="5"/>',
        f'<circle class="m" cx="{middle:.1f}" cy="{y}" r="3"/>',
        f'<circle class="n" cx="{last:.1f}" cy="{y}" r="5"><title>{item.ttft.p99:.3g} s</title></circle>',
    ]


def _engines(item: Summary, busy: int, y: int) -> list[str]:
    values = sorted(item.utilisation.values())
    begin, end, mean = (busy + _BUSY * value for value in (values[0], values[-1], sum(values) / len(values)))
    text = f"{100 * values[0]:.0f}–{100 * values[-1]:.0f} %"
    return [
        _rectangle("u", begin, y, max(2.0, end - begin), f"<title>{text}</title>"),
        f'<circle class="m" cx="{mean:.1f}" cy="{y}" r="3"/>',
    ]


def _unanswered(item: Summary, lost: int, y: int, most: float) -> list[str]:
    failed, shed = (_LOST * 0.7 * part / most for part in (item.failed, item.shed))
    text = f"{100 * item.unanswered:.1f} %" if item.unanswered else "0"
    return [
        _rectangle("f", lost, y, failed),
        _rectangle("h", lost + failed, y, shed),
        f'<text class="s" x="{lost + failed + shed + 6:.1f}" y="{y + 4}">{text}</text>',
    ]


def _rectangle(style: str, x: float, y: int, width: float, inside: str = "") -> str:
    return f'<rect class="{style}" x="{x:.1f}" y="{y - 5}" width="{width:.1f}" height="10" rx="2">{inside}</rect>'


def _shown(ticks: Sequence[float]) -> Sequence[float]:
    """Return at most nine of the ticks, evenly spaced, so that their labels do not overlap."""
    return ticks[:: math.ceil(len(ticks) / 9)] if ticks else ticks


def _time(tick: float) -> str:
    return f"{tick:g} s" if tick >= 1 else f"{1000 * tick:g} ms"


def _x(value: float, low: float, high: float) -> float:
    span = math.log(high / low) or 1.0
    return _TIMES * math.log(value / low) / span


def _floor(value: float) -> float:
    return max((tick for tick in _TICKS if tick <= value), default=value)


def _ceiling(value: float) -> float:
    return min((tick for tick in _TICKS if tick >= value), default=value)
