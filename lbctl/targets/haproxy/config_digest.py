"""What a running HAProxy says of the configuration that it has loaded: a digest of all that needs a reload.

It stands in the `description`, which `show info` repeats. So whoever drives the proxy knows whether weights and servers
are all that differ, whatever was loaded, reloaded or written meanwhile, and by whom.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from lbctl.targets.haproxy import request_limits
from lbctl.targets.target import Bundle, File

_MARK = "lbctl-"
BLANK = f"description {_MARK}"
"""The line, before the digest is known."""
_CHANGEABLE = ("    server ", f"    {request_limits.PREFIX}")
_LENGTH = 16


def marked(text: str, others: Iterable[File]) -> str:
    """The text with its digest in the place that `BLANK` keeps, if it keeps one."""
    line = f"    {BLANK}\n"
    if line not in text:
        return text
    digest = hashlib.sha256()
    for row in text.splitlines():
        if not row.startswith(_CHANGEABLE):
            digest.update(f"{row}\n".encode())
    for file in others:
        digest.update(f"\x00{file.name}\x00{file.text}".encode())
    return text.replace(line, f"    {BLANK}{digest.hexdigest()[:_LENGTH]}\n", 1)


def of(bundle: Bundle) -> str:
    """The description that a proxy with this configuration gives; empty without one."""
    start = f"    {BLANK}"
    return next((row.split()[1] for row in bundle.main.text.splitlines() if row.startswith(start)), "")
