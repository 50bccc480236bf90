"""Where the tests find the repository, its fixtures, and recorded data of real systems."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
DATA = Path(os.environ.get("LBCTL_REAL_DATA") or ROOT.parent / "shared" / "data")
"""Metrics pages, result tables and traces of real systems, too large for the repository. LBCTL_REAL_DATA names it."""
