"""`proxies` and `control`: the proxies that run the result, and the control plane that moves them."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lbctl.base import quantities as q
from lbctl.model import values as v
from lbctl.model.section import Choice, Section


class Reload(Section):
    command: Annotated[list[v.Text], Field(min_length=1)]
    min_interval: v.Duration = q.Duration(30_000)


class AgentCheck(Section):
    bind: v.Bind


class Proxy(Section):
    CHOICES: ClassVar = (Choice(("runtime_api", "agent_check"), required=False),)

    kind: v.Name
    version: v.Version | None = None
    region: v.Place | None = None
    zone: v.Place | None = None
    listeners: Annotated[list[v.Name], Field(min_length=1)] | None = None
    config: v.FilePath | None = None
    reload: Reload | None = None
    runtime_api: v.FilePath | None = None
    agent_check: AgentCheck | None = None
    instances: Annotated[int, Field(ge=1, le=10_000)] = 1
    nodes: list[v.NodePattern] = []
    node_san: v.Word | None = None
    admin: v.Bind | None = None


class XdsTls(Section):
    certificate: v.FilePath
    key: v.FilePath
    client_ca: v.FilePath | None = None


class ApiTls(Section):
    certificate: v.FilePath
    key: v.FilePath


class Xds(Section):
    bind: v.Bind = q.Endpoint("127.0.0.1", 18000, ip=True)
    tls: XdsTls | None = None
    unmatched_nodes: Literal["nothing", "all"] = "nothing"


class Api(Section):
    bind: v.Bind = q.Endpoint("127.0.0.1", 18080, ip=True)
    token_file: v.FilePath | None = None
    tls: ApiTls | None = None


class Logs(Section):
    bind: v.Bind = q.Endpoint("127.0.0.1", 18514, ip=True)


class Control(Section):
    xds: Xds = Xds()
    api: Api = Api()
    logs: Logs = Logs()
    state: v.FilePath = "/var/lib/lbctl"
    max_shrink: v.Percent = q.Percent(50)
