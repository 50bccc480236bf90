"""The file with the secrets that HAProxy sends, which its owner alone may read; haproxy.cfg looks them up in it."""

from __future__ import annotations

from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.targets.haproxy import quote, sections

FILE = "haproxy-upstream-headers.map"
"""Rows of POOL/HEADER and its value."""
PICKER = ":picker"
"""The row with the key of questions to the picker."""
CHECK = ":check"
"""In the place of a header: the bytes of the pool's gRPC check in hexadecimal."""


def looked_up(pool: Pool, header: str, proxy: Proxy) -> str:
    """Return the log-format of the value that the file has for a header of the pool, or for its `CHECK`."""
    name = header if header == CHECK else quote.name(header).text
    return f'%[str("{quote.name(pool.name).text}/{name}"),map_str("{sections.beside(FILE, proxy)}")]'
