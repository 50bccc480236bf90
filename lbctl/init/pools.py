"""Groups servers into pools. Servers with the same models and the same API form one pool.

Servers with unknown models are never grouped, because every replica in a pool must be able to serve the pool's
requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lbctl.base.hosts import is_ip
from lbctl.init.gpus import gpu_type
from lbctl.init.identify import AuxiliaryEndpoint, IdentifiedServer
from lbctl.init.kinds import KSERVE_V1, TORCHSERVE, ServerKind

_MAX_NAME = 40
_YAML_LITERALS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


@dataclass(frozen=True, slots=True)
class TelemetrySource:
    """A replica's telemetry source."""

    kind: str
    """Name of the source in the registry."""
    url: str
    """URL, with placeholders."""
    verified: bool = True
    """Whether the metrics could be read. If not, the URL is the server's default address."""


@dataclass(frozen=True, slots=True)
class PoolMember:
    """A replica to be written to the fleet."""

    server: IdentifiedServer
    sources: tuple[TelemetrySource, ...]
    gpu: str = ""
    """GPU type as named in the GPU table, or ""."""
    gpu_count: int = 1
    """Number of GPUs in the host, if no other server runs on it."""


@dataclass(frozen=True, slots=True)
class PoolDraft:
    """A pool to be written to the fleet."""

    name: str
    """Unique name in the draft."""
    members: tuple[PoolMember, ...]
    ready: str
    """Path of the health check, or "" for a TCP check."""
    tls: str | None
    """Host name in the servers' certificates. None for plain HTTP, and "" for an IP address."""

    @property
    def kind(self) -> ServerKind:
        """Kind of the pool's first server."""
        return self.members[0].server.kind

    @property
    def first(self) -> IdentifiedServer:
        """The pool's first server."""
        return self.members[0].server

    @property
    def segments(self) -> tuple[str, ...]:
        """The pool's models if each name can be a path segment, and empty otherwise."""
        models = self.first.models
        return models.names if not models.omitted and all(map(_SEGMENT.fullmatch, models.names)) else ()


def with_management_models(
    servers: Sequence[IdentifiedServer], auxiliaries: Sequence[AuxiliaryEndpoint]
) -> list[IdentifiedServer]:
    """Add the models that TorchServe reports on its management port."""
    return [_with_models(server, servers, auxiliaries) for server in servers]


def _with_models(
    server: IdentifiedServer, servers: Sequence[IdentifiedServer], auxiliaries: Sequence[AuxiliaryEndpoint]
) -> IdentifiedServer:
    host = server.target.host
    models = [item.models for item in auxiliaries if item.role == "management" and item.target.host == host]
    is_only = server.kind is TORCHSERVE and _is_only_of_its_kind(server, servers)
    return replace(server, models=models[0]) if models and is_only else server


def pools_of(servers: Sequence[IdentifiedServer], auxiliaries: Sequence[AuxiliaryEndpoint]) -> list[PoolDraft]:
    """Group the servers in the order of the URLs. Pool names are unique."""
    groups: dict[tuple[object, ...], list[IdentifiedServer]] = {}
    for server in servers:
        groups.setdefault(_identity(server), []).append(server)
    names: set[str] = set()
    return [
        _pool(part, servers, auxiliaries, names) for group in groups.values() for part in _split_by_health_check(group)
    ]


def _identity(server: IdentifiedServer) -> tuple[object, ...]:
    tls = server.target.host if server.target.scheme == "https" and not is_ip(server.target.host) else ""
    content = server.models.raw or server.apps or (server.target,)
    return server.kind.api, server.kind.api == "own" and server.kind, server.target.scheme, tls, content


def _split_by_health_check(group: list[IdentifiedServer]) -> Iterable[list[IdentifiedServer]]:
    """Split a group of servers that have no common readiness path, because a pool has only one health check."""
    if _common_health_path(group) or not group[0].kind.ready:
        return [group]
    return [
        [server for server in group if server.kind is kind] for kind in dict.fromkeys(server.kind for server in group)
    ]


def _common_health_path(group: Sequence[IdentifiedServer]) -> str:
    return next((path for path in group[0].kind.ready if all(path in server.kind.ready for server in group)), "")


def _pool(
    group: Sequence[IdentifiedServer],
    servers: Sequence[IdentifiedServer],
    auxiliaries: Sequence[AuxiliaryEndpoint],
    names: set[str],
) -> PoolDraft:
    first = group[0]
    members = tuple(_member(server, servers, auxiliaries) for server in group)
    ready = _common_health_path(group)
    if first.kind is KSERVE_V1 and _SEGMENT.fullmatch(first.models.single):
        ready = f"/v1/models/{first.models.single}"
    tls = None if first.target.scheme == "http" else "" if is_ip(first.target.host) else first.target.host
    title = first.models.single or next(iter(first.models.names), "") or first.kind.title
    return PoolDraft(unique_name(slug(title), names), members, ready, tls)


def _member(
    server: IdentifiedServer, servers: Sequence[IdentifiedServer], auxiliaries: Sequence[AuxiliaryEndpoint]
) -> PoolMember:
    """Return the replica. An agent monitors one server, so it is a source only if the host has no other server."""
    local = [item for item in auxiliaries if item.target.host == server.target.host]
    single = sum(other.target.host == server.target.host for other in servers) == 1
    gpus = next((item for item in local if item.role == "gpus" and (single or item.source != "agent")), None)
    sources = [*_own_sources(server, servers, local), *([_page_source(gpus)] if gpus else [])]
    return PoolMember(
        server, tuple(sources), gpu_type(gpus.gpus) if gpus else "", len(gpus.gpus) if gpus and single else 1
    )


def _own_sources(
    server: IdentifiedServer, servers: Sequence[IdentifiedServer], local: Sequence[AuxiliaryEndpoint]
) -> list[TelemetrySource]:
    """Return the server's metrics source, on the server's own port or its kind's default port.

    The default port is used only if no other server of the same kind runs on the host.
    """
    kind = server.kind
    if server.page:
        return [TelemetrySource(kind.source, f"{server.target.scheme}://{{host}}:{{port}}{server.page}")]
    if kind.port is None or not _is_only_of_its_kind(server, servers):
        return []
    page = next((item for item in local if item.role == "page" and item.source == kind.source), None)
    return [
        _page_source(page)
        if page
        else TelemetrySource(kind.source, f"http://{{host}}:{kind.port}{kind.page}", verified=False)
    ]


def _page_source(page: AuxiliaryEndpoint) -> TelemetrySource:
    return TelemetrySource(page.source, f"{page.target.scheme}://{{host}}:{page.target.port}/metrics")


def _is_only_of_its_kind(server: IdentifiedServer, servers: Sequence[IdentifiedServer]) -> bool:
    return (
        sum(other.kind.source == server.kind.source and other.target.host == server.target.host for other in servers)
        == 1
    )


def slug(text: str) -> str:
    """Derive a name from a model's or server's name.

    The result is the last part in lower case. The name is never a number or a YAML literal.
    """
    base = text.rstrip("/").rpartition("/")[2].lower()
    name = re.sub(r"[^a-z0-9.]+", "-", base)[:_MAX_NAME].strip("-.")
    return name if re.match(r"[a-z]", name) and name not in _YAML_LITERALS else f"model-{name}".rstrip("-")


def unique_name(name: str, used_names: set[str]) -> str:
    """Return `name`, with the smallest number appended that makes it unique, and add it to `used_names`."""
    candidate, number = name, 1
    while candidate in used_names:
        number += 1
        candidate = f"{name}-{number}"
    used_names.add(candidate)
    return candidate
