"""`proxies` and `control`: the proxies that run the result, and the control plane that drives them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lbctl.base import ports
from lbctl.base import quantities as q
from lbctl.model import values as v
from lbctl.model.section import Choice, Section


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
    config: v.FilePath | None = Field(
        None, description="Its main file. `serve` writes it; `render` takes its directory for relative files."
    )
    reload: Reload | None = Field(None, description="With `config`: `serve` writes the file and reloads the proxy.")
    runtime_api: v.FilePath | None = Field(
        None, description="HAProxy's admin socket: `serve` sets weights, drains and health there at once."
    )
    agent_check: AgentCheck | None = Field(None, description="HAProxy asks `serve` for its weights, every 2 s.")
    instances: Annotated[int, Field(ge=1, le=10_000)] = Field(
        1, description="How many run with this entry: the fleet's limits are divided among all that carry a listener."
    )
    nodes: list[v.NodePattern] = Field(
        [], description="The node ids of the Envoys that this entry is for. Without it: the entry's own name."
    )
    node_san: v.Word | None = Field(
        None,
        description="What the client certificate of such an Envoy must say (SAN); a `*` stands for any text without /.",
    )
    admin: v.Bind | None = Field(None, description="The address of Envoy's admin interface. Without it: none.")


class XdsTls(Section):
    certificate: v.FilePath = Field(description="The certificate of the control plane and its chain, PEM.")
    key: v.FilePath = Field(description="Its private key, PEM.")
    client_ca: v.FilePath | None = Field(
        None, description="Whose certificates proxies must show (mTLS), PEM. Needed beyond loopback."
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
        description="Holds the tokens, one a line: `name:role:token` with the role read or operate, or a token alone. "
        "Without it: one is made in the state directory.",
    )
    tls: ApiTls | None = Field(None, description="Without it plain text, on loopback alone.")


class Logs(Section):
    bind: v.Bind = Field(
        q.Endpoint("127.0.0.1", ports.LOGS, ip=True),
        description="Where nginx sends a line a request by syslog (UDP), for rollouts and observed shares; on "
        "loopback alone. An nginx that `serve` drives sends it in any case, others where `logs` is written.",
    )


class Dashboard(Section):
    history: v.Duration = Field(
        q.Duration(3_600_000),
        description="How far back its charts go. `serve` keeps the values in memory, in at most 32 MiB: the more "
        "replicas and the longer the history, the further apart are the samples.",
    )


class Control(Section):
    xds: Xds = Field(Xds(), description="The port for Envoys.")
    api: Api = Field(Api(), description="The port for people, commands and metrics.")
    logs: Logs = Field(Logs(), description="The port for nginx's traffic log.")
    dashboard: Dashboard = Field(Dashboard(), description="The page for browsers at `/` of the API.")
    state: v.FilePath = Field(
        "/var/lib/lbctl",
        description="The directory for overrides, rollouts, the last good files and the log of decisions; one active "
        "`serve` each.",
    )
    max_shrink: v.Percent = Field(
        q.Percent(50),
        description="A change that takes more than this from a pool that stays, or from the fleet, in replicas, or "
        "from a key file, in keys, waits for `lbctl reload --allow-shrink`.",
    )
