"""Controls access to the picker: rejects queries without its key, and requests from web pages.

Proxies send the key with each query, so that another user of the machine cannot query the picker. A browser adds the
`Origin` of a page to most requests. It sends the name and the port of the page as `Host`, even if foreign DNS resolves
that name to this machine. Proxies do not send `Origin`. The `Host` header of a proxy is the name of its upstream or the
host that the client sent, without the port of the picker.
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
    """The key of one picker, from the control plane. Without a key, every query is admitted."""

    def __init__(self) -> None:
        self.value = ""
        """The key; empty if there is none."""
        self.refused = 0
        """Number of rejected queries."""
        self._logged_at = float("-inf")

    def set(self, value: str) -> None:
        """From now on, admit only queries with this key; empty: every query."""
        self.value = value

    def admits(self, given: str, proxy: str = "") -> bool:
        """Return whether a query with the key `given` is admitted. `proxy` is the name that the proxy reports."""
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
    """Return whether a web page sent a request to a listener at `bind`.

    `by_proxy`: whether proxies query the request's path.
    """
    if "origin" in headers:
        return True
    return any(
        (not by_proxy or split_host(host)[1] == str(bind.port)) and not is_served_host(host, bind.host)
        for host in headers.get("host", ())
    )
