"""The proxies that the fleet names, and the control plane."""

from __future__ import annotations

import posixpath

from lbctl.base.diagnostics import Path
from lbctl.compile.context import Context
from lbctl.compile.convert import address, maybe
from lbctl.compile.own_lines import own_lines
from lbctl.ir import proxies as ir
from lbctl.ir.store_url import TLS_SCHEMES, parse_store_url
from lbctl.model import control as model

_EXAMPLES = {"nginx": "/etc/nginx/conf.d/lbctl.conf", "haproxy": "/etc/haproxy/lbctl.cfg"}
_HOSTS = tuple(_EXAMPLES)
"""The kinds that have fragments."""


def proxies(ctx: Context) -> tuple[ir.Proxy, ...]:
    """Resolve all proxies. Reports LB102, LB103, LB112, LB113, LB124, LB130 to LB132 and LB134."""
    _check_files(ctx)
    resolved = (_proxy(ctx, name, section) for name, section in sorted(ctx.fleet.proxies.items()))
    return tuple(proxy for proxy in resolved if proxy is not None)


def _check_files(ctx: Context) -> None:
    """Report HAProxies whose files beside the configuration would overwrite each other; their names are fixed."""
    directories: dict[str, str] = {}
    for name, proxy in sorted(ctx.fleet.proxies.items()):
        if proxy.kind != "haproxy" or proxy.config is None or not _has_companions(ctx, proxy):
            continue
        directory = posixpath.dirname(posixpath.normpath(proxy.config))
        other = directories.setdefault(directory, name)
        if other != name:
            message = f"the files that {name} has beside its configuration would overwrite those of {other}"
            ctx.error("LB124", message, ("proxies", name, "config"), f"a directory of its own, as {name}/haproxy.cfg")


def _has_companions(ctx: Context, proxy: model.Proxy) -> bool:
    """Return whether a HAProxy has a script of picks or a map of server slots."""
    pools = ctx.fleet.pools.values()
    if any(pool.balance.algorithm == "pick" for pool in pools):
        return True
    has_slots = any(pool.affinity for pool in pools) if proxy.slots is None else proxy.slots > 0
    return has_slots and proxy.runtime_api is not None and proxy.agent_check is None


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
        picker_bind=address(section.picker.bind),
        dashboard_history=int(section.dashboard.history),
        logs_written="logs" in section.model_fields_set,
        state=section.state,
        store=maybe(section.store, _store),
        member=section.member,
        max_shrink=float(section.max_shrink),
    )


def check_store(ctx: Context) -> None:
    """Report LB125: settings that the chosen store does not have."""
    store = ctx.fleet.control.store
    if store is None:
        return
    url = parse_store_url(store.url)
    in_kubernetes = url.kind == "kubernetes"
    lacking = {
        "key_prefix": in_kubernetes and store.key_prefix != model.Store.model_fields["key_prefix"].default,
        "user": store.user is not None and (in_kubernetes or store.password is None),
        "password": in_kubernetes and store.password is not None,
        "tls": not url.secure and store.tls is not None,
    }
    account = "the account is that of KUBECONFIG, or of the pod"
    hints = {
        "key_prefix": "the name in the URL is what its objects begin with",
        "user": account if in_kubernetes else "a user has a password: add `password: {file: …}`",
        "password": account,
        "tls": "KUBECONFIG has the certificates" if in_kubernetes else f"{TLS_SCHEMES[url.kind]}://",
    }
    for key in (key for key, lacks in lacking.items() if lacks):
        what = "without a password" if key == "user" and not in_kubernetes else f"{url.scheme}://"
        ctx.error("LB125", f"a store {what} has no {key}", ("control", "store", key), hints[key], key=True)


def _store(section: model.Store) -> ir.Store:
    tls = section.tls or model.StoreTls()
    return ir.Store(
        url=section.url,
        key_prefix=section.key_prefix,
        user=section.user,
        password_file=maybe(section.password, lambda password: password.file),
        ca=tls.ca,
        certificate=tls.certificate,
        key=tls.key,
        lease=int(section.lease),
    )


def _proxy(ctx: Context, name: str, proxy: model.Proxy) -> ir.Proxy | None:
    path = ("proxies", name)
    for index, listener in enumerate(proxy.listeners or []):
        ctx.check_name("LB102", "listener", listener, ctx.source.names("listeners"), (*path, "listeners", index))
    if not ctx.check_name("LB103", "kind of proxy", proxy.kind, ctx.oldest, (*path, "kind")):
        return None
    _check_metrics(ctx, path, proxy)
    oldest = ctx.oldest[proxy.kind]
    version = proxy.version or oldest
    if version < oldest:
        ctx.error(
            "LB113", f"lbctl renders for {proxy.kind} {version_text(oldest)} and later", (*path, "version"),
            f'"{version_text(oldest)}" or later',
        )  # fmt: skip
    if proxy.form == "fragment":
        _check_fragment(ctx, name, proxy)
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
        user=proxy.user,
        group=proxy.group,
        chroot=proxy.chroot,
        agent_check=maybe(proxy.agent_check, lambda check: address(check.bind)),
        slots=proxy.slots,
        nodes=tuple(proxy.nodes),
        node_san=proxy.node_san,
        admin=maybe(proxy.admin, address),
        metrics=maybe(proxy.metrics, address),
        form=proxy.form,
        include=own_lines(ctx, name, proxy),
    )


def _check_metrics(ctx: Context, path: Path, proxy: model.Proxy) -> None:
    """Report LB112 for metrics at the address of a listener or of the admin interface."""
    others = {f"listener {name}": listener.bind for name, listener in ctx.fleet.listeners.items()}
    for name, bind in (others | ({"the admin interface": proxy.admin} if proxy.admin else {})).items():
        if proxy.metrics is not None and address(bind) == address(proxy.metrics):
            message = f"{address(bind)} is already the address of {name}"
            ctx.error("LB112", message, (*path, "metrics"), "an address of its own")


def _check_fragment(ctx: Context, name: str, proxy: model.Proxy) -> None:
    """Report LB134: a fragment needs an absolute `config`, and none of the process's own settings."""
    path = ("proxies", name)
    if proxy.kind not in _HOSTS:
        message = f"{proxy.kind} has no fragments"
        ctx.error("LB134", message, (*path, "form"), f"form: whole, or {' or '.join(_HOSTS)}")
        return
    if proxy.config is None or not proxy.config.startswith("/"):
        message = "a fragment needs the absolute path of its file: the files beside it are named by theirs"
        ctx.error(
            "LB134", message, (*path, "form" if proxy.config is None else "config"), f"config: {_EXAMPLES[proxy.kind]}"
        )
    for key in ("user", "group", "chroot", "slots"):
        if getattr(proxy, key) is not None:
            ctx.error("LB134", f"a fragment has no {key}", (*path, key), "leave it out", key=True)


def version_text(version: tuple[int, ...]) -> str:
    """Format a version, as 1.22.0."""
    return ".".join(map(str, version))
