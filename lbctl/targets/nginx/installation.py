"""Determines whether nginx is the installed package or a user's own installation, and where its logs are."""

from __future__ import annotations

from lbctl.ir.listeners import Listener
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.targets.target import in_system_directory

STREAMS = ("/dev/stdout", "/dev/stderr")
"""Paths that are sockets in systemd services. On Linux, a socket cannot be opened by path."""
SYSTEM_LOG = "/var/log/nginx/access.log"
"""Log path of nginx's packages and images: packages rotate it, and images link it to standard output."""
_FRAGMENT_LOG = "/var/log/nginx/lbctl-access.log"
"""Log of a fragment. The default path is the host's log, whose lines have another format."""


def is_system_wide(proxy: Proxy) -> bool:
    """Return whether root runs nginx with its package's directories, according to the proxy's `config`."""
    return in_system_directory(proxy.config or "")


def log_file(proxy: Proxy, listener: Listener) -> str | None:
    """Return the path of a listener's access log, or None if it is disabled."""
    if listener.access_log.format == "none":
        return None
    default = (_FRAGMENT_LOG if proxy.is_fragment else SYSTEM_LOG) if is_system_wide(proxy) else "/dev/stdout"
    return listener.access_log.path or default


def log_files(view: View) -> tuple[str, ...]:
    """Return the distinct paths of the access logs."""
    return tuple(sorted({path for item in view.listeners if (path := log_file(view.proxy, item)) is not None}))
