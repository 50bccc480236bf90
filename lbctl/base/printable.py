"""Makes text from other programs safe to print on a terminal, or to send to HAProxy."""

from __future__ import annotations

import re

_MAX_REASON = 80
_NOT_IN_REASON = re.compile(r"[^ -~]|[,;#]")


def plain(cell: str) -> str:
    """Escape control characters, because the text may come from a proxy."""
    return cell if cell.isprintable() else ascii(cell)[1:-1]


def agent_check_reason(text: str) -> str:
    """Format the text as a reason in an HAProxy agent check: up to 80 characters of printable ASCII without `,;#`."""
    return _NOT_IN_REASON.sub(" ", text)[:_MAX_REASON]
