"""What a careful operator writes for the cases of `data_path`, for each of the three proxies.

Least connections, kept connections, no buffering, and a JSON access log of the fields that lbctl promises, as far as
the proxy has them by its own means; null for what the case has not (a tenant without keys, a variant without a canary).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.support.processes.binaries import Kind
from tests.support.processes.ports import HOST
from tests.support.processes.replicas import Replica

COOKIE = "lb_variant"
TENANTS = {f"sk-{number}": f"tenant-{number}" for number in range(10)}
CERTIFICATE, KEY, BUNDLE = "server.crt", "server.key", "server.pem"
"""The files of a listener with TLS, beside the configuration; HAProxy reads the bundle."""
MAP = "tenants.map"
"""The file with the tenants by their keys, for HAProxy."""
PER_SECOND = 100_000
"""The limit of a tenant, which the benchmark never reaches."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the configuration does; `pools` has one entry, or two for a canary that gets 5%."""

    port: int
    pools: Mapping[str, Sequence[Replica]]
    tls: bool = False
    keys: bool = False

    @property
    def canary(self) -> bool:
        """Whether clients are divided, and keep their variant by a cookie."""
        return len(self.pools) > 1


def _nginx(wanted: Wanted) -> str:
    upstreams = "".join(
        f"  upstream {name} {{ zone {name} 128k; least_conn; "
        + "".join(f"server {each.address}; " for each in members)
        + "keepalive 64; keepalive_timeout 4s; }\n"
        for name, members in wanted.pools.items()
    )
    temporary = "".join(f"{name}_temp_path t-{name}; " for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    pool = "$variant" if wanted.canary else "pool"
    tenant = '"$tenant"' if wanted.keys else "null"
    variant = '"$variant"' if wanted.canary else "null"
    log = (
        f'{{"ts":"$time_iso8601","request_id":"$request_id","client":"$remote_addr","tenant":{tenant},'
        f'"listener":"gateway","method":"$request_method","path":"$uri","route":"everything","pool":"{pool}",'
        f'"variant":{variant},"replica":"$upstream_addr","model":null,'
        '"status":$status,"bytes_in":$request_length,"bytes_out":$body_bytes_sent,"t_queue":null,'
        '"t_connect":"$upstream_connect_time","t_first_byte":"$upstream_header_time","t_total":$request_time,'
        '"retries":null,"flags":"$upstream_status"}'
    )
    maps, checks, headers = "", "", ""
    if wanted.keys:
        known = " ".join(f'"Bearer {key}" {name};' for key, name in TENANTS.items())
        maps += f'  map $http_authorization $tenant {{ default ""; {known} }}\n'
        maps += f"  limit_req_zone $tenant zone=limit:1m rate={PER_SECOND}r/s;\n  limit_req_status 429;\n"
        checks += f"if ($tenant = '') {{ return 401; }} limit_req zone=limit burst={PER_SECOND - 1} nodelay;"
        headers += "proxy_set_header authorization ''; proxy_set_header x-tenant $tenant;"
    if wanted.canary:
        old, new = wanted.pools
        maps += f"  split_clients $request_id $drawn {{ 5% {new}; * {old}; }}\n"
        maps += f"  map $cookie_{COOKIE} $variant {{ default $drawn; {old} {old}; {new} {new}; }}\n"
        given = f"{COOKIE}=$drawn; Path=/; Max-Age=3600; HttpOnly; SameSite=Lax"
        maps += f'  map $cookie_{COOKIE} $given {{ default "{given}"; {old} ""; {new} ""; }}\n'
        checks += "add_header set-cookie $given always;"
    listen = f"{HOST}:{wanted.port}"
    if wanted.tls:
        listen += f" ssl; ssl_certificate {CERTIFICATE}; ssl_certificate_key {KEY}; ssl_protocols TLSv1.2 TLSv1.3"
    return f"""worker_processes auto; error_log stderr warn;
events {{ worker_connections 8192; }}
http {{
  {temporary}
  log_format json escape=json '{log}';
{maps}{upstreams}  server {{
    listen {listen};
    access_log /dev/stdout json;
    client_max_body_size 0; client_body_buffer_size 256k; keepalive_requests 100000;
    location / {{
      {checks}
      proxy_http_version 1.1; proxy_buffering off; proxy_read_timeout 5m; {headers}
      proxy_set_header connection ""; proxy_set_header host $host; proxy_set_header x-request-id $request_id;
      proxy_set_header x-forwarded-for $remote_addr; proxy_set_header x-forwarded-proto $scheme;
      proxy_pass http://{pool};
    }}
  }}
}}
"""


def _haproxy(wanted: Wanted) -> str:
    backends = "".join(
        f"backend {name}\n  balance leastconn\n  http-reuse safe\n"
        + "".join(f"  server {each.name} {each.address} check inter 10s\n" for each in members)
        for name, members in wanted.pools.items()
    )
    tenant = '"%[var(txn.tenant)]"' if wanted.keys else "null"
    variant = '"%b"' if wanted.canary else "null"
    log = (
        f'{{"ts":"%tr","request_id":"%ID","client":"%ci","tenant":{tenant},"listener":"%f","method":"%HM",'
        '"path":"%[capture.req.uri,json(utf8s)]","route":"everything","pool":"%b",'
        f'"variant":{variant},"replica":"%s","model":null,"status":%ST,"bytes_in":%U,'
        '"bytes_out":%B,"t_queue":%Tw,"t_connect":%Tc,"t_first_byte":%Tr,"t_total":%Ta,"retries":"%rc","flags":"%tsc"}'
    )
    first = next(iter(wanted.pools))
    lines = [f"default_backend {first}"]
    tables = ""
    if wanted.keys:
        lines = [
            f'http-request set-var(txn.tenant) req.hdr(authorization),regsub("^Bearer ",""),map_str({MAP})',
            "http-request deny deny_status 401 unless { var(txn.tenant) -m found }",
            "http-request track-sc0 var(txn.tenant) table limit",
            f"http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {PER_SECOND} }}",
            "http-request set-header x-tenant %[var(txn.tenant)]",
            "http-request del-header authorization",
            *lines,
        ]
        tables = "backend limit\n  stick-table type string len 64 size 100k expire 10s store http_req_rate(1s)\n"
    if wanted.canary:
        old, new = wanted.pools
        cookie = f"{COOKIE}=%[var(txn.given)]; Path=/; Max-Age=3600; HttpOnly; SameSite=Lax"
        lines = [
            f"http-request set-var(txn.variant) req.cook({COOKIE}) if {{ req.cook({COOKIE}) -m str {old} {new} }}",
            f"http-request set-var(txn.given) str({old}) unless {{ var(txn.variant) -m found }}",
            f"http-request set-var(txn.given) str({new}) if {{ var(txn.given) -m found }} {{ rand(100) lt 5 }}",
            "http-request set-var(txn.variant) var(txn.given) if { var(txn.given) -m found }",
            f"http-response add-header set-cookie '{cookie}' if {{ var(txn.given) -m found }}",
            f"use_backend {new} if {{ var(txn.variant) -m str {new} }}",
            *lines,
        ]
    rules = "".join(f"  {rule}\n" for rule in lines)
    bind = f"{HOST}:{wanted.port}" + (f" ssl crt {BUNDLE} ssl-min-ver TLSv1.2" if wanted.tls else "")
    return f"""global
  log stdout len 65535 format raw local0 info
defaults
  mode http
  log global
  option http-no-delay
  option http-keep-alive
  timeout connect 2s
  timeout client 5m
  timeout server 5m
  timeout http-request 15s
frontend gateway
  bind {bind}
  unique-id-format %[uuid()]
  unique-id-header x-request-id
  option forwardfor
  log-format '{log}'
{rules}{tables}{backends}"""


_ENVOY_ROUTE = 'timeout: 0s, retry_policy: {retry_on: "connect-failure,refused-stream", num_retries: 2}'
"""No end to long answers, and the retries that nginx and HAProxy have by default."""


def _envoy(wanted: Wanted) -> str:
    clusters = "".join(
        f"""
  - name: {name}
    connect_timeout: 2s
    lb_policy: LEAST_REQUEST
    load_assignment:
      cluster_name: {name}
      endpoints:
      - lb_endpoints:"""
        + "".join(
            f"\n        - endpoint: {{address: {{socket_address: {{address: {each.host}, port_value: {each.port}}}}}, "
            f"hostname: {each.name}}}"
            for each in members
        )
        for name, members in wanted.pools.items()
    )
    fields = {
        "ts": "%START_TIME%", "request_id": "%REQ(X-REQUEST-ID)%",
        "client": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
        "tenant": "%REQ(X-TENANT)%" if wanted.keys else None, "listener": "gateway", "method": "%REQ(:METHOD)%",
        "path": "%PATH(NQ:PATH)%", "route": "%ROUTE_NAME%", "pool": "%UPSTREAM_CLUSTER%",
        "variant": "%UPSTREAM_CLUSTER%" if wanted.canary else None, "replica": "%UPSTREAM_HOST_NAME%", "model": None,
        "status": "%RESPONSE_CODE%", "bytes_in": "%BYTES_RECEIVED%", "bytes_out": "%BYTES_SENT%",
        "t_queue": "%REQUEST_TX_DURATION%", "t_connect": "%COMMON_DURATION(US_CX_BEG:US_CX_END:ms)%",
        "t_first_byte": "%RESPONSE_DURATION%", "t_total": "%DURATION%",
        "retries": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%", "flags": "%RESPONSE_FLAGS%",
    }  # fmt: skip
    log = ", ".join(f"{name}: " + ("null" if value is None else f'"{value}"') for name, value in fields.items())
    action = f"cluster: {next(iter(wanted.pools))}, {_ENVOY_ROUTE}"
    routes = f"[{{name: everything, match: {{prefix: /}}, route: {{{action}}}}}]"
    if wanted.canary:
        routes = _envoy_canary(*wanted.pools)
    secure = ""
    if wanted.tls:
        secure = f"""
      transport_socket:
        name: tls
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          common_tls_context:
            tls_certificates: [{{certificate_chain: {{filename: {CERTIFICATE}}}, private_key: {{filename: {KEY}}}}}]"""
    return f"""static_resources:
  listeners:
  - address: {{socket_address: {{address: {HOST}, port_value: {wanted.port}}}}}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: main
          use_remote_address: true
          access_log:
          - name: stdout
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog
              log_format: {{json_format: {{{log}}}}}
          route_config:
            virtual_hosts:
            - {{name: all, domains: ["*"], routes: {routes}}}
          http_filters:{_envoy_keys() if wanted.keys else ""}
          - name: router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}{secure}
  clusters:{clusters}
"""


def _envoy_canary(old: str, new: str) -> str:
    def kept(name: str) -> str:
        cookie = f'{{name: cookie, string_match: {{safe_regex: {{regex: "(.*; *)?{COOKIE}={name}(;.*)?"}}}}}}'
        match = f"{{prefix: /, headers: [{cookie}]}}"
        return f"{{name: everything, match: {match}, route: {{cluster: {name}, {_ENVOY_ROUTE}}}}}"

    def drawn(name: str, weight: int) -> str:
        cookie = f"{COOKIE}={name}; Path=/; Max-Age=3600; HttpOnly; SameSite=Lax"
        header = f'response_headers_to_add: [{{header: {{key: set-cookie, value: "{cookie}"}}}}]'
        return f"{{name: {name}, weight: {weight}, {header}}}"

    split = f"weighted_clusters: {{clusters: [{drawn(old, 95)}, {drawn(new, 5)}]}}"
    rest = f"{{name: everything, match: {{prefix: /}}, route: {{{split}, {_ENVOY_ROUTE}}}}}"
    return f"[{kept(old)}, {kept(new)}, {rest}]"


def _envoy_keys() -> str:
    credentials = ", ".join(f"{{key: {key}, client: {name}}}" for key, name in TENANTS.items())
    bucket = f"{{max_tokens: {PER_SECOND}, tokens_per_fill: {PER_SECOND}, fill_interval: 1s}}"
    return f"""
          - name: keys
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.api_key_auth.v3.ApiKeyAuth
              credentials: [{credentials}]
              key_sources: [{{header: Authorization}}]
              forwarding: {{header: x-tenant, hide_credentials: true}}
          - name: limit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
              stat_prefix: limit
              token_bucket: {{max_tokens: 4294967295, tokens_per_fill: 4294967295, fill_interval: 1s}}
              filter_enabled: {{default_value: {{numerator: 100}}}}
              filter_enforced: {{default_value: {{numerator: 100}}}}
              descriptors: [{{entries: [{{key: tenant}}], token_bucket: {bucket}}}]
              rate_limits: [{{actions: [{{request_headers: {{header_name: x-tenant, descriptor_key: tenant}}}}]}}]"""


BY_HAND: Mapping[Kind, Callable[[Wanted], str]] = {"nginx": _nginx, "haproxy": _haproxy, "envoy": _envoy}
