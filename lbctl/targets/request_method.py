"""Which methods every proxy refuses with 405, or with 400 if the proxy's parser refuses them already.

The answer to TRACE repeats the request as it arrives, including credentials that the proxy has added; CONNECT opens a
tunnel. Methods are compared as written, but many servers take `get` for `GET`: such a request would bypass a rule for
`GET`.
"""

from __future__ import annotations

import re

NAMES = ("CONNECT", "TRACE")
UNFIT = "[^A-Z_-]"
"""An expression that matches a method with characters other than capitals, `-` and `_`."""
MESSAGE = "this method is not allowed"


def is_refused(method: str) -> bool:
    """Return whether every proxy refuses `method`."""
    return method in NAMES or re.search(UNFIT, method) is not None
