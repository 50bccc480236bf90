"""Writes the YAML of a fleet, with comments for newcomers.

Comments are lbctl's own text and never contain a server's output. Text from a server or a URL is in double quotes,
after it has passed the grammar of its key.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from lbctl.init import KEY_FILE
from lbctl.init.pools import PoolDraft, PoolMember, TelemetrySource
from lbctl.init.routes import RouteDraft

_HEAD = """\
# yaml-language-server: $schema=./lbctl.schema.json
# A fleet derived from its servers' responses by `lbctl init`. Next: `lbctl lint FILE` reports what is unwise,
# `lbctl up FILE` runs it with a proxy of this machine; `lbctl render` and `lbctl serve` are for proxies of your own.
# `lbctl schema > lbctl.schema.json` gives the first line its meaning: editors then complete and check the keys.
version: 1

# ── Where clients come in. For others than this machine, bind 0.0.0.0 and add tls: {certificates: [...]} ──────────────
listeners:
  gateway:
    bind: "127.0.0.1:%d"

# ── Which request goes to which pool: the most specific route wins ────────────────────────────────────────────────────
# Retries, timeouts and limits have defaults that suit generation: no limit on the whole, 5 min of silence.
routes:
"""
_POOLS = """\

# ── Pools: replicas that serve the same model. The least busy one for its capacity gets the next request ──────────────
# Capacity is by GPU (`lbctl gpus`): where replicas differ, name the `gpu` of each, and `gpu_count` if it uses several.
pools:
"""
_CREDENTIALS = f"""\
    # The key that the servers ask for, with "Bearer ": sent with requests, checks and to their own metrics.
    credentials: {{header: authorization, file: {KEY_FILE}}}
