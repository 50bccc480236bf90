"""Controls access to the picker: rejects queries that lack its key, and requests sent by web pages.

Proxies send the key with each query, so that other users of the machine cannot query the picker. Browsers add the
page's `Origin` to most requests. They send the page's host name and port as `Host`, even if a third party's DNS
resolves that name to this machine. Proxies do not send an `Origin` header. A proxy's `Host` header is the name of its
upstream or the host sent by the client, without the picker's port.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Mapping, Sequence

from lbctl.base.hosts import is_served_host, split_host
from lbctl.ir.address import Address
from lbctl.runtime import log

HEADER = "x-lbctl-pick-key"
_LOG_INTERVAL = 60.0
"""Minimum time between two log lines about rejected queries, in seconds."""


class QuestionKey:
    """A picker's key, received from the control plane. Without a key, every query is admitted."""

    def __init__(self) -> None:
        self.value = ""
        """The key; empty if none is set."""
        self.refused = 0
        """Number of rejected queries."""
        self._logged_at = float("-inf")

    def set(self, value: str) -> None:
        """From now on, admit only queries with this key; if it is empty, admit every query."""
        self.value = value

    def admits(self, given: str, proxy: str = "") -> bool:
        """Return whether to admit a query that has the key `given`. `proxy` is the name reported by the proxy."""
        if not self.value or hmac.compare_digest(given.encode("utf-8", "replace"), self.value.encode()):
            return True
        self.refused += 1
        now = time.monotonic()
        if now - self._logged_at >= _LOG_INTERVAL:
            self._logged_at = now
            problem = "with another key" if given else "without a key"
            log.warn(
                f"a request {problem} was rejected: set control.picker.key_file if `serve` does not write the "
                "configuration of the proxy",
                proxy=ascii(proxy[:64])[1:-1] or None,
            )
        return False


def is_of_web_page(headers: Mapping[str, Sequence[str]], bind: Address, *, by_proxy: bool) -> bool:
    """Return whether a web page sent the request that arrived at a listener at `bind`.

    `by_proxy`: whether proxies query the request's path.
    """
    if "origin" in headers:
        return True
    return any(
        (not by_proxy or split_host(host)[1] == str(bind.port)) and not is_served_host(host, bind.host)
        for host in headers.get("host", ())
    )
