"""How nginx keeps its connections to the picker."""

from __future__ import annotations

import re
from pathlib import Path

PICKERS_IDLE_LIMIT = 60
GOLDEN = Path(__file__).parents[3] / "golden" / "pick" / "nginx.conf"


def test_an_idle_connection_is_closed_by_nginx_before_the_picker_closes_it() -> None:
    block = re.search(r"upstream lb_picker \{.*?\}", GOLDEN.read_text(), re.DOTALL)
    assert block is not None
    timeout = re.search(r"keepalive_timeout ([0-9]+)s;", block[0])
    assert timeout is not None
    assert int(timeout[1]) < PICKERS_IDLE_LIMIT
