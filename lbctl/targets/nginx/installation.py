"""Distinguishes the nginx that is installed for the whole machine from a user's nginx, and finds its logs."""

from __future__ import annotations

from lbctl.ir.listeners import Listener
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.targets.target import in_system_directory

STREAMS = ("/dev/stdout", "/dev/stderr")
"""Paths that are sockets in services of systemd; Linux cannot open a socket by a path."""
SYSTEM_LOG = "/var/log/nginx/access.log"
"""Where packages and images of nginx have its log: packages rotate it, images link it to their standard output."""
_FRAGMENT_LOG = "/var/log/nginx/lbctl-access.log"
"""The log of a fragment: the other one is the host's, whose lines have another format."""


def is_system_wide(proxy: Proxy) -> bool:
    """Return whether root runs it with the directories that its package made, as far as its `config` shows."""
    return in_system_directory(proxy.config or "")


def log_file(proxy: Proxy, listener: Listener) -> str | None:
    """Return where the access log of a listener is written; None if nowhere."""
    if listener.access_log.format == "none":
        return None
    default = (_FRAGMENT_LOG if proxy.is_fragment else SYSTEM_LOG) if is_system_wide(proxy) else "/dev/stdout"
    return listener.access_log.path or default


def log_files(view: View) -> tuple[str, ...]:
    """Return where the access logs are written, each place once."""
    return tuple(sorted({path for item in view.listeners if (path := log_file(view.proxy, item)) is not None}))
