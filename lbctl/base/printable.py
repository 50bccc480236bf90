"""Makes text from other programs safe for a terminal."""

from __future__ import annotations


def plain(cell: str) -> str:
    """Escape control characters, because the text may come from a proxy."""
    return cell if cell.isprintable() else ascii(cell)[1:-1]