"""
_WIDTH = 116


def text(
    pools: Sequence[PoolDraft], routes: Sequence[RouteDraft], port: int, authority: str, *, keyed: bool = False
) -> str:
    """Return the content of the file.

    `port` is the listener's port, and `authority` the file of the CAs that this system trusts. `keyed`: whether the
    servers were probed with a key, which is then stored in `KEY_FILE`.
    """
    lines = [_HEAD % port]
    if any(route.models for route in routes):
        lines += _comment("The model is in the body, or in the header x-model; nginx reads the header alone.", 2)
    for route in routes:
        lines += _route(route)
    lines.append(_POOLS)
    for pool in pools:
        lines += _pool(pool, authority, keyed=keyed)
    return "".join(lines)


def _route(route: RouteDraft) -> Iterator[str]:
    yield f"  {route.name}:\n"
    if route.lists_models:
        yield f"    match: {{path: {quoted(route.prefix)}, methods: [GET]}}\n"
        yield "    respond: {models: true}      # the models of the pools that this listener reaches\n"
        return
    if route.models:
        yield f"    match:\n      path_prefix: {quoted(route.prefix)}\n      model:\n"
        yield from (f"        - {quoted(model)}\n" for model in route.models)
    else:
        yield f"    match: {{{'path' if route.exact else 'path_prefix'}: {quoted(route.prefix)}}}\n"
    if route.rewrite:
        yield f"    rewrite: {{path_prefix: {quoted(route.rewrite)}}}      # taken off before the replica sees it\n"
    if len(route.pools) == 1:
        yield f"    pool: {route.pools[0].name}\n"
    else:
        yield "    split:                      # the same model by unlike servers: by the number of replicas\n"
        yield from (f"      {pool.name}: {len(pool.members)}\n" for pool in route.pools)


def _pool(pool: PoolDraft, authority: str, *, keyed: bool) -> Iterator[str]:
    yield f"  {pool.name}:\n"
    yield from _model(pool)
    yield from _replicas(pool)
    if pool.tls is not None:
        name = f", server_name: {quoted(pool.tls)}" if pool.tls else ""
        yield f"    tls: {{ca: {quoted(authority)}{name}}}      # whose certificates are believed\n"
    if keyed:
        yield _CREDENTIALS
    yield from _health(pool)
    sources = _common_sources(pool)
    if sources:
        yield "    telemetry:                  # what `lbctl serve` reads, for weights and deep health\n"
        yield "      sources:\n"
        yield from (f"        - {_source(source)}{_unverified(source)}\n" for source in sources)
    if pool.kind.source not in {"", *(source.kind for member in pool.members for source in member.sources)}:
        yield from _missing_metrics(pool)


def _model(pool: PoolDraft) -> Iterator[str]:
    models = pool.first.models
    if models.single:
        adapters = f", adapters: [{', '.join(map(quoted, models.adapters))}]" if models.adapters else ""
        yield f"    model: {{name: {quoted(models.single)}{adapters}}}\n"
    elif not models.raw:
        advice = (
            f"{pool.kind.title} did not say which model it serves: model: {{name: ...}}. Replicas of the same model"
        )
        yield from _comment(f"{advice} belong into one pool.", 4)
    if models.omitted:
        yield from _comment("It has more models, or such with names that a fleet cannot write: ask it for all.", 4)


def _replicas(pool: PoolDraft) -> Iterator[str]:
    has_gpus = all(member.gpu for member in pool.members)
    if not has_gpus:
        hint = "Name the GPUs, as `gpu: H100-SXM`, of all replicas or of none; without them all count the same."
        yield from _comment(hint, 4)
    elif any(member.gpu_count > 1 for member in pool.members):
        yield from _comment("gpu_count: all GPUs of the host, as its exporter shows; write how many it uses.", 4)
    own_sources = not _common_sources(pool)
    if own_sources and not all(source.verified for member in pool.members for source in member.sources):
        yield from _comment("Sources at a usual port were not asked: `init --from` takes these URLs too.", 4)
    yield "    replicas:\n"
    for member in pool.members:
        yield f"      - {{{', '.join(_replica(member, has_gpus, own_sources))}}}\n"


def _replica(member: PoolMember, has_gpus: bool, own_sources: bool) -> Iterator[str]:
    yield f"address: {quoted(member.server.target.address)}"
    if has_gpus:
        yield f"gpu: {quoted(member.gpu)}"
        if member.gpu_count > 1:
            yield f"gpu_count: {member.gpu_count}"
    if own_sources and member.sources:
        yield f"telemetry: {{sources: [{', '.join(map(_source, member.sources))}]}}"


def _health(pool: PoolDraft) -> Iterator[str]:
    probe = f"http: {{path: {quoted(pool.ready)}}}" if pool.ready else "tcp: {}"
    yield f"    health:\n      active: {{{probe}, interval: 10s}}\n"
    if not pool.ready:
        yield from _comment(
            "The port alone says little: http: {path: /v1/models/NAME} asks whether that model is ready.", 6
        )


def _common_sources(pool: PoolDraft) -> tuple[TelemetrySource, ...]:
    """Return the sources of the pool if all its replicas have the same ones, else an empty tuple."""
    first = pool.members[0].sources
    return first if all(member.sources == first for member in pool.members) else ()


def _source(source: TelemetrySource) -> str:
    return f"{{kind: {source.kind}, url: {quoted(source.url)}}}"


def _unverified(source: TelemetrySource) -> str:
    return "" if source.verified else "   # its usual port, not asked: `init --from` takes it too"


def _missing_metrics(pool: PoolDraft) -> Iterator[str]:
    example = f"{{kind: {pool.kind.source}, url: ...}}"
    if pool.kind.port is not None:
        explanation = (
            f"{pool.kind.title} has its metrics at port {pool.kind.port} by default, and several of it are on one host"
        )
        yield from _comment(
            f"{explanation}: give each of these replicas its own, telemetry: {{sources: [{example}]}}.", 4
        )
        return
    switch = f" Start it with {pool.kind.switch}, then" if pool.kind.switch else " If it has some elsewhere,"
    yield from _comment(f"{pool.kind.title} showed no metrics.{switch} add to telemetry.sources: {example}.", 4)


def quoted(value: str) -> str:
    """Quote a string in double quotes, in ASCII."""
    return json.dumps(value)


def _comment(prose: str, indent: int) -> Iterable[str]:
    start = f"{' ' * indent}# "
    return (f"{line}\n" for line in textwrap.wrap(prose, _WIDTH, initial_indent=start, subsequent_indent=start))
