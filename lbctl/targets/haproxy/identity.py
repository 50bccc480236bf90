"""The user, the group and the root directory with which HAProxy works after root has started it.

A HAProxy below /etc is the distribution's: root starts it, and its package has a user and an empty directory for it.
One that is elsewhere is started by whoever put it there, and HAProxy does not start at all if it may not change its
user.
"""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import quote
from lbctl.targets.haproxy.quote import line
from lbctl.targets.token import Token

_DISTRIBUTION = "/etc/"
_ACCOUNT = "haproxy"
_CHROOT = "/var/lib/haproxy"


def lines(view: View) -> Iterator[Token]:
    """Yield the lines of the section `global`."""
    proxy, packaged = view.proxy, (view.proxy.config or "").startswith(_DISTRIBUTION)
    chroot = proxy.chroot or (_CHROOT if packaged and not _has_sockets(view) else None)
    settings = {
        "user": proxy.user or (_ACCOUNT if packaged else None),
        "group": proxy.group or (_ACCOUNT if packaged else None),
        "chroot": chroot,
    }
    for directive, value in settings.items():
        if value is not None:
            path = ("proxies", proxy.name, directive)
            yield line(directive, quote.word(value), source=path if getattr(proxy, directive) else ())


def _has_sockets(view: View) -> bool:
    """Return whether a replica is a unix socket, which HAProxy could not reach from its own root directory."""
    return any(replica.address.path for pool in view.pools.values() for replica in pool.replicas)
