"""The names of sections and files.

Section names in a fragment begin with `lbctl_`, because all sections of a HAProxy share one namespace. Secrets that
HAProxy sends are in a file that only its owner may read; haproxy.cfg looks them up there.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.targets.haproxy import quote

OWN = "lbctl_"
"""Prefix of the section names in a fragment."""
_POOL = "pool_"
SECRETS = "haproxy-upstream-headers.map"
"""File whose rows contain POOL/HEADER and the header's value."""
PICKER_ROW = ":picker"
"""Row that contains the key for requests to the picker."""
CHECK_ROW = ":check"
"""Replaces the header's name in the row that contains a pool's gRPC check in hexadecimal."""


def own(name: str, proxy: Proxy) -> str:
    """Return a section's name in this proxy's configuration."""
    return f"{OWN}{name}" if proxy.is_fragment else name


def pool(backend: str, proxy: Proxy) -> str:
    """Return the section of a backend that is named without its `pool_` prefix."""
    return own(f"{_POOL}{quote.name(backend).text}", proxy)


def bare(section: str) -> str:
    """Return the backend of a section, without its `pool_` prefix."""
    return section.removeprefix(OWN).removeprefix(_POOL)


def beside(name: str, proxy: Proxy) -> str:
    """Return the path of a file next to the configuration.

    In a fragment it is the full path, without `default-path`.
    """
    return str(PurePosixPath(proxy.config or "").parent / name) if proxy.is_fragment else name


def looked_up(pool: Pool, header: str, proxy: Proxy) -> str:
    """Return the log-format that reads the file's value for a header of the pool, or for its `CHECK_ROW`."""
    name = header if header == CHECK_ROW else quote.name(header).text
    return f'%[str("{quote.name(pool.name).text}/{name}"),map_str("{beside(SECRETS, proxy)}")]'
