"""`listeners`: where clients come in."""

from typing import Annotated, Literal

from pydantic import Field

from lbctl.base import quantities as q
from lbctl.model import values as v
from lbctl.model.section import Section


class Certificate(Section):
    certificate: v.FilePath = Field(description="The certificate and its chain, PEM.")
    key: v.FilePath = Field(description="Its private key, PEM.")
    hosts: list[v.HostPattern] = Field([], description="The server names (SNI) that it is for.")


class ListenerTls(Section):
    certificates: Annotated[list[Certificate], Field(min_length=1)] = Field(
        description="Chosen by the server name (SNI) that the client sends; the first is the default."
    )
    min_version: Literal["1.2", "1.3"] = Field("1.2", description="The oldest TLS that is accepted.")
    client_ca: v.FilePath | None = Field(
        None, description="Asks clients for a certificate (mTLS) and checks it against these authorities, PEM."
    )
    client_certificate: Literal["required", "optional"] = Field(
        "optional", description="With `client_ca`: whether a client without a certificate is refused."
    )
    client_crl: v.FilePath | None = Field(
        None,
        description="With `client_ca`: the revocation lists of its authorities, PEM: one for each in a chain. "
        "A client whose certificate is on one is refused, and every client once a list has expired.",
    )


class ClientAddress(Section):
    trusted: Annotated[list[v.Network], Field(min_length=1)] = Field(
        description="Only peers in these networks are believed; from others `x-forwarded-*` is removed."
    )
    header: v.HeaderName = Field("x-forwarded-for", description="The header in which they name the client.")
    forward: list[v.HeaderName] = Field(
        ["x-real-ip"],
        description="Headers that carry the client's address to the replica; what anybody sends under these names is "
        "removed. A listener without `client_address` sends the peer's address in `x-real-ip`.",
    )


class ListenerTimeouts(Section):
    request_headers: v.Duration = Field(
        q.Duration(15_000),
        description="How long a client may take to send the headers of a request. A body may take longer: silence "
        "ends it.",
    )
    idle: v.Duration = Field(q.Duration(3_600_000), description="How long an idle keep-alive connection is kept.")


class HeaderLimits(Section):
    max_count: v.HeaderCount = Field(1000, description="Most header lines of a request.")
    max_bytes: v.HeaderBytes = Field(
        q.Size(128 << 10), description="Largest size of the headers of a request, and of its request line."
    )


class AccessLog(Section):
    path: v.FilePath | None = Field(
        None,
        description="Where it is written; by HAProxy to `/dev/stdout` or `/dev/stderr` only. Without it: to "
        "`/var/log/nginx/access.log` by an nginx whose `config` is below /etc, /usr or /opt, else to standard output.",
    )
    format: Literal["json", "text", "none"] = Field("json", description="JSON, a readable line, or nothing.")


class Tracing(Section):
    otlp: v.Address = Field(description="The collector that takes OTLP by gRPC.")
    sample: v.Percent = Field(q.Percent(10), description="The share of requests that is traced.")
    service: v.Service = Field("inference-gateway", description="The name of the service in the traces.")


class Listener(Section):
    bind: v.Bind = Field(description="The address and port, or the socket, to listen on.")
    tls: ListenerTls | None = Field(None, description="Without it the listener speaks plain HTTP.")
    http2: bool = Field(
        True, description="Take HTTP/2 too; without TLS as h2c, where the proxy can tell it from HTTP/1.1."
    )
    client_address: ClientAddress | None = Field(
        None, description="Who the client is, behind another balancer. Without it: the peer."
    )
    allow_from: Annotated[list[v.Network], Field(min_length=1)] | None = Field(
        None,
        description="The networks of clients that may send requests, by the address that `client_address` finds; "
        "others get 403. Without it: every network. A route's own list replaces it.",
    )
    deny_from: list[v.Network] = Field(
        [], description="The networks of clients that get 403, before `allow_from`. A route's own list replaces it."
    )
    proxy_protocol: bool = Field(False, description="Expect the PROXY protocol from every peer.")
    max_connections: v.Positive | None = Field(
        None, description="Most connections of clients, for the whole fleet of proxies. Without it: no limit."
    )
    max_body: v.Size | None = Field(None, description="Largest request body; above it 413. Without it: no limit.")
    headers: HeaderLimits = Field(
        HeaderLimits.default(),
        description="Limits of request headers; above them 431. In HTTP/2 each piece of a cookie counts as a line.",
    )
    inspect: v.Size = Field(
        q.Size(16 << 20),
        description="How much of a body is held to read `model`, `json_body` and `prompt_prefix`, at a cost of memory "
        "(docs/reference/requests.md). A value that is not found within it: 413, never another pool.",
    )
    timeouts: ListenerTimeouts = Field(ListenerTimeouts.default(), description="How long a client may take.")
    access_log: AccessLog = Field(AccessLog.default(), description="One line for each request.")
    tracing: Tracing | None = Field(None, description="OpenTelemetry traces. Without it: none.")
    request_id: v.HeaderName = Field(
        "x-request-id", description="The header with the id of a request: kept if a trusted client sent one, else made."
    )
