"""`listeners`: addresses on which proxies accept clients."""

from typing import Annotated, Literal

from pydantic import Field

from lbctl.base import quantities as q
from lbctl.model import values as v
from lbctl.model.section import Section


class Certificate(Section):
    certificate: v.FilePath = Field(description="Certificate with its chain, PEM.")
    key: v.FilePath = Field(description="Private key of the certificate, PEM.")
    hosts: list[v.HostPattern] = Field([], description="Server names (SNI) of this certificate.")


class ListenerTls(Section):
    certificates: Annotated[list[Certificate], Field(min_length=1)] = Field(
        description="Certificates, selected by the client's server name (SNI). The first certificate is the default."
    )
    min_version: Literal["1.2", "1.3"] = Field("1.2", description="Minimum TLS version.")
    client_ca: v.FilePath | None = Field(None, description="CA bundle to verify client certificates (mTLS), PEM.")
    client_certificate: Literal["required", "optional"] = Field(
        "optional", description="With `client_ca`: whether clients without a certificate are rejected."
    )
    client_crl: v.FilePath | None = Field(
        None,
        description="With `client_ca`: revocation lists of its CAs, PEM, one for each CA in a chain. A client with a "
        "revoked certificate is rejected. If a list has expired, all clients are rejected.",
    )


class ClientAddress(Section):
    trusted: Annotated[list[v.Network], Field(min_length=1)] = Field(
        description="Networks of trusted peers. `x-forwarded-*` headers from other peers are removed."
    )
    header: v.HeaderName = Field("x-forwarded-for", description="Header with the client's address.")
    forward: list[v.HeaderName] = Field(
        ["x-real-ip"],
        description="Headers that carry the client's address to the replica. If a client sends headers with these "
        "names, they are removed. A listener without `client_address` sends the peer's address in `x-real-ip`.",
    )


class ListenerTimeouts(Section):
    request_headers: v.Duration = Field(
        q.Duration(15_000),
        description="Timeout for receiving the headers of a request. A body can take longer, but it times out if no "
        "data arrives.",
    )
    idle: v.Duration = Field(q.Duration(3_600_000), description="Time that an idle keep-alive connection stays open.")


class HeaderLimits(Section):
    max_count: v.HeaderCount = Field(1000, description="Maximum number of header lines in a request.")
    max_bytes: v.HeaderBytes = Field(
        q.Size(128 << 10), description="Maximum size of a request's headers, and of its request line."
    )


class AccessLog(Section):
    path: v.FilePath | None = Field(
        None,
        description="Log file; for HAProxy, only `/dev/stdout` or `/dev/stderr`. Default: "
        "`/var/log/nginx/access.log` for an nginx whose `config` is below /etc, /usr or /opt, otherwise standard "
        "output.",
    )
    format: Literal["json", "text", "none"] = Field("json", description="Log format: JSON, readable text, or no log.")


class Tracing(Section):
    otlp: v.Address = Field(description="Address of the OTLP collector (gRPC).")
    sample: v.Percent = Field(q.Percent(10), description="Share of requests to trace.")
    service: v.Service = Field("inference-gateway", description="Service name in the traces.")


class Listener(Section):
    bind: v.Bind = Field(description="The address and port, or the socket, to listen on.")
    tls: ListenerTls | None = Field(None, description="TLS settings of the listener. Default: plain HTTP.")
    http2: bool = Field(
        True,
        description="Also accept HTTP/2. Without TLS, h2c is accepted if the proxy can distinguish it from HTTP/1.1.",
    )
    client_address: ClientAddress | None = Field(
        None,
        description="Source of the client's address behind another load balancer. Default: the address of the peer.",
    )
    allow_from: Annotated[list[v.Network], Field(min_length=1)] | None = Field(
        None,
        description="Client networks that may send requests, compared with the address from `client_address`; "
        "other clients get 403. Default: all networks. A route's list replaces this list.",
    )
    deny_from: list[v.Network] = Field(
        [],
        description="Client networks whose requests get 403; checked before `allow_from`. A route's list replaces this "
        "list.",
    )
    proxy_protocol: bool = Field(False, description="Expect the PROXY protocol from every peer.")
    max_connections: v.Positive | None = Field(
        None, description="Maximum number of client connections across all proxies. Default: no limit."
    )
    max_body: v.Size | None = Field(
        None, description="Maximum size of a request body; requests with larger bodies get 413. Default: no limit."
    )
    headers: HeaderLimits = Field(
        HeaderLimits.default(),
        description="Limits for request headers; requests with larger headers get 431. In HTTP/2, each piece of a "
        "cookie counts as a line.",
    )
    inspect: v.Size = Field(
        q.Size(16 << 20),
        description="Number of body bytes that are buffered to read `model`, `json_body` and `prompt_prefix`; a "
        "larger buffer needs more memory (docs/reference/requests.md). If a value is not found in the buffer, the "
        "request gets 413.",
    )
    timeouts: ListenerTimeouts = Field(ListenerTimeouts.default(), description="Timeouts for client connections.")
    access_log: AccessLog = Field(AccessLog.default(), description="Access log, with one line for each request.")
    tracing: Tracing | None = Field(None, description="OpenTelemetry traces. Default: none.")
    request_id: v.HeaderName = Field(
        "x-request-id",
        description="Header with the request ID. A value from a trusted client is kept; otherwise, the proxy sets "
        "a new one.",
    )
