"""Paths of the repository, its fixtures, and recorded data of real systems."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
_FOUND = sorted(index.parent for index in ROOT.parent.glob("*/data/INDEX.md"))
DATA = Path(os.environ.get("LBCTL_REAL_DATA") or next(iter(_FOUND), ROOT.parent / "data"))
"""Metrics pages, result tables and traces of real systems, too large for the repository.

LBCTL_REAL_DATA names the directory; without it, the first `data` with an INDEX.md in a directory next to the checkout.
"""
