"""The proxies that the fleet names, and the control plane."""

from __future__ import annotations

from lbctl.compile.context import Context
from lbctl.compile.convert import address, maybe
from lbctl.ir import proxies as ir
from lbctl.model import control as model


def proxies(ctx: Context) -> tuple[ir.Proxy, ...]:
    found = (_proxy(ctx, name, item) for name, item in sorted(ctx.fleet.proxies.items()))
    return tuple(item for item in found if item is not None)


def control(section: model.Control) -> ir.Control:
    return ir.Control(
        xds_bind=address(section.xds.bind),
        xds_tls=maybe(section.xds.tls, lambda tls: ir.ServerTls(tls.certificate, tls.key, tls.client_ca)),
        unmatched_nodes=section.xds.unmatched_nodes,
        api_bind=address(section.api.bind),
        api_token_file=section.api.token_file,
        api_tls=maybe(section.api.tls, lambda tls: ir.ServerTls(tls.certificate, tls.key)),
        logs_bind=address(section.logs.bind),
        state=section.state,
        max_shrink=float(section.max_shrink),
    )


def _proxy(ctx: Context, name: str, item: model.Proxy) -> ir.Proxy | None:
    path = ("proxies", name)
    for index, listener in enumerate(item.listeners or []):
        ctx.known("LB102", "listener", listener, ctx.source.names("listeners"), (*path, "listeners", index))
    if not ctx.known("LB103", "kind of proxy", item.kind, ctx.oldest, (*path, "kind")):
        return None
    oldest = ctx.oldest[item.kind]
    version = item.version or oldest
    if version < oldest:
        ctx.error(
            "LB113", f"lbctl renders for {item.kind} {dotted(oldest)} and later", (*path, "version"),
            f'"{dotted(oldest)}" or later',
        )  # fmt: skip
    return ir.Proxy(
        name=name,
        kind=item.kind,
        version=version,
        listeners=tuple(sorted(set(item.listeners or []))),
        instances=item.instances,
        region=item.region,
        zone=item.zone,
        config=item.config,
        reload=maybe(item.reload, lambda told: ir.Reload(tuple(told.command), int(told.min_interval))),
        runtime_api=item.runtime_api,
        agent_check=maybe(item.agent_check, lambda told: address(told.bind)),
        nodes=tuple(item.nodes),
        node_san=item.node_san,
        admin=maybe(item.admin, address),
    )


def dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
