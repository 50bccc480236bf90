"""Whether an nginx is the one that was installed for the whole machine, or one that a user runs somewhere."""

from __future__ import annotations

from lbctl.ir.proxies import Proxy

_SYSTEM_DIRECTORIES = ("/etc/", "/usr/", "/opt/")
"""Where an nginx that was installed for the whole machine has its configuration."""


def is_system_wide(proxy: Proxy) -> bool:
    """Return whether root runs it with the directories that its package made, as far as its `config` shows."""
    return (proxy.config or "").startswith(_SYSTEM_DIRECTORIES)
