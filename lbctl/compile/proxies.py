"""The proxies that the fleet names, and the control plane."""

from __future__ import annotations

from lbctl.compile.context import Context
from lbctl.compile.convert import address, maybe
from lbctl.ir import proxies as ir
from lbctl.model import control as model


def proxies(ctx: Context) -> tuple[ir.Proxy, ...]:
    """Resolve all proxies. Reports LB102, LB103 and LB113."""
    resolved = (_proxy(ctx, name, section) for name, section in sorted(ctx.fleet.proxies.items()))
    return tuple(proxy for proxy in resolved if proxy is not None)


def control(section: model.Control) -> ir.Control:
    """Resolve the control plane's settings."""
    return ir.Control(
        xds_bind=address(section.xds.bind),
        xds_tls=maybe(section.xds.tls, lambda tls: ir.ServerTls(tls.certificate, tls.key, tls.client_ca)),
        unmatched_nodes=section.xds.unmatched_nodes,
        api_bind=address(section.api.bind),
        api_token_file=section.api.token_file,
        api_tls=maybe(section.api.tls, lambda tls: ir.ServerTls(tls.certificate, tls.key)),
        logs_bind=address(section.logs.bind),
        dashboard_history=int(section.dashboard.history),
        logs_written="logs" in section.model_fields_set,
        state=section.state,
        max_shrink=float(section.max_shrink),
    )


def _proxy(ctx: Context, name: str, proxy: model.Proxy) -> ir.Proxy | None:
    path = ("proxies", name)
    for index, listener in enumerate(proxy.listeners or []):
        ctx.check_name("LB102", "listener", listener, ctx.source.names("listeners"), (*path, "listeners", index))
    if not ctx.check_name("LB103", "kind of proxy", proxy.kind, ctx.oldest, (*path, "kind")):
        return None
    oldest = ctx.oldest[proxy.kind]
    version = proxy.version or oldest
    if version < oldest:
        ctx.error(
            "LB113", f"lbctl renders for {proxy.kind} {version_text(oldest)} and later", (*path, "version"),
            f'"{version_text(oldest)}" or later',
        )  # fmt: skip
    return ir.Proxy(
        name=name,
        kind=proxy.kind,
        version=version,
        listeners=tuple(sorted(set(proxy.listeners or []))),
        instances=proxy.instances,
        region=proxy.region,
        zone=proxy.zone,
        config=proxy.config,
        reload=maybe(proxy.reload, lambda reload: ir.Reload(tuple(reload.command), int(reload.min_interval))),
        runtime_api=proxy.runtime_api,
        agent_check=maybe(proxy.agent_check, lambda check: address(check.bind)),
        nodes=tuple(proxy.nodes),
        node_san=proxy.node_san,
        admin=maybe(proxy.admin, address),
    )


def version_text(version: tuple[int, ...]) -> str:
    """Format a version, as 1.22.0."""
    return ".".join(map(str, version))
