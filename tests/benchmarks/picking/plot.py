"""A bar chart as SVG, small enough for a repository: a group for each scenario, a bar for each policy."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

_COLOURS = ("#9aa5b1", "#7b8794", "#b0895a", "#4c78a8", "#2f855a", "#c53030")
_BAR, _GAP, _HEIGHT, _TOP, _BOTTOM = 22, 26, 180, 46, 40


def bars(title: str, groups: Mapping[str, Mapping[str, float]]) -> str:
    """Return the chart; each group is scaled to its own largest value, which is written on it."""
    policies = list(dict.fromkeys(name for values in groups.values() for name in values))
    width = sum(len(values) * _BAR + _GAP for values in groups.values()) + _GAP
    parts = [f'<text x="{_GAP}" y="16" font-size="13">{escape(title)}</text>', *_legend(policies)]
    left = _GAP
    for name, values in groups.items():
        largest = max(values.values())
        for policy, value in values.items():
            height = max(1.0, value / largest * (_HEIGHT - 20))
            top = _TOP + _HEIGHT - height
            colour = _COLOURS[policies.index(policy) % len(_COLOURS)]
            parts.append(f'<rect x="{left}" y="{top:.0f}" width="{_BAR - 3}" height="{height:.0f}" fill="{colour}"/>')
            parts.append(f'<text x="{left}" y="{top - 3:.0f}" font-size="8">{value:.3g}</text>')
            left += _BAR
        middle = left - len(values) * _BAR / 2
        parts.append(f'<text x="{middle}" y="{_TOP + _HEIGHT + 14}" text-anchor="middle">{escape(name)}</text>')
        left += _GAP
    size = f'width="{max(width, 560)}" height="{_TOP + _HEIGHT + _BOTTOM}"'
    style = 'font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "\n".join(parts) + "\n</svg>\n"


def _legend(policies: list[str]) -> list[str]:
    found = []
    left = _GAP
    for index, name in enumerate(policies):
        found.append(f'<rect x="{left}" y="24" width="9" height="9" fill="{_COLOURS[index % len(_COLOURS)]}"/>')
        found.append(f'<text x="{left + 12}" y="32" font-size="10">{escape(name)}</text>')
        left += 24 + 6 * len(name)
    return found
