"""Writes a fleet's YAML, with comments for newcomers.

Comments contain only lbctl's own text, never a server's output. Text from a server or URL is validated against its
key's syntax and written in double quotes.
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
# `lbctl init` derived this fleet from the responses of its servers. Next steps:
#   lbctl lint FILE     Report configuration that is valid but risky for inference.
#   lbctl up FILE       Run the fleet with a proxy on this machine.
# To configure your own proxies, use `lbctl render` or `lbctl serve`.
# `lbctl schema > lbctl.schema.json` creates the schema in the first line. Editors then complete and check the keys.
version: 1

# ── Listeners: addresses for clients. For other machines, bind 0.0.0.0 and add tls: {certificates: [...]} ─────────────
listeners:
  gateway:
    bind: "127.0.0.1:%d"

# ── Routes: they select the pool for a request. The most specific route takes precedence ──────────────────────────────
# Retries, timeouts and limits have defaults for text generation: no limit on the duration, 5 min without a byte.
routes:
"""
_POOLS = """\

# ── Pools: replicas with the same model. The replica with the lowest load for its capacity gets the next request ──────
# Capacity depends on the GPU (`lbctl gpus`). If replicas differ, set `gpu` for each, and `gpu_count` for several GPUs.
pools:
"""
_CREDENTIALS = f"""\
    # The servers' API key, after "Bearer ". It is sent with requests, health checks and reads of the servers' metrics.
    credentials: {{header: authorization, file: {KEY_FILE}}}
"""
_WIDTH = 116


def text(
    pools: Sequence[PoolDraft], routes: Sequence[RouteDraft], port: int, authority: str, *, keyed: bool = False
) -> str:
    """Return the content of the file.

    `port` is the listener's port, and `authority` is the file that contains the system's trusted CAs. `keyed` indicates
    whether the servers were probed with a key, which is then stored in `KEY_FILE`.
    """
    lines = [_HEAD % port]
    if any(route.models for route in routes):
        lines += _comment("The model is read from the body or the x-model header. nginx reads only the header.", 2)
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
        yield "    respond: {models: true}      # list the models of all pools that this listener can reach\n"
        return
    if route.models:
        yield f"    match:\n      path_prefix: {quoted(route.prefix)}\n      model:\n"
        yield from (f"        - {quoted(model)}\n" for model in route.models)
    else:
        yield f"    match: {{{'path' if route.exact else 'path_prefix'}: {quoted(route.prefix)}}}\n"
    if route.rewrite:
        yield f"    rewrite: {{path_prefix: {quoted(route.rewrite)}}}      # replaces the path prefix\n"
    if len(route.pools) == 1:
        yield f"    pool: {route.pools[0].name}\n"
    else:
        yield "    split:                      # shares by number of replicas: different servers have this model\n"
        yield from (f"      {pool.name}: {len(pool.members)}\n" for pool in route.pools)


def _pool(pool: PoolDraft, authority: str, *, keyed: bool) -> Iterator[str]:
    yield f"  {pool.name}:\n"
    yield from _model(pool)
    yield from _replicas(pool)
    if pool.tls is not None:
        name = f", server_name: {quoted(pool.tls)}" if pool.tls else ""
        yield f"    tls: {{ca: {quoted(authority)}{name}}}      # CAs that the proxy trusts\n"
    if keyed:
        yield _CREDENTIALS
    yield from _health(pool)
    sources = _common_sources(pool)
    if sources:
        yield "    telemetry:                  # metrics that `lbctl serve` reads for weights and deep health\n"
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
        advice = f"{pool.kind.title} did not report its model. Set model: {{name: ...}}."
        yield from _comment(f"{advice} Put replicas of the same model in one pool.", 4)
    if models.omitted:
        yield from _comment(
            "The server has more models, or models with names that a fleet cannot contain. Ask the server for the "
            "list.",
            4,
        )


def _replicas(pool: PoolDraft) -> Iterator[str]:
    has_gpus = all(member.gpu for member in pool.members)
    if not has_gpus:
        hint = "Set `gpu` for all replicas or for none, for example `gpu: H100-SXM`. Without it, capacities are equal."
        yield from _comment(hint, 4)
    elif any(member.gpu_count > 1 for member in pool.members):
        yield from _comment(
            "gpu_count is the number of GPUs that the host's exporter reports. Correct it if the replica uses fewer.", 4
        )
    own_sources = not _common_sources(pool)
    if own_sources and not all(source.verified for member in pool.members for source in member.sources):
        yield from _comment(
            "Sources on default ports were not queried. To query them, add their URLs to `init --from`.", 4
        )
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
            "An open port does not prove that a model is ready. Use http: {path: /v1/models/NAME} to check a model.", 6
        )


def _common_sources(pool: PoolDraft) -> tuple[TelemetrySource, ...]:
    """Return the pool's sources if all its replicas have the same sources, or an empty tuple otherwise."""
    first = pool.members[0].sources
    return first if all(member.sources == first for member in pool.members) else ()


def _source(source: TelemetrySource) -> str:
    return f"{{kind: {source.kind}, url: {quoted(source.url)}}}"


def _unverified(source: TelemetrySource) -> str:
    return "" if source.verified else "   # default port, not queried (add the URL to `init --from`)"


def _missing_metrics(pool: PoolDraft) -> Iterator[str]:
    example = f"{{kind: {pool.kind.source}, url: ...}}"
    if pool.kind.port is not None:
        explanation = (
            f"{pool.kind.title} exposes metrics on port {pool.kind.port} by default, and several servers share a host."
        )
        yield from _comment(f"{explanation} Set telemetry for each replica: telemetry: {{sources: [{example}]}}.", 4)
        return
    switch = f" Start it with {pool.kind.switch}, then" if pool.kind.switch else " If it exposes them elsewhere,"
    yield from _comment(f"{pool.kind.title} returned no metrics.{switch} add {example} to telemetry.sources.", 4)


def quoted(value: str) -> str:
    """Return the string in double quotes, as ASCII."""
    return json.dumps(value)


def _comment(prose: str, indent: int) -> Iterable[str]:
    start = f"{' ' * indent}# "
    return (f"{line}\n" for line in textwrap.wrap(prose, _WIDTH, initial_indent=start, subsequent_indent=start))
