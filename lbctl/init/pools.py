"""Servers into pools: those with the same models and the same way of being spoken to stand in one.

Servers whose models are not known are never put together: a pool promises that any of its replicas can answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from lbctl.init.gpus import known
from lbctl.init.kinds import KSERVE_V1, TORCHSERVE, Kind
from lbctl.init.tell import Beside, Server
from lbctl.serve.resolve import is_ip

_LONGEST_NAME = 40
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})
_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


@dataclass(frozen=True, slots=True)
class Source:
    """A source of telemetry. `asked`: its page was seen; else it is where such a server has it by default."""

    kind: str
    url: str
    asked: bool = True


@dataclass(frozen=True, slots=True)
class Member:
    """A replica to be. `gpu`: by the table's name, or ""; `gpu_count`: of the host, where no other server is on it."""

    server: Server
    sources: tuple[Source, ...]
    gpu: str = ""
    gpu_count: int = 1


@dataclass(frozen=True, slots=True)
class Pool:
    """`ready`: the path of its health check, "" for the port alone. `tls`: the name in its certificates, None where it
    is plain HTTP, "" where it is an address."""

    name: str
    members: tuple[Member, ...]
    ready: str
    tls: str | None

    @property
    def kind(self) -> Kind:
        return self.members[0].server.kind

    @property
    def first(self) -> Server:
        return self.members[0].server

    @property
    def segments(self) -> tuple[str, ...]:
        """Its models, where each can be a segment of a path; else none."""
        models = self.first.models
        return models.names if not models.more and all(map(_SEGMENT.fullmatch, models.names)) else ()


def joined(servers: Sequence[Server], besides: Sequence[Beside]) -> list[Server]:
    """The servers with what TorchServe tells of its models on another port."""
    return [_with_models(item, servers, besides) for item in servers]


def _with_models(server: Server, servers: Sequence[Server], besides: Sequence[Beside]) -> Server:
    told = [item.models for item in besides if item.role == "management" and item.place.host == server.place.host]
    mine = server.kind is TORCHSERVE and _alone(server, servers)
    return replace(server, models=told[0]) if told and mine else server


def pools_of(servers: Sequence[Server], besides: Sequence[Beside]) -> list[Pool]:
    """In the order of the URLs; every name once."""
    groups: dict[tuple[object, ...], list[Server]] = {}
    for server in servers:
        groups.setdefault(_identity(server), []).append(server)
    taken: set[str] = set()
    return [_pool(part, servers, besides, taken) for group in groups.values() for part in _checkable(group)]


def _identity(server: Server) -> tuple[object, ...]:
    tls = server.place.host if server.place.scheme == "https" and not is_ip(server.place.host) else ""
    same = server.models.raw or server.apps or (server.place,)
    return server.kind.api, server.kind.api == "own" and server.kind, server.place.scheme, tls, same


def _checkable(group: list[Server]) -> Iterable[list[Server]]:
    """A pool has one check: servers that share no path that says that they are ready stand apart."""
    if _common(group) or not group[0].kind.ready:
        return [group]
    return [[item for item in group if item.kind is kind] for kind in dict.fromkeys(item.kind for item in group)]


def _common(group: Sequence[Server]) -> str:
    return next((path for path in group[0].kind.ready if all(path in item.kind.ready for item in group)), "")


def _pool(group: Sequence[Server], servers: Sequence[Server], besides: Sequence[Beside], taken: set[str]) -> Pool:
    first = group[0]
    members = tuple(_member(item, servers, besides) for item in group)
    ready = _common(group)
    if first.kind is KSERVE_V1 and _SEGMENT.fullmatch(first.models.one):
        ready = f"/v1/models/{first.models.one}"
    tls = None if first.place.scheme == "http" else "" if is_ip(first.place.host) else first.place.host
    called = first.models.one or next(iter(first.models.names), "") or first.kind.title
    return Pool(unique(slug(called), taken), members, ready, tls)


def _member(server: Server, servers: Sequence[Server], besides: Sequence[Beside]) -> Member:
    here = [item for item in besides if item.place.host == server.place.host]
    gpus = next((item for item in here if item.role == "gpus"), None)
    sources = [*_own(server, servers, here), *([_at(gpus)] if gpus else [])]
    single = sum(item.place.host == server.place.host for item in servers) == 1
    return Member(server, tuple(sources), known(gpus.gpus) if gpus else "", len(gpus.gpus) if gpus and single else 1)


def _own(server: Server, servers: Sequence[Server], here: Sequence[Beside]) -> list[Source]:
    """What the server says of itself: on its own port, or on one that only one server of its kind and host can have."""
    kind = server.kind
    if server.page:
        return [Source(kind.source, f"{server.place.scheme}://{{host}}:{{port}}{server.page}")]
    if kind.port is None or not _alone(server, servers):
        return []
    page = next((item for item in here if item.role == "page" and item.source == kind.source), None)
    return [_at(page) if page else Source(kind.source, f"http://{{host}}:{kind.port}{kind.page}", asked=False)]


def _at(page: Beside) -> Source:
    return Source(page.source, f"{page.place.scheme}://{{host}}:{page.place.port}/metrics")


def _alone(server: Server, servers: Sequence[Server]) -> bool:
    return sum(item.kind.source == server.kind.source and item.place.host == server.place.host for item in servers) == 1


def slug(text: str) -> str:
    """A name of what a model or a server is called: its last part, in lower case, and never a number or a word that
    YAML takes for something else than text."""
    last = text.rstrip("/").rpartition("/")[2].lower()
    name = re.sub(r"[^a-z0-9.]+", "-", last)[:_LONGEST_NAME].strip("-.")
    return name if re.match(r"[a-z]", name) and name not in _WORDS else f"model-{name}".rstrip("-")


def unique(name: str, taken: set[str]) -> str:
    """`name`, or with the first number that makes it new; it is then taken."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}-{number}"
    taken.add(found)
    return found
