"""Programs of the distribution that tests run together with proxies.

In CI a missing one is a failure, elsewhere a skip.
"""

from __future__ import annotations

import os
import shutil

import pytest

_PACKAGES = {
    "groff": "groff-base",
    "prometheus": "prometheus",
    "promtool": "prometheus",
    "setpriv": "util-linux",
    "systemd-analyze": "systemd",
    "systemd-sysusers": "systemd",
}
"""Program → its Debian package."""


def require_tool(program: str) -> str:
    """Return the path of the program."""
    path = shutil.which(program)
    if path is not None:
        return path
    message = f"no {program} here: apt-get install {_PACKAGES[program]}"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
