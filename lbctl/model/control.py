"""`proxies` and `control`: the proxies that run the result, and the control plane that drives them."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lbctl.base import ports
from lbctl.base import quantities as q
from lbctl.model import values as v
from lbctl.model.section import Choice, Section

_Files = Annotated[list[v.FilePath], Field(min_length=1)]


class Reload(Section):
    command: Annotated[list[v.Text], Field(min_length=1)] = Field(
        description="What makes the proxy read its file again: a program and its arguments, no shell."
    )
    min_interval: v.Duration = Field(
        q.Duration(30_000),
        description="The least time between two reloads for weights. Health, drains and removals go at once, at most "
        "every 5 s.",
    )


class AgentCheck(Section):
    bind: v.Bind = Field(
        description="The first address that HAProxy asks; one port a replica, counting up: choose them below "
        "`net.ipv4.ip_local_port_range`."
    )


class Include(Section):
    """Every path is a file beside the fleet; its lines are put in as they are."""

    http: _Files | None = Field(None, description="For nginx: lines of the `http` block, before the servers.")
    server: dict[v.Name, _Files] | None = Field(
        None, description="For nginx: lines of every `server` block of a listener, before its locations."
    )
    location: dict[v.Name, _Files] | None = Field(
        None,
        description="For nginx: lines of every location of a route, after its credentials and before it is forwarded.",
    )
    global_: _Files | None = Field(
        None, alias="global", description="For HAProxy: lines at the end of the `global` section."
    )
    frontend: dict[v.Name, _Files] | None = Field(
        None,
        description="For HAProxy: lines of the frontend of a listener, after credentials and limits, before its "
        "backend.",
    )
    backend: dict[v.Name, _Files] | None = Field(
        None, description="For HAProxy: lines of every backend of a pool, before its servers."
    )
    http_filters: _Files | None = Field(
        None, description="For Envoy: each file one HTTP filter in YAML (`name`, `typed_config`), before the router."
    )


class Proxy(Section):
    CHOICES: ClassVar = (Choice(("runtime_api", "agent_check"), required=False),)

    kind: v.Name = Field(description="Which proxy it is.")
    version: v.Version | None = Field(
        None,
        description="Features that this version lacks are reported. Without it: the oldest that lbctl renders for.",
    )
    region: v.Place | None = Field(
        None, description="Where it runs, for `locality` and `render`; an Envoy under `serve` says so itself."
    )
    zone: v.Place | None = Field(
        None, description="Where it runs, for `locality` and `render`; an Envoy under `serve` says so itself."
    )
    listeners: Annotated[list[v.Name], Field(min_length=1)] | None = Field(
        None, description="The listeners that it carries. Without it: all."
    )
    form: Literal["whole", "fragment"] = Field(
        "whole",
        description="`fragment`: `config` is one file within somebody's own configuration, in an nginx's `http` block "
        "(conf.d) or beside own HAProxy files.",
    )
    include: Include | None = Field(None, description="Own lines, from files, at named places of the configuration.")
    config: v.FilePath | None = Field(
        None, description="Its main file. `serve` writes it; `render` takes its directory for relative files."
    )
    reload: Reload | None = Field(None, description="With `config`: `serve` writes the file and reloads the proxy.")
    runtime_api: v.AbsolutePath | None = Field(
        None, description="HAProxy's admin socket: `serve` sets weights, drains and health there at once."
    )
    user: v.Account | None = Field(
        None,
        description="The user as whom HAProxy works once root has started it. Without it: haproxy, where `config` is "
        "below /etc; else HAProxy works as whoever starts it.",
    )
    group: v.Account | None = Field(None, description="Its group. Without it: as for `user`.")
    chroot: v.FilePath | None = Field(
        None,
        description="The directory outside which HAProxy sees no files once root has started it. Without it: "
        "/var/lib/haproxy, where `config` is below /etc and no replica is a unix socket; else none.",
    )
    agent_check: AgentCheck | None = Field(None, description="HAProxy asks `serve` for its weights, every 2 s.")
    slots: Annotated[int, Field(ge=0, le=4096)] | None = Field(
        None,
        description="Spare server slots of each HAProxy backend, for new replicas that HAProxy cannot add by name: "
        "those of pools with `affinity`. Without it: half as many as such a pool has replicas, at least 4.",
    )
    instances: Annotated[int, Field(ge=1, le=10_000)] = Field(
        1, description="How many run with this entry: the fleet's limits are divided among all that carry a listener."
    )
    nodes: list[v.NodePattern] = Field(
        [], description="The node ids of the Envoys that this entry is for. Without it: the entry's own name."
    )
    node_san: v.Word | None = Field(
        None,
        description="What the client certificate of such an Envoy must say (SAN); a `*` matches any text without /.",
    )
    admin: v.Bind | None = Field(
        None, description="The address of Envoy's admin interface, on loopback. Without it: none."
    )
    metrics: v.Bind | None = Field(
        None,
        description="The address of the proxy's own figures: `/stub_status` of nginx, `/metrics` of HAProxy and Envoy "
        "(Prometheus; Envoy's need `admin`). Anybody who reaches it reads them: keep it on loopback. Without it: none.",
    )


class XdsTls(Section):
    certificate: v.FilePath = Field(description="The certificate of the control plane and its chain, PEM.")
    key: v.FilePath = Field(description="Its private key, PEM.")
    client_ca: v.FilePath | None = Field(
        None, description="Whose certificates proxies must show (mTLS), PEM. Needed beyond loopback."
    )
    client_crl: v.FilePath | None = Field(
        None,
        description="With `client_ca`: the revocation lists of its authorities, PEM: one for each. A proxy whose "
        "certificate is on one is refused, and every proxy once a list has expired.",
    )


class ApiTls(Section):
    certificate: v.FilePath = Field(description="The certificate of the API and its chain, PEM.")
    key: v.FilePath = Field(description="Its private key, PEM.")


class Xds(Section):
    bind: v.Bind = Field(
        q.Endpoint("127.0.0.1", ports.XDS, ip=True), description="Where Envoys connect. Beyond loopback it needs mTLS."
    )
    tls: XdsTls | None = Field(None, description="Without it plain text, on loopback alone.")
    unmatched_nodes: Literal["nothing", "all"] = Field(
        "nothing", description="What an Envoy gets that no proxy entry names. Without `proxies`: all."
    )


class Api(Section):
    bind: v.Bind = Field(
        q.Endpoint("127.0.0.1", ports.API, ip=True),
        description="Where `lbctl status` and the other commands ask. Beyond loopback it needs TLS and a token.",
    )
    token_file: v.FilePath | None = Field(
        None,
        description="Holds the tokens, one a line: `name:role:token` with the role read, operate or picker, or a token "
        "alone. Without it: one is made in the state directory.",
    )
    tls: ApiTls | None = Field(None, description="Without it plain text, on loopback alone.")


class Logs(Section):
    bind: v.Bind = Field(
        q.Endpoint("127.0.0.1", ports.LOGS, ip=True),
        description="Where nginx sends a line a request by syslog (UDP), and HAProxy one for about every fourth one; "
        "on loopback alone. A proxy whose files `serve` writes sends it in any case, others where `logs` is written.",
    )


class Picker(Section):
    bind: v.Bind = Field(
        q.Endpoint("127.0.0.1", ports.PICKER, ip=True),
        description="Where proxies ask for replicas, for pools with `algorithm: pick`. Beyond loopback it needs the "
        "TLS of `xds`.",
    )
    key_file: v.FilePath | None = Field(
        None,
        description="Holds the key that proxies send with each question, in one line. Without it `serve` makes one, "
        "where it writes the configuration of all proxies and has no `store`; else every question is answered.",
    )


class Dashboard(Section):
    history: v.Duration = Field(
        q.Duration(3_600_000),
        description="How far back its charts go. `serve` keeps the values in memory, in at most 32 MiB: the more "
        "replicas and the longer the history, the further apart are the samples.",
    )


class StorePassword(Section):
    file: v.FilePath = Field(description="A file with the password alone; it is read again for each new connection.")


class StoreTls(Section):
    ca: v.FilePath | None = Field(
        None, description="Whose certificates the store shows, PEM. Without it: the system's."
    )
    certificate: v.FilePath | None = Field(None, description="What `serve` shows to the store, PEM.")
    key: v.FilePath | None = Field(None, description="Its private key, PEM.")


class Store(Section):
    url: v.StoreUrl = Field(
        description="`redis://` HOST:PORT/DATABASE (Redis, Valkey), `redis+sentinel://` HOST:PORT,…/NAME/DATABASE, "
        "`etcd://` HOST:PORT,… or `kubernetes://` NAMESPACE/NAME. By TLS: `rediss`, `rediss+sentinel`, `etcds`."
    )
    key_prefix: v.KeyPrefix = Field("lbctl", description="What all keys begin with: one for each control plane.")
    user: v.StoreUser | None = Field(
        None, description="The user whose password it is. Without it: the default user of Redis, `root` of etcd."
    )
    password: StorePassword | None = Field(None, description="The password.")
    tls: StoreTls | None = Field(None, description="With `rediss` and `etcds`: certificates other than the system's.")
    key_file: v.FilePath | None = Field(
        None,
        description="Holds the keys of the members, one a line: the first signs what they store and send each other, "
        "and each one verifies it. Without it: others who may write to the store can change what is served.",
    )
    lease: v.Lease = Field(q.Duration(10_000), description="After a leader is lost for so long, another member leads.")


class Control(Section):
    xds: Xds = Field(Xds.default(), description="The port for Envoys.")
    api: Api = Field(Api.default(), description="The port for people, commands and metrics.")
    logs: Logs = Field(Logs.default(), description="The port for the traffic log of nginx and HAProxy.")
    picker: Picker = Field(Picker.default(), description="The port of the replica picker.")
    dashboard: Dashboard = Field(Dashboard.default(), description="The page for browsers at `/` of the API.")
    state: v.FilePath = Field(
        "/var/lib/lbctl",
        description="The directory for overrides, rollouts, the last good files and the log of decisions; one active "
        "`serve` each.",
    )
    store: Store | None = Field(
        None, description="Several `serve` with the same store are one control plane: one leads, all serve proxies."
    )
    member: v.Name | None = Field(
        None, description="The name of this `serve` among those of a store. Without it: the name of the host."
    )
    max_shrink: v.Percent = Field(
        q.Percent(50),
        description="A change that takes more than this from a pool that stays, or from the fleet, in replicas, or "
        "from a key file, in keys, waits for `lbctl reload --allow-shrink`.",
    )
