"""Where the tests find the repository, its fixtures, and the recorded data that may lie beside it."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
DATA = ROOT.parent / "shared" / "data"
"""Metrics pages and result tables of real systems, too large for the repository."""
