"""A bar chart as a small SVG file: a group for each scenario, a bar for each policy."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

_COLOURS = (
    "#9aa5b1", "#7b8794", "#b0895a", "#4c78a8", "#2f855a", "#c53030", "#6b46c1", "#d69e2e", "#0987a0", "#b83280",
    "#2d3748", "#68a063",
)  # fmt: skip
"""More colours than a chart has policies, so that no colour occurs twice."""
_BAR, _GAP, _HEIGHT, _BOTTOM = 22, 26, 180, 40
_LEGEND, _LINE, _LEAST_WIDTH = 24, 15, 560


def bars(title: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """Return the chart. Each group is scaled to its largest value, which is written on it."""
    policies = list(dict.fromkeys(name for values in groups.values() for name in values))
    width = max(_LEAST_WIDTH, sum(len(values) * _BAR + _GAP for values in groups.values()) + _GAP)
    legend, lines = _legend(policies, width)
    parts = [f'<text x="{_GAP}" y="16" font-size="13">{escape(title)}</text>', *legend]
    bottom = _LEGEND + lines * _LINE + _HEIGHT + 10
    left = _GAP
    for name, values in groups.items():
        largest = max(values.values())
        for policy, value in values.items():
            height = max(1.0, value / largest * (_HEIGHT - 20))
            top = bottom - height
            colour = _COLOURS[policies.index(policy)]
            parts.append(f'<rect x="{left}" y="{top:.0f}" width="{_BAR - 3}" height="{height:.0f}" fill="{colour}"/>')
            parts.append(f'<text x="{left}" y="{top - 3:.0f}" font-size="8">{value:.3g}</text>')
            left += _BAR
        middle = left - len(values) * _BAR / 2
        parts.append(f'<text x="{middle}" y="{bottom + 14}" text-anchor="middle">{escape(name)}</text>')
        left += _GAP
    size = f'width="{width}" height="{bottom + _BOTTOM}"'
    style = 'font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(parts) + "\n</svg>\n"


def _legend(policies: list[str], width: int) -> tuple[list[str], int]:
    """Return the legend, and its number of lines."""
    parts = []
    left, line = _GAP, 0
    for index, name in enumerate(policies):
        room = 24 + 6 * len(name)
        if left + room > width:
            left, line = _GAP, line + 1
        top = _LEGEND + line * _LINE
        parts.append(f'<rect x="{left}" y="{top}" width="9" height="9" fill="{_COLOURS[index]}"/>')
        parts.append(f'<text x="{left + 12}" y="{top + 8}" font-size="10">{escape(name)}</text>')
        left += room
    return parts, line + 1
