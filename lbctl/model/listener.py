"""`listeners`: where clients come in."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from lbctl.base import quantities as q
from lbctl.model import values as v
from lbctl.model.section import Section


class Certificate(Section):
    certificate: v.FilePath
    key: v.FilePath
    hosts: list[v.HostPattern] = []


class ListenerTls(Section):
    certificates: Annotated[list[Certificate], Field(min_length=1)]
    min_version: Literal["1.2", "1.3"] = "1.2"
    client_ca: v.FilePath | None = None
    client_certificate: Literal["required", "optional"] = "optional"


class ClientAddress(Section):
    trusted: Annotated[list[v.Network], Field(min_length=1)]
    header: v.HeaderName = "x-forwarded-for"


class ListenerTimeouts(Section):
    request_headers: v.Duration = q.Duration(15_000)
    idle: v.Duration = q.Duration(3_600_000)


class AccessLog(Section):
    path: v.FilePath = "/dev/stdout"
    format: Literal["json", "text", "none"] = "json"


class Tracing(Section):
    otlp: v.Address
    sample: v.Percent = q.Percent(10)
    service: v.Service = "inference-gateway"


class Listener(Section):
    bind: v.Bind
    tls: ListenerTls | None = None
    http2: bool = True
    client_address: ClientAddress | None = None
    proxy_protocol: bool = False
    max_connections: v.Positive | None = None
    max_body: v.Size | None = None
    inspect: v.Size = q.Size(256 << 10)
    timeouts: ListenerTimeouts = ListenerTimeouts()
    access_log: AccessLog = AccessLog()
    tracing: Tracing | None = None
    request_id: v.HeaderName = "x-request-id"
