"""What other proxies' configurations call a key or a value of the fleet, for the hint of an error."""

from __future__ import annotations

KEYS = {
    "backup": "priority: 1 (used when no replica of priority 0 is left)",
    "max_fails": "health.passive.consecutive_connect_failures of the pool",
    "fail_timeout": "health.passive.ejection_time of the pool",
    "server": "address",
    "servers": "replicas",
    "upstream": "pool",
    "upstreams": "pools",
    "backend": "pool",
    "backends": "pools",
    "retries": "retry: {attempts: …}",
    "port": "address: HOST:PORT",
    "host": "address: HOST:PORT",
    "gpus": "gpu_count",
    "canary": "split: {POOL: 95, OTHER: 5}, and `rollout` for steps",
}
"""An unknown key → what to write instead, which begins with a key."""
KEYS_IN = {
    ("http", "headers"): "for a key of the servers, write credentials of the pool: checks send it too",
}
"""The section and an unknown key in it → the hint."""
VALUES = {
    "least_conn": "least_request",
    "leastconn": "least_request",
    "least_connections": "least_request",
    "roundrobin": "round_robin",
    "rr": "round_robin",
    "weighted_round_robin": "round_robin",
    "p2c": "least_request",
    "ip_hash": "hash",
    "ring_hash": "hash",
    "consistent_hash": "hash",
    "maglev": "hash",
}
"""An unknown choice → the choice that means the same."""
