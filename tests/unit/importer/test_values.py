"""A word in place of a number does not abort an import."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.importer.run import run

_NGINX = """
split_clients $request_id $pool {{ {share}% a; * b; }}
upstream a {{ server 10.0.0.1:80 weight={number}; }}
upstream b {{ server 10.0.0.2:80; }}
server {{
 listen 80;
 client_max_body_size {number}m;
 location / {{ proxy_pass http://$pool; proxy_read_timeout {number}s; }}
}}
"""
_HAPROXY = """
defaults
 mode http
frontend f
 bind :80
 http-request deny deny_status {number} if {{ path /x }}
 maxconn {number}
 timeout client {number}s
 default_backend b
backend b
 server s 10.0.0.1:{number} weight {number}
"""


@pytest.mark.parametrize("number", ["²", "٣", "9" * 5000, "-", "1e5", "nan", "if*"])
def test_odd_numbers_are_reported_or_left_out(number: str, tmp_path: Path) -> None:
    for kind, text in (("nginx", _NGINX), ("haproxy", _HAPROXY)):
        file = tmp_path / kind
        file.write_text(text.format(number=number, share=number))
        run(kind, [str(file)], diagnostics := Diagnostics())
        assert all(item.position is None or item.position.line for item in diagnostics)
