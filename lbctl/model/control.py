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
        description="Command that reloads the proxy: a program and its arguments, without a shell."
    )
    min_interval: v.Duration = Field(
        q.Duration(30_000),
        description="Minimum time between two reloads for weights. A small measured change may reach nginx only after "
        "17 times this interval. Health changes, drains and removals trigger an immediate reload, at most every 5 s.",
    )


class AgentCheck(Section):
    bind: v.Bind = Field(
        description="First listen address for HAProxy agent checks. Each replica uses one port; the port numbers "
        "are consecutive. Choose ports below `net.ipv4.ip_local_port_range`."
    )


class Include(Section):
    """Every path names a file next to the fleet. Its lines are inserted unchanged."""

    http: _Files | None = Field(
        None, description="For nginx: lines for the `http` block, inserted before the `server` blocks."
    )
    server: dict[v.Name, _Files] | None = Field(
        None,
        description="For nginx: lines for every `server` block of a listener, inserted before its `location` blocks.",
    )
    location: dict[v.Name, _Files] | None = Field(
        None,
        description="For nginx: lines for every `location` block of a route, inserted after authentication and "
        "before the request is forwarded.",
    )
    global_: _Files | None = Field(
        None, alias="global", description="For HAProxy: lines for the end of the `global` section."
    )
    frontend: dict[v.Name, _Files] | None = Field(
        None,
        description="For HAProxy: lines for the frontend of a listener, inserted after authentication and limits and "
        "before the backend is selected.",
    )
    backend: dict[v.Name, _Files] | None = Field(
        None, description="For HAProxy: lines for every backend of a pool, inserted before its servers."
    )
    http_filters: _Files | None = Field(
        None,
        description="For Envoy: files with one HTTP filter each, in YAML (`name`, `typed_config`), inserted before "
        "the router filter.",
    )


class Proxy(Section):
    CHOICES: ClassVar = (Choice(("runtime_api", "agent_check"), required=False),)

    kind: v.Name = Field(description="Kind of proxy.")
    version: v.Version | None = Field(
        None,
        description="Version of the proxy. lbctl reports features that this version does not support. Default: the "
        "oldest supported version.",
    )
    region: v.Place | None = Field(
        None,
        description="Region of the proxy, for `locality` and `render`. With `serve`, an Envoy reports its own region.",
    )
    zone: v.Place | None = Field(
        None, description="Zone of the proxy, for `locality` and `render`. With `serve`, an Envoy reports its own zone."
    )
    listeners: Annotated[list[v.Name], Field(min_length=1)] | None = Field(
        None, description="Listeners of this proxy. Default: all."
    )
    kubernetes: KubernetesObjects | None = Field(
        None,
        description="Namespace, Gateway and other settings of the rendered objects, for kinds that are rendered as "
        "Kubernetes objects. Required for these kinds.",
    )
    form: Literal["whole", "fragment"] = Field(
        "whole",
        description="With `fragment`, `config` is one file of an existing configuration: in the `http` block of "
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
        description="User that HAProxy switches to after root has started it. Default: haproxy if `config` is below "
        "/etc, otherwise the user that starts HAProxy.",
    )
    group: v.Account | None = Field(
        None, description="Group that HAProxy switches to. Default: determined by the same rule as for `user`."
    )
    chroot: v.FilePath | None = Field(
        None,
        description="Chroot directory of HAProxy after root has started it. Default: /var/lib/haproxy if `config` is "
        "below /etc and no replica is a unix socket, otherwise none.",
    )
    agent_check: AgentCheck | None = Field(
        None, description="HAProxy uses agent checks to read its weights from `serve` every 2 s."
    )
    slots: Annotated[int, Field(ge=0, le=4096)] | None = Field(
        None,
        description="Spare server slots of each HAProxy backend, for new replicas that HAProxy cannot add by name (in "
        "pools with `affinity`). Default: half the number of replicas in the pool, at least 4.",
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
    admin: v.Bind | None = Field(None, description="Address of Envoy's admin interface, on loopback. Default: none.")
    metrics: v.Bind | None = Field(
        None,
        description="Address of the proxy's own metrics: `/stub_status` of nginx, `/metrics` of HAProxy and Envoy "
        "(Envoy requires `admin`). Every client that can reach this address can read the metrics, so keep it on "
        "loopback. Default: none.",
    )


class XdsTls(Section):
    certificate: v.FilePath = Field(description="Certificate of the control plane with its chain, PEM.")
    key: v.FilePath = Field(description="Private key of the certificate, PEM.")
    client_ca: v.FilePath | None = Field(
        None,
        description="CA bundle for the client certificates of proxies (mTLS), PEM. Required on non-loopback addresses.",
    )
    client_crl: v.FilePath | None = Field(
        None,
        description="With `client_ca`: revocation lists of its CAs, PEM, one for each CA. A proxy with a revoked "
        "certificate is rejected. If a list has expired, all proxies are rejected.",
    )


class ApiTls(Section):
    certificate: v.FilePath = Field(description="Certificate of the API with its chain, PEM.")
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
        description="Listen address of the API, which `lbctl status` and other commands use. On non-loopback "
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
        description="Syslog address (UDP, on loopback only) for the traffic log. nginx sends a line for each "
        "request, HAProxy for about one in four requests. Proxies whose files `serve` writes always send it; others "
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
        description="File with a single line: the key that proxies send with each pick request. Default: `serve` "
        "creates a key if it writes the configuration of all proxies and has no `store`. Otherwise, the picker "
        "answers all pick requests.",
    )


