"""The page's files. They do not contain any fleet data, so browsers may load them without a token.

Their content security policy allows only scripts and styles from this server, and no inline ones.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

STATIC = Path(__file__).with_name("static")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-cache",
}
"""Headers of every file. Because of `no-cache`, browsers revalidate each time and get a 304 response if the file is
unchanged."""


@dataclass(frozen=True, slots=True)
class Page:
    """One file, ready to send."""

    content: bytes
    compressed: bytes
    """The gzip-compressed content."""
    content_type: str
    """The value of the `content-type` header."""
    etag: str
    """A hash of the content, in quotes."""


@cache
def pages() -> Mapping[str, Page]:
    """Map each name to its file. The files are read only once, so that a process never mixes versions."""
    files = sorted(item for item in STATIC.iterdir() if item.suffix in _TYPES)
    return {item.name: _page(item) for item in files}


def _page(file: Path) -> Page:
    content = file.read_bytes()
    etag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
    return Page(content, gzip.compress(content, mtime=0), _TYPES[file.suffix], etag)
