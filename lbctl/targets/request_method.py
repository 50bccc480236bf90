"""Which methods every proxy refuses with 405, or with 400 where it has refused them already while it parses.

TRACE answers with what the request holds when it arrives, credentials of the proxy included; CONNECT asks for a tunnel.
Methods are compared as written, but many a server takes `get` for `GET`: it would pass by a route of `GET`.
"""

from __future__ import annotations

import re

NAMES = ("CONNECT", "TRACE")
UNFIT = "[^A-Z_-]"
"""An expression that is found in a method with other characters than capitals, `-` and `_`."""
MESSAGE = "this method is not allowed"


def is_refused(method: str) -> bool:
    return method in NAMES or re.search(UNFIT, method) is not None
