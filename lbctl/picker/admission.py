"""Decides which questions the picker answers: none of web pages, and those with its key.

The proxies send the key with each question, so that another user of the machine cannot ask the picker.
A browser adds the `Origin` of a page to most requests, and sends the name and the port of the page as `Host`, also when
somebody else's DNS makes that name point to this machine. Proxies send no `Origin`. Their `Host` is the name of their
upstream or the one of their client, without the port of the picker.
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
"""The shortest time between two log lines about refused questions, in seconds."""


class QuestionKey:
    """The key of one picker, which the control plane sends it. Without one every question is admitted."""

    def __init__(self) -> None:
        self.value = ""
        """The key; empty: there is none."""
        self.refused = 0
        """The number of questions that were refused."""
        self._logged_at = float("-inf")

    def set(self, value: str) -> None:
        """Admit questions with this key from now on; empty: every question."""
        self.value = value

    def admits(self, given: str, proxy: str = "") -> bool:
        """Return whether a question with the header `given` is answered. `proxy`: the name that it gives itself."""
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
    """Return whether a web page has sent a request to a listener at `bind`.

    `by_proxy`: whether the path is one that proxies ask.
    """
    if "origin" in headers:
        return True
    return any(
        (not by_proxy or split_host(host)[1] == str(bind.port)) and not is_served_host(host, bind.host)
        for host in headers.get("host", ())
    )
