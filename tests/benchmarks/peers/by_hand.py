"""nginx, HAProxy and Envoy, configured as their documentation recommends for model servers.

All have the weights of the replicas, persistent connections to them, no buffering of responses and, except nginx,
active health checks. By default, Envoy waits a minute before the second check of a pool without traffic.

`hashed` is for sessions: consistent hashing of `x-session-id` with bounded load. nginx has no
bound, and is left out. `limit` is the number of requests per minute that each value of `x-session-id` can send.
"""

from __future__ import annotations

from collections.abc import Sequence

from lbctl.demo.replica import HOST
from tests.benchmarks.peers import checks
from tests.benchmarks.peers.replicas import Member
from tests.benchmarks.peers.workloads import TENANT_BURST

_ANOTHER = "type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate"
"""Send a retry to a host that has not been tried yet."""


def nginx(port: int, members: Sequence[Member], limit: int | None = None) -> str:
    """https://nginx.org/en/docs/http/load_balancing.html and
    https://nginx.org/en/docs/http/ngx_http_limit_req_module.html"""
    zone = f"limit_req_zone $http_x_session_id zone=tenants:10m rate={limit}r/m; limit_req_status 429;" if limit else ""
    limited = f"limit_req zone=tenants burst={TENANT_BURST} nodelay;" if limit else ""
    servers = "".join(f"server {each.address} weight={each.weight}; " for each in members)
    temporary = "".join(f"{name}_temp_path t-{name}; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    return f"""worker_processes auto; error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
  {temporary}
  access_log off; {zone}
  upstream pool {{ zone pool 128k; least_conn; {servers} keepalive 64; }}
  server {{
    listen {HOST}:{port};
    client_max_body_size 0; client_body_buffer_size 256k;
    location / {{
      {limited}
      proxy_http_version 1.1; proxy_buffering off; proxy_read_timeout 5m;
      proxy_set_header connection ""; proxy_set_header host $host;
      proxy_pass http://pool;
    }}
  }}
}}
"""


def haproxy(port: int, members: Sequence[Member], hashed: bool = False) -> str:
    """https://docs.haproxy.org/2.6/configuration.html, `balance` and `hash-balance-factor`"""
    servers = "".join(f"  server {each.name} {each.address} weight {each.weight * 8} check\n" for each in members)
    by_session = "  balance hdr(x-session-id)\n  hash-type consistent\n  hash-balance-factor 125\n"
    balance = by_session if hashed else "  balance leastconn\n"
    return f"""defaults
  mode http
  option http-no-delay
  option redispatch
  retries 3
  timeout connect 2s
  timeout client 5m
  timeout server 5m
  timeout check {checks.TIMEOUT}s
  default-server inter {checks.INTERVAL}s fall {checks.FAILURES} rise {checks.SUCCESSES}
frontend main
  bind {HOST}:{port}
  default_backend pool
backend pool
{balance}  option httpchk GET /health
  http-reuse safe
{servers}"""


def envoy(port: int, members: Sequence[Member], hashed: bool = False) -> str:
    """https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/load_balancing/load_balancers"""
    endpoints = "".join(
        f"\n        - endpoint: {{address: {{socket_address: {{address: {HOST}, port_value: {each.port}}}}}}}"
        f"\n          load_balancing_weight: {each.weight}"
        for each in members
    )
    policy = (
        "RING_HASH\n    ring_hash_lb_config: {minimum_ring_size: 1024}"
        "\n    common_lb_config: {consistent_hashing_lb_config: {hash_balance_factor: 125}}"
        if hashed
        else "LEAST_REQUEST"
    )
    keys = " " * 18 + "hash_policy: [{header: {header_name: x-session-id}}]" if hashed else ""
    return f"""static_resources:
  listeners:
  - address: {{socket_address: {{address: {HOST}, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: main
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {{prefix: /}}
                route:
                  cluster: pool
                  timeout: 0s
                  retry_policy:
                    retry_on: connect-failure,refused-stream
                    num_retries: 3
                    host_selection_retry_max_attempts: 3
                    retry_host_predicate:
                    - name: previous
                      typed_config:
                        "@type": {_ANOTHER}
{keys}
          http_filters:
          - name: router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: pool
    connect_timeout: 2s
    lb_policy: {policy}
    outlier_detection: {{max_ejection_percent: 50}}
    circuit_breakers: {{thresholds: [{{max_retries: 1024}}]}}
    health_checks:
    - timeout: {checks.TIMEOUT}s
      interval: {checks.INTERVAL}s
      no_traffic_interval: {checks.INTERVAL}s
      unhealthy_threshold: {checks.FAILURES}
      healthy_threshold: {checks.SUCCESSES}
      http_health_check: {{path: /health}}
    load_assignment:
      cluster_name: pool
      endpoints:
      - lb_endpoints:{endpoints}
"""