class Dashboard(Section):
    history: v.Duration = Field(
        q.Duration(3_600_000),
        description="Time range of the charts. `serve` keeps the values in at most 32 MiB of memory. More replicas "
        "and a longer history mean larger intervals between samples.",
    )


class StorePassword(Section):
    file: v.FilePath = Field(
        description="File that contains only the password. `serve` reads the file for each new connection."
    )


class StoreTls(Section):
    ca: v.FilePath | None = Field(
        None, description="CA bundle to verify the store's certificate, PEM. Default: system CAs."
    )
    certificate: v.FilePath | None = Field(None, description="Client certificate of `serve` for the store, PEM.")
    key: v.FilePath | None = Field(None, description="Private key of the certificate, PEM.")


class Store(Section):
    url: v.StoreUrl = Field(
        description="Store URL: `redis://` HOST:PORT/DATABASE (Redis, Valkey), `redis+sentinel://` "
        "HOST:PORT,…/NAME/DATABASE, `etcd://` HOST:PORT,… or `kubernetes://` NAMESPACE/NAME. With TLS: `rediss`, "
        "`rediss+sentinel`, `etcds`."
    )
    key_prefix: v.KeyPrefix = Field(
        "lbctl", description="Prefix of all keys. Use a different prefix for each control plane."
    )
    user: v.StoreUser | None = Field(
        None, description="User name. Default: the Redis default user, or the etcd user `root`."
    )
    password: StorePassword | None = Field(None, description="Password of the store.")
    tls: StoreTls | None = Field(
        None,
        description="TLS certificates for `rediss` and `etcds`. Default: the system CAs, without a client certificate.",
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
        description="Directory for overrides, rollouts, the last valid files and the log of decisions. Each active "
        "`serve` needs its own directory.",
    )
    store: Store | None = Field(
        None,
        description="Shared store. Several `serve` processes with the same store form one control plane: one of "
        "them is the leader, and all of them serve proxies.",
    )
    member: v.Name | None = Field(
        None, description="Name of this `serve` among the members of the control plane. Default: the host name."
    )
    max_shrink: v.Percent = Field(
        q.Percent(50),
        description="Largest share of replicas (in a pool or in the fleet) or of keys (in a key file) that a change "
        "may remove. Larger changes need `lbctl reload --allow-shrink`.",
    )
