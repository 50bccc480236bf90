"""Configurations for Envoy, and the result of its checker."""

from __future__ import annotations

import subprocess
from pathlib import Path

from lbctl.apply.files import write_bundle
from lbctl.ir.proxies import Proxy
from lbctl.ir.secrets import ApiKey, Secrets
from lbctl.ir.snapshot import Snapshot, View, view
from lbctl.targets.envoy import TARGET
from lbctl.targets.target import Bundle
from tests.support.fleet import compiled
from tests.support.processes.binaries import require

FLEET = """
version: 1
listeners:
  public: {bind: "127.0.0.1:8080", max_connections: 100, max_body: 2MiB}
  edge:
    bind: "127.0.0.1:8081"
    client_address: {trusted: [10.0.0.0/8]}
    request_id: x-correlation-id
    tracing: {otlp: "127.0.0.1:4317", sample: 10%, service: gateway}
    access_log: {path: /dev/stderr, format: text}
routes:
  chat:
    match:
      hosts: [a.example.com, "*.example.com"]
      path_prefix: /v1/chat/
      methods: [GET, POST]
      headers: {x-tier: a%b}
    rewrite: {path_prefix: /up/, host: models.internal}
    split: {v1: 95, v2: 5}
    pin: [{header: x-v, equals: v2, pool: v2}, {cookie: beta, equals: "1.0", pool: v2}]
    sticky_split: {cookie: variant}
    mirror: {pool: shadow, percent: 1.5%}
    websocket: true
  model: {match: {path_prefix: /v1/, model: [llama, "llama-*"]}, pool: v1}
  limited: {match: {path: /limited}, pool: v1, rate_limit: [{by: {header: x-key}, rate: 5/s}, {by: all, rate: 9/s}]}
  spare: {match: {path_regex: "/r/[0-9]+"}, pool: v1, fallback: v2, regions: [east]}
  rpc: {match: {path_prefix: /x.Y/}, pool: rpc}
  gone: {match: {path: /gone}, respond: {status: 410, body: "50% \\"off\\"\\n"}}
  any: {match: {path_prefix: /}, pool: ranked}
pools:
  v1:
    model: {name: m, version: one}
    replicas:
      - {name: big, address: "127.0.0.1:9001", weight: 3, region: east}
      - {name: small, address: "127.0.0.1:9002", weight: 1, region: west}
      - {name: old, address: "127.0.0.1:9003", weight: 1, region: east, drain: true}
    health: {active: {http: {path: /health, statuses: [200, 201, 204], body_contains: ready}}}
  v2:
    balance: {algorithm: hash, hash: {key: {cookie: sid}, bounded_load: 1.25}}
    replicas: [{name: one, address: "127.0.0.1:9004", region: east}, {name: two, address: "127.0.0.1:9014"}]
    affinity: {cookie: lb}
  shadow: {replicas: [{name: s, address: "shadow.internal:80"}]}
  rpc: {protocol: grpc, replicas: [{name: g, address: "127.0.0.1:9005"}], health: {active: {grpc: {service: x.Y}}}}
  ranked: {replicas: [{name: a, address: "127.0.0.1:9006"}, {name: b, address: "127.0.0.1:9007", priority: 7}]}
"""
FLEET_WITH_KEY = """
version: 1
listeners:
  public: {bind: "127.0.0.1:8080"}
  internal: {bind: "127.0.0.1:8081"}
routes:
  chat: {listeners: [public], match: {path_prefix: /chat}, pool: p, auth: {api_keys: {file: keys, header: x-key}}}
  open: {listeners: [internal], match: {path_prefix: /}, pool: p}
pools:
  p: {replicas: [{name: a, address: "127.0.0.1:9001"}]}
"""
API_KEY = "sk-0123456789"
_VERSION = (1, 40)


def envoy_view(text: str = FLEET) -> View:
    return view(Snapshot(compiled(text).topology), Proxy("edge-envoy", "envoy", _VERSION))


def envoy_bundle(text: str = FLEET, form: str = "yaml") -> Bundle:
    return TARGET.render(envoy_view(text), form)


def bundle_with_key(form: str = "yaml", config: str | None = None) -> Bundle:
    """Return the files for a fleet with one listener that checks API_KEY, and one without key checks."""
    secrets = Secrets(api_keys={"keys": (ApiKey("acme", key=API_KEY),)})
    proxy = Proxy("e", "envoy", _VERSION, config=config)
    return TARGET.render(view(Snapshot(compiled(FLEET_WITH_KEY).topology, secrets=secrets), proxy), form)


def check_bundle(bundle: Bundle, directory: Path, level: str = "error") -> tuple[int, str]:
    """Write the files, and return the exit code and the output of `envoy --mode validate` with this log level."""
    write_bundle(bundle, str(directory))
    command = TARGET.check_command(str(require("envoy")), str(directory), str(directory / bundle.main.name))
    command[command.index("-l") + 1] = level
    process = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=120, check=False)
    return process.returncode, process.stdout + process.stderr


def validate_file(config: Path, level: str = "error") -> subprocess.CompletedProcess[str]:
    """Return the finished `envoy --mode validate` for this file, with this log level."""
    command = [str(require("envoy")), "--mode", "validate", "-l", level, "-c", str(config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
