"""Words planted at every place of a secret, in every sample, are in no fleet, own line or message."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.importer import imported, samples

pytestmark = pytest.mark.no_cover  # many similar cases, which tracing would slow down

NGINX = """
set $key "{}";
set $upstream_token {};
if ($http_x_api_key = "{}") {{ return 403; }}
if ($arg_token != {}) {{ return 403; }}
secure_link_md5 "$uri {}";
proxy_set_header X-Auth-Token {};
proxy_set_header Authorization "Basic {}";
add_header X-Api-Key {} always;
error_page 500 =200 /x?apikey={};
proxy_cookie_path / "/; secret={}";
more_set_headers "X-Api-Key: {}";
proxy_redirect http://user:{}@10.0.0.1/ /;
fastcgi_param API_TOKEN {};
sub_filter a "?key={}";
"""
NGINX_LOCATIONS = """
location /planted-a {{ proxy_pass http://user:{}@10.0.0.1; }}
location /planted-b {{ proxy_pass http://10.0.0.1/api?key={}; }}
location /planted-c {{ rewrite ^ /x?token={} break; proxy_pass http://10.0.0.1; }}
location /planted-d {{ set $key "{}"; proxy_pass http://10.0.0.1; proxy_set_header X-Api-Key $key; }}
location /planted-e {{ return 302 https://example.com/?access_token={}; }}
location /planted-f {{ proxy_pass http://10.0.0.1; if ($http_x_api_key = "{}") {{ proxy_pass http://10.0.0.2; }} }}
"""
HAPROXY = {
    "frontend": """
stats auth ops:{}
acl planted1 req.hdr(x-api-key) -m str {}
use_backend no-such if {{ hdr(x-api-key) {} }}
http-request deny if {{ url_param(token) -m str {} }}
http-request set-var(txn.token) str({})
http-request set-header X-Api-Key "%[str({})]"
http-response set-header X-Api-Key {}
http-request redirect location /x?token={} if {{ path /y }}
""",
    "backend": """
stats auth ops:{}
http-check send meth GET uri /health hdr Authorization "Bearer {}"
http-check send hdr X-Api-Key {}
http-request set-header Authorization "Bearer {}"
http-request set-header X-Token {} if {{ path /x }}
http-request set-path /x?key={}
option httpchk GET /health?token={}
server planted 10.9.9.9:80 agent-check agent-port 9 agent-send "{}"
""",
    "listen": """
stats auth ops:{}
acl planted1 req.hdr(x-api-key) -m str {}
http-check send hdr X-Api-Key {}
http-request set-header X-Token {} if {{ path /x }}
http-request set-path /x?key={}
option httpchk GET /health?token={}
""",
    "global": """
setenv API_TOKEN {}
presetenv BACKEND_KEY {}
""",
}
HAPROXY_ALONE = """
userlist planted
 user bob insecure-password {}
 user al password {}
program planted
 command /usr/bin/x --token {} --url http://a:{}@10.0.0.1/
listen planted-stats
 mode http
 bind 127.0.0.1:8409
 stats enable
 stats auth admin:{}
"""
ENVOY_ROUTE = """
request_headers_to_add:
- {{header: {{key: authorization, value: "Bearer {}"}}}}
- {{header: {{key: x-api-key, value: "{}"}}}}
response_headers_to_add:
- {{header: {{key: x-auth-token, value: "{}"}}}}
"""
ENVOY_MATCH = """
headers:
- {{name: x-api-key, string_match: {{exact: "{}"}}}}
query_parameters:
- {{name: token, string_match: {{exact: "{}"}}}}
"""
ENVOY_CLUSTER = """
health_checks:
- timeout: 1s
  interval: 5s
  unhealthy_threshold: 3
  healthy_threshold: 1
  http_health_check:
    path: /health?token={}
    request_headers_to_add:
    - {{header: {{key: authorization, value: "Bearer {}"}}}}
transport_socket:
  name: tls
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
    common_tls_context:
      tls_certificates:
      - certificate_chain: {{filename: /etc/a.pem}}
        private_key: {{inline_string: "{}"}}
        password: {{inline_string: "{}"}}
"""
ENVOY_SECRETS = """
- {{name: planted, generic_secret: {{secret: {{inline_string: "{}"}}}}}}
- {{name: keys, session_ticket_keys: {{keys: [{{inline_string: "{}"}}]}}}}
"""
ENVOY_FILTERS = """
- name: k
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.api_key_auth.v3.ApiKeyAuth
    credentials: [{{key: "{}", client: me}}]
    key_sources: [{{header: x-api-key}}]
- name: b
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.basic_auth.v3.BasicAuth
    users: {{inline_string: "a:{{SHA}}{}"}}
"""


class Planter:
    """Fills places of secrets with unique words."""

    def __init__(self) -> None:
        self._numbers = count()

    def __call__(self, template: str) -> str:
        """Return the template with a word at each of its places."""
        return re.sub(r"\{\}", lambda _: f"planted{next(self._numbers):05}word", template).format()


def nginx(file: Path, plant: Planter) -> str:
    text = re.sub(r"location [^{]*\{", lambda match: f"{match[0]}\n{plant(NGINX)}", file.read_text())
    return re.sub(r"(?m)^\s*server\s*\{", lambda match: f"{match[0]}\n{plant(NGINX_LOCATIONS)}", text)


def haproxy(file: Path, plant: Planter) -> str:
    section = re.compile(rf"(?m)^({'|'.join(HAPROXY)}).*$")
    text = section.sub(lambda match: match[0] + plant(HAPROXY[match[1]]), file.read_text())
    return text + plant(HAPROXY_ALONE)


def envoy(file: Path, plant: Planter) -> str:
    tree = yaml.load(file.read_text(), yaml.CSafeLoader)
    tree["static_resources"]["secrets"] = yaml.safe_load(plant(ENVOY_SECRETS))
    for cluster in tree["static_resources"]["clusters"]:
        cluster.update(yaml.safe_load(plant(ENVOY_CLUSTER)))
    for item in list(_maps(tree)):
        if "match" in item and "route" in item:
            item.update(yaml.safe_load(plant(ENVOY_ROUTE)))
            secret = copy.deepcopy(item)
            secret["match"].update(yaml.safe_load(plant(ENVOY_MATCH)))
            item["planted"] = secret
        if "http_filters" in item:
            item["http_filters"][:0] = yaml.safe_load(plant(ENVOY_FILTERS))
    for item in list(_maps(tree)):
        if "routes" in item:
            item["routes"][:0] = [each.pop("planted") for each in item["routes"] if "planted" in each]
    return yaml.safe_dump(tree, sort_keys=False)


def _maps(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _maps(child)


PLANT: dict[str, Callable[[Path, Planter], str]] = {"nginx": nginx, "haproxy": haproxy, "envoy": envoy}
CASES = [
    pytest.param(kind, file, id=f"{kind}-{file.stem}") for kind in PLANT for file in samples(kind)
    if file.name not in {"ray-config-dump.json", "includes.conf"}
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "file"), CASES)
def test_planted_secrets_are_reported_and_not_written(kind: str, file: Path, tmp_path: Path) -> None:
    source = tmp_path / "source.conf"
    source.write_text(PLANT[kind](file, Planter()))
    result, diagnostics = imported(kind, source)
    shown = "\n".join([result.text, *result.own.values(), *map(str, diagnostics)])
    assert sorted(set(re.findall(r"(?i).*planted\d+word.*", shown))) == []
    assert len(planted_lines(source)) >= 10
    reported = {item.position.line for item in diagnostics if item.code == "LB984" and item.position}
    near = 6 if kind == "envoy" else 1  # in Envoy, a header or a filter is reported at its first line
    assert [
        line for number, line in planted_lines(source) if not reported & {*range(number - near + 1, number + 1)}
    ] == []


def planted_lines(source: Path) -> list[tuple[int, str]]:
    """Return the numbers and texts of the lines with planted words."""
    return [item for item in enumerate(source.read_text().splitlines(), 1) if re.search(r"planted\d+word", item[1])]
