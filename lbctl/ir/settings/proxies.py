"""The settings of a proxy and of the control plane."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.ir.proxies import Control, KubernetesObjects, Proxy, ServerTls, Store
from lbctl.ir.settings.format import Setting, duration, entries, nested, percent


def proxy(proxy: Proxy) -> Iterator[Setting]:
    """Yield the proxy's settings."""
    yield ("kind",), proxy.kind
    yield ("version",), ".".join(map(str, proxy.version))
    yield ("listeners",), proxy.listeners or "all"
    yield ("instances",), proxy.instances
    yield ("region",), proxy.region
    yield ("zone",), proxy.zone
    yield ("config",), proxy.config
    if proxy.reload:
        yield ("reload", "command"), " ".join(proxy.reload.command)
        yield ("reload", "min_interval"), duration(proxy.reload.min_interval)
    yield ("runtime_api",), proxy.runtime_api
    yield ("user",), proxy.user
    yield ("group",), proxy.group
    yield ("chroot",), proxy.chroot
    yield ("agent_check", "bind"), proxy.agent_check
    yield ("slots",), proxy.slots
    yield ("nodes",), tuple(sorted(proxy.nodes)) or None
    yield ("node_san",), proxy.node_san
    yield ("admin",), proxy.admin
    yield ("metrics",), proxy.metrics
    yield ("form",), proxy.form
    for item in proxy.include:
        yield item.path(proxy.name)[2:], f"{item.file} ({item.digest})"
    if proxy.kubernetes:
        yield from nested("kubernetes", _kubernetes(proxy.kubernetes))


def _kubernetes(objects: KubernetesObjects) -> Iterator[Setting]:
    yield ("namespace",), objects.namespace
    yield ("gateway_class",), objects.gateway_class
    yield ("gateway",), "/".join(filter(None, (objects.gateway_namespace, objects.gateway))) or None
    yield from nested("gateway_labels", entries(objects.gateway_labels))
    yield ("pods_namespace",), objects.pods_namespace
    yield ("assume",), objects.assume or None
    yield ("picker",), objects.picker
    yield from nested("secrets", entries(objects.secrets))


def control(control: Control) -> Iterator[Setting]:
    """Yield the control plane's settings."""
    yield ("xds", "bind"), control.xds_bind
    yield from nested("xds", _tls(control.xds_tls))
    yield ("xds", "unmatched_nodes"), control.unmatched_nodes
    yield ("api", "bind"), control.api_bind
    yield ("api", "token_file"), control.api_token_file
    yield from nested("api", _tls(control.api_tls))
    yield ("logs", "bind"), control.logs_bind if control.logs_written else f"{control.logs_bind}, by default"
    yield ("picker", "bind"), control.picker_bind
    yield ("picker", "key_file"), control.picker_key_file
    yield ("dashboard", "history"), duration(control.dashboard_history)
    yield ("state",), control.state
    yield from nested("store", _store(control.store))
    yield ("member",), control.member
    yield ("max_shrink",), percent(control.max_shrink)


def _store(store: Store | None) -> Iterator[Setting]:
    if store is not None:
        yield ("url",), store.url
        yield ("key_prefix",), store.key_prefix
        yield ("user",), store.user
        yield ("password", "file"), store.password_file
        yield from ((("tls", name), getattr(store, name)) for name in ("ca", "certificate", "key"))
        yield ("key_file",), store.key_file
        yield ("lease",), duration(store.lease)


def _tls(tls: ServerTls | None) -> Iterator[Setting]:
    if tls is not None:
        yield from ((("tls", name), getattr(tls, name)) for name in ("certificate", "key", "client_ca", "client_crl"))
