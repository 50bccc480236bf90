"""`proxies` and `control`: the proxies that run the rendered configuration, and the control plane that manages them."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lbctl.base import ports
from lbctl.base import quantities as q
from lbctl.model import values as v
from lbctl.model.kubernetes import KubernetesObjects
from lbctl.model.section import Choice, Section

_Files = Annotated[list[v.FilePath], Field(min_length=1)]


class Reload(Section):
    command: Annotated[list[v.Text], Field(min_length=1)] = Field(
        description="Command that reloads the proxy: a program and its arguments, run without a shell."
    )
    min_interval: v.Duration = Field(
        q.Duration(30_000),
        description="Minimum time between two reloads that update weights. A small measured change may take up to 17 "
        "intervals to reach nginx. Health changes, drains and removals trigger an immediate reload, at most every 5 s.",
    )


class AgentCheck(Section):
    bind: v.Bind = Field(
        description="First listen address for HAProxy agent checks. Each replica uses one port, and the ports are "
        "consecutive. Choose ports below `net.ipv4.ip_local_port_range`."
    )


class Include(Section):
    """Every path names a file next to the fleet. Its lines are inserted unchanged."""

    http: _Files | None = Field(
        None, description="For nginx: lines for the `http` block, inserted before the `server` blocks."
    )
    server: dict[v.Name, _Files] | None = Field(
        None,
        description="For nginx: lines for every listener's `server` block, inserted before its `location` blocks.",
    )
    location: dict[v.Name, _Files] | None = Field(
        None,
        description="For nginx: lines for every route's `location` block, inserted after authentication and "
        "before the request is forwarded.",
    )
    global_: _Files | None = Field(
        None, alias="global", description="For HAProxy: lines for the end of the `global` section."
    )
    frontend: dict[v.Name, _Files] | None = Field(
        None,
        description="For HAProxy: lines for every listener's frontend, inserted after authentication and limits and "
        "before the backend is selected.",
    )
    backend: dict[v.Name, _Files] | None = Field(
        None, description="For HAProxy: lines for every pool's backend, inserted before its servers."
    )
    http_filters: _Files | None = Field(
        None,
        description="For Envoy: YAML files, each with one HTTP filter (`name`, `typed_config`), inserted before "
        "the router filter.",
    )


class Proxy(Section):
    CHOICES: ClassVar = (Choice(("runtime_api", "agent_check"), required=False),)

    kind: v.Name = Field(description="Kind of proxy.")
    version: v.Version | None = Field(
        None,
        description="Proxy version. lbctl reports features that this version does not support. Default: the "
        "oldest supported version.",
    )
    region: v.Place | None = Field(
        None,
        description="Proxy region, used by `locality` and `render`. With `serve`, an Envoy reports its own region.",
    )
    zone: v.Place | None = Field(
        None, description="Proxy zone, used by `locality` and `render`. With `serve`, an Envoy reports its own zone."
    )
    listeners: Annotated[list[v.Name], Field(min_length=1)] | None = Field(
        None, description="Listeners of this proxy. Default: all."
    )
    kubernetes: KubernetesObjects | None = Field(
        None,
        description="Namespace, Gateway and other settings of the rendered objects. Required for kinds that are "
        "rendered as Kubernetes objects.",
    )
    form: Literal["whole", "fragment"] = Field(
        "whole",
        description="With `fragment`, `config` is a single file in an existing configuration: in the `http` block of "
        "nginx (conf.d) or next to other HAProxy files.",
    )
    include: Include | None = Field(
        None, description="Additional configuration lines from files, inserted at named places in the configuration."
    )
    config: v.FilePath | None = Field(
        None,
        description="Main configuration file of the proxy. `serve` writes it if `reload` is set, and `render` uses its "
        "directory for relative files. An Envoy with `config` but without `nodes` and `node_san` can run without "
        "`serve`.",
    )
    reload: Reload | None = Field(None, description="With `config`: `serve` writes the file and reloads the proxy.")
    runtime_api: v.AbsolutePath | None = Field(
        None,
        description="HAProxy's admin socket. `serve` uses the socket to set weights, drains and health immediately.",
    )
    user: v.Account | None = Field(
        None,
        description="User that HAProxy switches to when it is started as root. Default: haproxy if `config` is below "
        "/etc, otherwise the user that starts HAProxy.",
    )
    group: v.Account | None = Field(
        None, description="Group that HAProxy switches to. Default: the same rule as for `user`."
    )
    chroot: v.FilePath | None = Field(
        None,
        description="HAProxy's chroot directory when it is started as root. Default: /var/lib/haproxy if `config` is "
        "below /etc and no replica is a unix socket, otherwise none.",
    )
    agent_check: AgentCheck | None = Field(
        None, description="HAProxy fetches its weights from `serve` every 2 s through agent checks."
    )
    slots: Annotated[int, Field(ge=0, le=4096)] | None = Field(
        None,
        description="Number of spare server slots in each HAProxy backend, for new replicas that HAProxy cannot add "
        "by name (in pools with `affinity`). Default: half the number of replicas in the pool, at least 4.",
    )
    instances: Annotated[int, Field(ge=1, le=10_000)] = Field(
        1,
        description="Number of proxies that use this entry. The fleet's limits are divided among all proxies that "
        "serve a listener.",
    )
    nodes: list[v.NodePattern] = Field(
        [], description="Node IDs of the Envoys that use this entry. Default: the name of the entry."
    )
    node_san: v.Word | None = Field(
        None,
        description="Required name (SAN) in the client certificate of these Envoys; `*` matches any text without `/`.",
    )
    admin: v.Bind | None = Field(None, description="Loopback address of Envoy's admin interface. Default: none.")
    metrics: v.Bind | None = Field(
        None,
        description="Address of the proxy's own metrics: `/stub_status` of nginx, `/metrics` of HAProxy and Envoy "
        "(Envoy requires `admin`). Every client that can reach this address can read the metrics, so keep it on "
        "loopback. Default: none.",
    )


class XdsTls(Section):
    certificate: v.FilePath = Field(description="The control plane's certificate and its chain, in PEM format.")
    key: v.FilePath = Field(description="Private key of the certificate, PEM.")
    client_ca: v.FilePath | None = Field(
        None,
        description="PEM CA bundle for verifying the proxies' client certificates (mTLS). Required on non-loopback "
        "addresses.",
    )
    client_crl: v.FilePath | None = Field(
        None,
        description="With `client_ca`: PEM file with a revocation list for each of its CAs. A proxy with a revoked "
        "certificate is rejected. If a list has expired, all proxies are rejected.",
    )


class ApiTls(Section):
    certificate: v.FilePath = Field(description="The API's certificate and its chain, in PEM format.")
    key: v.FilePath = Field(description="Private key of the certificate, PEM.")


class Xds(Section):
    bind: v.Bind = Field(
        q.Endpoint("127.0.0.1", ports.XDS, ip=True),
        description="Listen address for Envoys. On non-loopback addresses, mTLS is required.",
    )
    tls: XdsTls | None = Field(None, description="TLS settings of the endpoint. Default: plain text, on loopback only.")
    unmatched_nodes: Literal["nothing", "all"] = Field(
        "nothing",
        description="Configuration for Envoys that match no entry in `proxies`. If `proxies` is not set, the "
        "default is `all`.",
    )


class Api(Section):
    bind: v.Bind = Field(
        q.Endpoint("127.0.0.1", ports.API, ip=True),
        description="Listen address of the API that `lbctl status` and other commands use. On non-loopback "
        "addresses, TLS and a token are required.",
    )
    token_file: v.FilePath | None = Field(
        None,
        description="File with the tokens, one per line: `name:role:token` with the read, operate or picker role, "
        "or only a token. Default: `serve` creates a token in the state directory.",
    )
    tls: ApiTls | None = Field(None, description="TLS settings of the endpoint. Default: plain text, on loopback only.")


class Logs(Section):
    bind: v.Bind = Field(
        q.Endpoint("127.0.0.1", ports.LOGS, ip=True),
        description="Syslog address (UDP, on loopback only) for the traffic log. nginx sends a line for every "
        "request, HAProxy for about one request in four. Proxies whose files `serve` writes always send it; others "
        "send it if `logs` is set.",
    )


class Picker(Section):
    bind: v.Bind = Field(
        q.Endpoint("127.0.0.1", ports.PICKER, ip=True),
        description="Listen address of the picker, for pools with `algorithm: pick`. On non-loopback addresses, the "
        "TLS settings of `xds` are required.",
    )
    key_file: v.FilePath | None = Field(
        None,
        description="File whose only line is the key that proxies send with each pick request. Default: `serve` "
        "creates a key if it writes the configuration of all proxies and has no `store`. Otherwise, the picker does "
        "not require a key.",
    )


class Dashboard(Section):
    history: v.Duration = Field(
        q.Duration(3_600_000),
        description="Time range that the charts cover. `serve` keeps the values in at most 32 MiB of memory. With "
        "more replicas or a longer history, the interval between samples is longer.",
    )


class StorePassword(Section):
    file: v.FilePath = Field(
        description="File that contains only the password. `serve` reads the file for each new connection."
    )


class StoreTls(Section):
    ca: v.FilePath | None = Field(
        None, description="PEM CA bundle for verifying the store's certificate. Default: system CAs."
    )
    certificate: v.FilePath | None = Field(
        None, description="PEM client certificate that `serve` presents to the store."
    )
    key: v.FilePath | None = Field(None, description="Private key of the certificate, PEM.")


class Store(Section):
    url: v.StoreUrl = Field(
        description="Store URL: `redis://` HOST:PORT/DATABASE (Redis, Valkey), `redis+sentinel://` "
        "HOST:PORT,…/NAME/DATABASE, `etcd://` HOST:PORT,… or `kubernetes://` NAMESPACE/NAME. With TLS: `rediss`, "
        "`rediss+sentinel`, `etcds`."
    )
    key_prefix: v.KeyPrefix = Field(
        "lbctl", description="Prefix for all keys. Use a different prefix for each control plane."
    )
    user: v.StoreUser | None = Field(
        None, description="User name. Default: the Redis default user, or the etcd user `root`."
    )
    password: StorePassword | None = Field(None, description="Password of the store.")
    tls: StoreTls | None = Field(
        None,
        description="TLS certificates for `rediss` and `etcds`. Default: the system CAs and no client certificate.",
    )
    key_file: v.FilePath | None = Field(
        None,
        description="File with the members' keys, one per line. The first key signs stored records and messages "
        "between members; all keys verify them. Without this file, anyone with write access to the store can change "
        "the published fleet.",
    )
    lease: v.Lease = Field(
        q.Duration(10_000), description="Time after which another member takes over if the leader is lost."
    )


class Control(Section):
    xds: Xds = Field(Xds.default(), description="Endpoint for Envoys (xDS).")
    api: Api = Field(Api.default(), description="Endpoint for commands, the dashboard and metrics.")
    logs: Logs = Field(Logs.default(), description="Endpoint for the traffic log of nginx and HAProxy.")
    picker: Picker = Field(Picker.default(), description="Endpoint that proxies query to pick a replica.")
    dashboard: Dashboard = Field(Dashboard.default(), description="Dashboard, which the API serves at `/`.")
    state: v.FilePath = Field(
        "/var/lib/lbctl",
        description="Directory for overrides, rollouts, the last valid files and the decision log. Each active "
        "`serve` needs its own directory.",
    )
    store: Store | None = Field(
        None,
        description="Shared store. `serve` processes that share a store form one control plane: one is the leader, "
        "and all of them serve proxies.",
    )
    member: v.Name | None = Field(
        None, description="Name of this `serve` process as a member of the control plane. Default: the host name."
    )
    max_shrink: v.Percent = Field(
        q.Percent(50),
        description="Largest share of the replicas in a pool or in the fleet, or of the keys in a key file, that one "
        "change may remove. Larger changes need `lbctl reload --allow-shrink`.",
    )
