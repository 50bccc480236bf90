"""The connections of nginx to the picker."""

from __future__ import annotations

import re

from tests.golden.cases import configurations

PICKER_IDLE_TIMEOUT = 60


def test_nginx_closes_idle_connections_before_the_picker() -> None:
    block = re.search(r"upstream lb_picker \{.*?\}", configurations("nginx")["pick"], re.DOTALL)
    assert block is not None
    timeout = re.search(r"keepalive_timeout ([0-9]+)s;", block[0])
    assert timeout is not None
    assert int(timeout[1]) < PICKER_IDLE_TIMEOUT
