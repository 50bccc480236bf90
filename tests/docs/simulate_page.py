"""Make the table of engines in docs/reference/simulate.md, between its marks; the rest of the page is written by
hand."""

from __future__ import annotations

import re
import textwrap

from lbctl.simulate.profiles import PROFILES, RULE
from tests.support.paths import ROOT

_MARKED = re.compile(r"(<!-- profiles -->\n).*?(<!-- /profiles -->)", re.DOTALL)
_HEAD = "| model | GPU | speed | spread | source |\n|---|---|---|---|---|\n"


def page() -> str:
    """Return the page with a new table."""
    rows = "".join(
        f"| {item.model} | {item.gpu} | {item.speed:g} | {item.spread} | {item.source} |\n"
        for item in PROFILES.values()
    )
    text = f"{_HEAD}{rows}\n{textwrap.fill(RULE, 130)}\n"
    old = (ROOT / "docs" / "reference" / "simulate.md").read_text(encoding="utf-8")
    return _MARKED.sub(lambda match: f"{match[1]}\n{text}\n{match[2]}", old)
