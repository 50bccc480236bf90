"""Recognises requests of web pages, which may not ask the picker.

A browser adds the `Origin` of a page to most requests, and sends the name and the port of the page as `Host`, also when
somebody else's DNS makes that name point to this machine. Proxies send no `Origin`. Their `Host` is the name of their
upstream or the one of their client, without the port of the picker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lbctl.base.hosts import is_served_host, split_host
from lbctl.ir.address import Address


def is_of_web_page(headers: Mapping[str, Sequence[str]], bind: Address, *, by_proxy: bool) -> bool:
    """Return whether a web page has sent a request to a listener at `bind`.

    `by_proxy`: whether the path is one that proxies ask.
    """
    if "origin" in headers:
        return True
    return any(
        not is_served_host(host, bind.host) and (not by_proxy or split_host(host)[1] == str(bind.port))
        for host in headers.get("host", ())
    )
