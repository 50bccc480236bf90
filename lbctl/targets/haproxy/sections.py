"""The names of sections. In a fragment they begin with `lbctl_`: all sections of a HAProxy share one namespace."""

from __future__ import annotations

from pathlib import PurePosixPath

from lbctl.ir.proxies import Proxy
from lbctl.targets.haproxy import quote

OWN = "lbctl_"
"""What the names of a fragment's sections begin with."""
_POOL = "pool_"


def own(name: str, proxy: Proxy) -> str:
    """Return the name of a section in this proxy's configuration."""
    return f"{OWN}{name}" if proxy.is_fragment else name


def pool(backend: str, proxy: Proxy) -> str:
    """Return the section of a backend, which is named without its `pool_`."""
    return own(f"{_POOL}{quote.name(backend).text}", proxy)


def bare(section: str) -> str:
    """Return the backend that a section holds, without its `pool_`."""
    return section.removeprefix(OWN).removeprefix(_POOL)


def beside(name: str, proxy: Proxy) -> str:
    """Return the path of a file beside the configuration; a fragment cannot set `default-path`, so it is whole."""
    return str(PurePosixPath(proxy.config or "").parent / name) if proxy.is_fragment else name
