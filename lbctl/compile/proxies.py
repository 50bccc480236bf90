"""Resolves the proxies in the fleet, and the control plane."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence

from lbctl.base.diagnostics import Path, show
from lbctl.compile.context import Context
from lbctl.compile.convert import address, maybe
from lbctl.compile.own_lines import own_lines
from lbctl.ir import proxies as ir
from lbctl.ir.pools import Pool
from lbctl.ir.store_url import STORES, parse_store_url
from lbctl.model import control as model
from lbctl.model.kubernetes import KubernetesObjects


def proxies(ctx: Context) -> tuple[ir.Proxy, ...]:
    """Resolve all proxies. Reports LB102, LB103, LB112, LB113, LB130 to LB132, LB134, LB145 and LB170."""
    resolved = (_proxy(ctx, name, section) for name, section in sorted(ctx.fleet.proxies.items()))
    return tuple(proxy for proxy in resolved if proxy is not None)


def check_companions(ctx: Context, resolved: Iterable[ir.Proxy], pools: Sequence[Pool]) -> None:
    """Report LB124 for proxies that overwrite each other's fixed-name files next to their configuration."""
    owners: dict[str, str] = {}
    for proxy in resolved:
        if proxy.config is None:
            continue
        directory, main = posixpath.split(posixpath.normpath(proxy.config))
        files = [posixpath.join(directory, name) for name in ctx.kinds[proxy.kind].companions(proxy, pools)]
        other = next((owners[file] for file in files if file in owners), None)
        if other is not None:
            message = f"the files next to the configuration of {proxy.name} would overwrite the files of {other}"
            hint = f"use a separate directory, for example {proxy.name}/{main}"
            ctx.error("LB124", message, ("proxies", proxy.name, "config"), hint)
        owners |= {file: proxy.name for file in files if file not in owners}


def control(section: model.Control) -> ir.Control:
    """Resolve the control plane's settings."""
    return ir.Control(
        xds_bind=address(section.xds.bind),
        xds_tls=maybe(
            section.xds.tls, lambda tls: ir.ServerTls(tls.certificate, tls.key, tls.client_ca, tls.client_crl)
        ),
        unmatched_nodes=section.xds.unmatched_nodes,
        api_bind=address(section.api.bind),
        api_token_file=section.api.token_file,
        api_tls=maybe(section.api.tls, lambda tls: ir.ServerTls(tls.certificate, tls.key)),
        logs_bind=address(section.logs.bind),
        picker_bind=address(section.picker.bind),
        picker_key_file=section.picker.key_file,
        dashboard_history=int(section.dashboard.history),
        logs_written="logs" in section.model_fields_set,
        state=section.state,
        store=maybe(section.store, _store),
        member=section.member,
        max_shrink=float(section.max_shrink),
    )


def check_store(ctx: Context) -> None:
    """Report LB125 for settings that the selected store does not support."""
    store = ctx.fleet.control.store
    if store is None:
        return
    url = parse_store_url(store.url)
    kind, path = STORES[url.kind], ("control", "store")
    written = [key for key in kind.lacks if getattr(store, key) != model.Store.model_fields[key].default]
    for key in written:
        ctx.error("LB125", f"a {url.scheme}:// store does not support {key}", (*path, key), kind.lacks[key], key=True)
    if store.user is not None and store.password is None and "user" not in written:
        hint = "add `password: {file: …}`"
        ctx.error("LB125", "a store without a password cannot have a user", (*path, "user"), hint, key=True)
    if store.tls is not None and not url.secure and "tls" not in written:
        ctx.error(
            "LB125", f"a {url.scheme}:// store does not support tls", (*path, "tls"), f"use {kind.tls}://", key=True
        )


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
        key_file=section.key_file,
        lease=int(section.lease),
    )


def _proxy(ctx: Context, name: str, proxy: model.Proxy) -> ir.Proxy | None:
    path = ("proxies", name)
    for index, listener in enumerate(proxy.listeners or []):
        ctx.check_name("LB102", "listener", listener, ctx.source.names("listeners"), (*path, "listeners", index))
    if not ctx.check_name("LB103", "kind of proxy", proxy.kind, ctx.kinds, (*path, "kind")):
        return None
    _check_kubernetes(ctx, path, proxy)
    _check_metrics(ctx, path, proxy)
    _check_admin(ctx, path, proxy)
    oldest = ctx.kinds[proxy.kind].oldest
    version = proxy.version or oldest
    if version < oldest:
        ctx.error(
            "LB113", f"lbctl supports {proxy.kind} {version_text(oldest)} and later", (*path, "version"),
            f'write "{version_text(oldest)}" or later',
        )  # fmt: skip
    if proxy.form == "fragment":
        _check_fragment(ctx, name, proxy)
    _check_absolute(ctx, path, proxy)
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
        kubernetes=maybe(proxy.kubernetes, _kubernetes),
    )


