"""The proxies that will run the result, and the control plane that moves them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lbctl.ir.address import Address


@dataclass(frozen=True, slots=True)
class Reload:
    command: tuple[str, ...]
    min_interval: int = 30_000


@dataclass(frozen=True, slots=True)
class Proxy:
    name: str
    kind: str
    version: tuple[int, ...]
    """As (1, 25, 1)."""
    listeners: tuple[str, ...] = ()
    instances: int = 1
    region: str | None = None
    zone: str | None = None
    config: str | None = None
    reload: Reload | None = None
    runtime_api: str | None = None
    agent_check: Address | None = None
    nodes: tuple[str, ...] = ()
    node_san: str | None = None
    admin: Address | None = None


@dataclass(frozen=True, slots=True)
class ServerTls:
    certificate: str
    key: str
    client_ca: str | None = None


@dataclass(frozen=True, slots=True)
class Control:
    xds_bind: Address = Address("127.0.0.1", 18000)
    xds_tls: ServerTls | None = None
    unmatched_nodes: Literal["nothing", "all"] = "nothing"
    api_bind: Address = Address("127.0.0.1", 18080)
    api_token_file: str | None = None
    api_tls: ServerTls | None = None
    logs_bind: Address = Address("127.0.0.1", 18514)
    state: str = "/var/lib/lbctl"
    max_shrink: float = 50.0
