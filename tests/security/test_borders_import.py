"""An import copies no header value that looks random, whatever the name of the header."""

from __future__ import annotations

from pathlib import Path

import pytest

from lbctl.importer.secrets import is_random
from tests.support.importer import imported_text

_SECRETS = [
    "Zq7f3a9c2b5d1e8f60",
    "9f8a7b6c5d4e3f2a1b0c",
    "3f2504e0-4f89-41d3-9a0c-0305e82c3301",
    "v1.AbC9dEf8GhI7jKl6MnO5",
]
_WORDS = [
    "meta-llama/Llama-3.1-70B-Instruct",
    "qwen2-5-72b-instruct-gptq-int4",
    "internationalization",
    "1234567890123456",
    "20261129T021633Z",
    "gateway-eu-west-1.example.com",
    "max-age=31536000; includeSubDomains",
    "{client_ip} {request_id}",
]


@pytest.mark.parametrize("value", _SECRETS)
def test_random_value_is_recognized(value: str) -> None:
    assert is_random(value)
    assert is_random(f"prefix {value} suffix")


@pytest.mark.parametrize("value", _WORDS)
def test_words_are_not_taken_for_secrets(value: str) -> None:
    assert not is_random(value)


_NGINX = """
http {{
  upstream pool {{ server 10.0.0.1:80; }}
  server {{
    listen 80;
    location / {{ proxy_pass http://pool; proxy_set_header X-Origin-Check {0}; add_header X-Team {0}; }}
  }}
}}
"""
_HAPROXY = """
frontend f
    bind :80
    mode http
    http-request set-header x-origin-check {0}
    use_backend other if {{ req.hdr(x-origin-check) -m str {0} }}
    default_backend pool
backend pool
    server a 10.0.0.1:80
backend other
    server b 10.0.0.2:80
"""
_ENVOY = """
static_resources:
  listeners:
  - name: l
    address: {{socket_address: {{address: 0.0.0.0, port_value: 80}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: l
          route_config:
            virtual_hosts:
            - name: v
              domains: ["*"]
              request_headers_to_add: [{{header: {{key: x-origin-check, value: "{0}"}}}}]
              routes:
              - match:
                  prefix: /a
                  headers: [{{name: x-origin-check, string_match: {{exact: "{0}"}}}}]
                route: {{cluster: pool}}
              - {{match: {{prefix: /}}, route: {{cluster: pool}}}}
  clusters:
  - name: pool
    load_assignment:
      cluster_name: pool
      endpoints:
      - lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 10.0.0.1, port_value: 80}}}}}}}}]
"""


@pytest.mark.parametrize(("kind", "text"), [("nginx", _NGINX), ("haproxy", _HAPROXY), ("envoy", _ENVOY)])
@pytest.mark.parametrize("secret", _SECRETS)
def test_import_leaves_random_values_out(kind: str, text: str, secret: str, tmp_path: Path) -> None:
    result, diagnostics = imported_text(kind, text.format(secret), tmp_path)
    assert secret not in str((result.draft.fleet, result.draft.own_files()))
    assert "was not copied" in " ".join(map(str, diagnostics))