_OF_PROCESSES = (
    "form", "include", "config", "reload", "runtime_api", "user", "group", "chroot", "agent_check", "slots", "nodes",
    "node_san", "admin", "metrics",
)  # fmt: skip
"""Settings for a proxy that runs as a process with its own configuration."""


def _check_kubernetes(ctx: Context, path: Path, proxy: model.Proxy) -> None:
    """Report LB170 for Kubernetes object settings on a proxy with configuration files, or the reverse."""
    if not ctx.kinds[proxy.kind].is_kubernetes:
        if proxy.kubernetes is not None:
            kinds = ", ".join(kind for kind, facts in ctx.kinds.items() if facts.is_kubernetes)
            message = f"{proxy.kind} is not rendered as Kubernetes objects"
            ctx.error("LB170", message, (*path, "kubernetes"), f"remove it, or use the kind {kinds}", key=True)
        return
    for key in (key for key in _OF_PROCESSES if key in proxy.model_fields_set):
        message = f"{proxy.kind} is rendered as Kubernetes objects and does not support {key}"
        ctx.error("LB170", message, (*path, key), "remove it", key=True)
    if proxy.kubernetes is None:
        message = f"{proxy.kind} needs the namespace of its Kubernetes objects"
        ctx.error("LB170", message, path, "kubernetes: {namespace: NAMESPACE}", key=True)


def _kubernetes(section: KubernetesObjects) -> ir.KubernetesObjects:
    namespace, _, gateway = (section.gateway or "").rpartition("/")
    return ir.KubernetesObjects(
        namespace=section.namespace,
        gateway_class=section.gateway_class,
        gateway=gateway or None,
        gateway_namespace=namespace or None,
        gateway_labels=tuple(sorted((section.gateway_labels or {}).items())),
        pods_namespace=section.pods_namespace,
        assume=tuple(section.assume),
        picker=section.picker,
        secrets=tuple(sorted(section.secrets.items())),
    )


def _check_metrics(ctx: Context, path: Path, proxy: model.Proxy) -> None:
    """Report LB112 for metrics at the address of a listener or of the admin interface."""
    others = {f"listener {name}": listener.bind for name, listener in ctx.fleet.listeners.items()}
    for name, bind in (others | ({"the admin interface": proxy.admin} if proxy.admin else {})).items():
        if proxy.metrics is not None and address(bind) == address(proxy.metrics):
            message = f"{address(bind)} is already the address of {name}"
            ctx.error("LB112", message, (*path, "metrics"), "use a separate address")


def _check_admin(ctx: Context, path: Path, proxy: model.Proxy) -> None:
    """Report LB515 for an admin interface that other machines can reach, because it requires no credentials."""
    if proxy.admin is not None and not address(proxy.admin).on_loopback:
        message = (
            f"any client that can reach {address(proxy.admin)} could read the configuration of this proxy and stop it"
        )
        ctx.error("LB515", message, (*path, "admin"), 'write "127.0.0.1:9901" or "unix:/run/envoy/admin.sock"')


def _check_fragment(ctx: Context, name: str, proxy: model.Proxy) -> None:
    """Report LB134 for a fragment without an absolute `config`, or with settings of the process."""
    path, example = ("proxies", name), ctx.kinds[proxy.kind].fragment_example
    if ctx.kinds[proxy.kind].is_kubernetes:
        return  # LB170
    if not example:
        message = f"{proxy.kind} does not support fragments"
        kinds = [kind for kind, facts in ctx.kinds.items() if facts.fragment_example]
        ctx.error("LB134", message, (*path, "form"), f"set form: whole, or use {' or '.join(kinds)}")
        return
    if proxy.config is None or not proxy.config.startswith("/"):
        message = (
            "a fragment needs the absolute path of its file, because it refers to the files next to it by "
            "absolute paths"
        )
        ctx.error("LB134", message, (*path, "form" if proxy.config is None else "config"), f"config: {example}")
    for key in ("user", "group", "chroot", "slots"):
        if getattr(proxy, key) is not None:
            ctx.error("LB134", f"a fragment cannot set {key}", (*path, key), "remove it", key=True)


def _check_absolute(ctx: Context, path: Path, proxy: model.Proxy) -> None:
    """Report LB145 for a relative `config`, which a running proxy resolves against a different directory than lbctl."""
    config = proxy.config if proxy.reload and proxy.form == "whole" else None
    if config is not None and not config.startswith("/"):
        message = f"{show(config)} is not an absolute path, and {proxy.kind} starts in a different directory"
        hint = f"use a path that starts with /, for example /etc/{proxy.kind}/{posixpath.basename(config)}"
        ctx.error("LB145", message, (*path, "config"), hint)


def version_text(version: tuple[int, ...]) -> str:
    """Format a version, for example 1.22.0."""
    return ".".join(map(str, version))
