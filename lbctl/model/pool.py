"""`pools`: replicas that serve the same model, and how a proxy treats them."""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, PlainValidator, ValidationError
from pydantic_core import CoreSchema

from lbctl.base import quantities as q
from lbctl.base.diagnostics import show
from lbctl.model import values as v
from lbctl.model.group_by import GroupBy
from lbctl.model.health import Health
from lbctl.model.kubernetes import Kubernetes
from lbctl.model.section import Choice, Nothing, OneOf, Section, refuse
from lbctl.model.telemetry import Telemetry, Weighting
from lbctl.model.upstream import Credentials, Upstream


class Model(Section):
    name: v.ModelName = Field(description="Name of the model in requests and engines.")
    version: v.Label | None = Field(None, description="Version of the model, for logs (`variant`) and rollouts.")
    adapters: list[v.ModelName] = Field(
        [], description="LoRA adapters that the replicas serve in addition to the model."
    )


class HashKey(Section):
    CHOICES: ClassVar = (Choice(("prompt_prefix", "header", "cookie", "query", "source_ip", "json_body")),)

    prompt_prefix: Annotated[int, Field(ge=1, le=65536)] | None = Field(
        None,
        description="Number of bytes of the prompt, or of the first messages, that form the key together with the "
        "model.",
    )
    header: v.HeaderName | None = Field(None, description="Header whose value is the key.")
    cookie: v.CookieName | None = Field(None, description="Cookie whose value is the key.")
    query: v.QueryName | None = Field(None, description="Query parameter whose value is the key.")
    source_ip: Nothing | None = Field(None, description="The client's address is the key.")
    json_body: v.JsonPath | None = Field(None, description="Field of the JSON body whose value is the key.")


class Hash(Section):
    key: HashKey = Field(description="Key of a request. Requests with the same key go to the same replica.")
    bounded_load: v.PositiveNumber | None = Field(
        None,
        description="Maximum load of a replica, as a multiple of the mean; further requests go to the next "
        "replica. Default: no limit.",
    )


class BodyKey(Section):
    body: v.JsonPath = Field(description="Field of the JSON body, for example $.prompt_cache_key.")


class PickPrefix(Section):
    block: Annotated[int, Field(ge=16, le=65536)] = Field(
        256, description="Size of a block in bytes. Prefixes match in whole blocks."
    )
    blocks: Annotated[int, Field(ge=1, le=1024)] = Field(
        128, description="Maximum number of blocks that are remembered for each prompt."
    )


class _OrOff:
    """Adds the word `off` to the JSON Schema of a section."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"oneOf": [handler(core_schema), {"enum": ["off"]}]}


def _session_key(value: object) -> str | BodyKey:
    hint = "write a header name or {body: $.FIELD}"
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", value, re.ASCII):
        return value.lower()
    if isinstance(value, dict):
        try:
            return BodyKey.model_validate(value)
        except ValidationError as error:
            place = error.errors()[0]["loc"] if "body" in value else ()
            header = value.get("header")
            written = f"write {header}, or {{body: $.FIELD}}" if isinstance(header, str) else hint
            raise refuse("LB013", f"{show(value)} is not a session ID source", written, place) from None
    raise refuse("LB013", f"{show(value)} is not a session ID source", hint)


SessionKey = Annotated[
    str | BodyKey,
    PlainValidator(_session_key),
    OneOf({"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$", "grammar": "a header name"}, BodyKey),
]
"""A header, or a field of the JSON body."""


def _prefix(value: object) -> object:
    if value == "off":
        return None
    if not isinstance(value, dict | PickPrefix):
        hint = "write off, or a map such as {block: 256, blocks: 128}; if it is not set, prefixes are matched"
        raise refuse("LB013", f"{show(value)} is not an allowed value", hint)
    return value


class Pick(Section):
    session: list[SessionKey] | None = Field(
        None,
        description="Sources of the session ID; the first source that a request contains is used. Default: the headers "
        "and body fields that common clients send (docs/reference/picker.md). With `prefix: off`, only headers.",
    )
    prefix: Annotated[PickPrefix | None, BeforeValidator(_prefix), _OrOff()] = Field(
        PickPrefix.default(),
        description="For requests without a session: prefer the replica with the longest matching prefix of model, "
        "adapter and prompt. With `off`, the body is not read for this purpose.",
    )
    bound: v.PositiveNumber = Field(
        1.25,
        description="Maximum load of a replica that is preferred for its cache, as a multiple of the mean. The "
        "load is the number of prompt tokens to compute or of requests in flight, relative to the weight and with a "
        "margin.",
    )
    timeout: v.Duration = Field(
        q.Duration(200),
        description="Timeout of a pick. On timeout, or if the picker fails, the proxy falls back to `otherwise`. On "
        "HAProxy, the pools of a listener share the longest timeout.",
    )
    otherwise: Literal["round_robin", "least_request", "least_time", "random", "hash"] = Field(
        "least_request", description="Algorithm that the proxy uses for requests without a pick."
    )


class Balance(Section):
    algorithm: Literal["round_robin", "least_request", "least_time", "random", "hash", "pick"] = Field(
        "least_request",
        description="How a replica is selected. `least_request`: the replica with the fewest requests relative to its "
        "weight. `hash`: the replica that got the same key before. `pick`: the replica that the picker of `serve` "
        "selects.",
    )
    hash: Hash | None = Field(
        None, description="Hash settings; required for the `hash` algorithm, and for `pick` with `otherwise: hash`."
    )
    pick: Pick | None = Field(
        None, description="Settings for the `pick` algorithm. If it is not set, the default of each key applies."
    )


class Affinity(Section):
    CHOICES: ClassVar = (Choice(("cookie", "header")),)

    cookie: v.CookieName | None = Field(None, description="Cookie that identifies the replica; the proxy sets it.")
    header: v.HeaderName | None = Field(
        None,
        description="Header with the session ID in the replica's response and in the client's later requests, such "
        "as `mcp-session-id`. All requests of the session go to this replica.",
    )
    ttl: v.Duration | None = Field(
        None,
        description="Lifetime of the cookie, or maximum idle time of a session. Default: 30 minutes, and 24 hours for "
        "sessions.",
    )


class Replica(Section):
    address: v.Address = Field(description="Address of the replica.")
    name: v.Name | None = Field(
        None,
        description="Name of the replica. Default: the address, with `-` in place of characters that a name cannot "
        "contain.",
    )
    gpu: v.Gpu | None = Field(
        None, description="Type of the replica's GPUs; `lbctl gpus` lists the types and their throughput."
    )
    gpu_count: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="Number of GPUs. Default: the number of `devices`, or 1."
    )
    devices: list[v.Device] = Field(
        [],
        description='GPUs of the replica on its host: indices such as `"0"`, UUIDs, or `"0:3"` for MIG slice 3 of '
        "GPU 0.",
    )
    weight: v.Capacity | None = Field(
        None,
        description="Capacity, on the same scale as the capacities of other replicas. Default: throughput of the "
        "GPU × number of GPUs.",
    )
    region: v.Place | None = Field(None, description="Region of the replica. Default: none.")
    zone: v.Place | None = Field(
        None, description="Zone within the region. Zones in different regions can have the same name."
    )
    priority: Annotated[int, Field(ge=0, le=127)] = Field(
        0,
        description="Priority of the replica; 0 is used first. Replicas of the next priority get requests if replicas "
        "of the first priority are unhealthy.",
    )
    drain: bool = Field(False, description="Drain the replica: it finishes its requests and gets no new ones.")
    labels: dict[v.Label, v.LabelValue] = Field({}, description="Your own labels.")
    telemetry: Telemetry | None = Field(
        None, description="Telemetry settings of this replica, which replace the settings of the pool."
    )
    agent_port: Annotated[int, Field(ge=1, le=65534)] | None = Field(
        None, description="HTTP port of this replica's agent. Default: the port in `health.agent`."
    )
    ports: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None,
        description="Number of replicas on consecutive ports of the host, starting with the port of `address`. "
        "The replicas are named NAME-0, NAME-1 and so on. The other keys apply to each of them; `devices` are divided "
        "among them.",
    )


class Locality(Section):
    prefer: Literal["zone", "region"] = Field("zone", description="Prefer replicas in the proxy's zone or region.")
    spill_below: v.Percent = Field(
        q.Percent(70),
        description="Share of healthy replicas below which replicas of the next priority also get requests.",
    )


class Connections(Section):
    idle: v.DurationOrUnlimited = Field(
        q.Duration(4_000),
        description="Time that an idle connection stays open. Use a shorter time than the server's keep-alive "
        "timeout (uvicorn: 5s). Use `unlimited` if the servers never close connections; HAProxy then keeps HTTP/1 "
        "connections too.",
    )
    max_requests: v.Positive | None = Field(
        None, description="Maximum number of requests per connection. Default: no limit."
    )


class PoolTimeouts(Section):
    connect: v.Duration = Field(q.Duration(2_000), description="Timeout for a connection attempt.")
    queue: v.Duration = Field(
        q.Duration(10_000),
        description="Maximum time that a request waits in the proxy for a free replica. In the `queue` of the pool, a "
        "request waits at most `max_wait`.",
    )


class PerReplica(Section):
    max_connections: v.Positive | None = Field(None, description="Maximum number of connections to a replica.")
    max_requests: v.Positive | None = Field(None, description="Maximum number of requests in flight to a replica.")


class CircuitBreaker(Section):
    max_connections: v.Positive | None = Field(
        None,
        description="Maximum number of connections. Default: 512 for each replica, with the number of replicas "
        "rounded up to a power of two.",
    )
    max_pending_requests: v.Positive | None = Field(
        None, description="Maximum number of waiting requests. Default: `max_requests`."
    )
    max_requests: v.Positive | None = Field(
        None,
        description="Maximum number of requests in flight. Default: 512 for each replica, with the number of replicas "
        "rounded up to a power of two.",
    )
    max_retries: v.Positive | None = Field(
        None, description="Maximum number of concurrent retries. Default: `max_requests`."
    )
    per_replica: PerReplica = Field(PerReplica.default(), description="Limits for each replica. Default: none.")


class SlowStart(Section):
    window: v.Duration = Field(q.Duration(60_000), description="Time until a replica reaches its full weight.")
    min_weight: v.Percent = Field(
        q.Percent(10),
        description="Initial weight, as a share of the full weight. With `pick` and on nginx, the weight is higher if "
        "slow start would otherwise leave less than half of the pool's capacity in use.",
    )
    aggression: v.PositiveNumber = Field(
        1.0, description="Shape of the increase. 1 is linear; with a higher value, the weight rises faster at first."
    )


class QueuePriority(Section):
    header: v.HeaderName = Field(
        description="Header in which a client chooses the priority of its request: `high`, `normal` or `low`."
    )
    tenants: Annotated[dict[v.Name, Literal["high", "normal", "low"]], Field(min_length=1)] = Field(
        description="Tenants that may choose a priority, each with the highest priority that it can choose. For all "
        "other requests, the `queue_priority` of the route applies."
    )


class Queue(Section):
    max_wait: v.Duration = Field(
        q.Duration(10_000), description="Maximum time that a request waits; after that, it gets 429."
    )
    max_requests: Annotated[int, Field(ge=1, le=10_000)] = Field(
        500,
        description="Maximum number of requests that wait at each picker. If more arrive, the newest request of the "
        "group with the most waiting requests gets 429.",
    )
    order: Literal["fair", "fifo"] = Field(
        "fair",
        description="Order of requests with the same priority. `fair`: the groups of `by` share the replicas by "
        "estimated prompt tokens, and each group's oldest request is first. `fifo`: the oldest request is first.",
    )
    by: GroupBy = Field(
        "tenant",
        description="Which requests form a group: requests of the same tenant, from the same client or with the same "
        "header value, or all requests.",
    )
    weights: dict[v.Name, v.PositiveNumber] = Field(
        {}, description="With `by: tenant`: shares of individual tenants, relative to each other. Default: 1 for each."
    )
    priority: QueuePriority | None = Field(
        None,
        description="Header in which some tenants choose the priority of a request. Default: none; the "
        "`queue_priority` of the route applies.",
    )


class Dns(Section):
    name: v.Host = Field(description="DNS name to resolve. Each address is a replica.")
    port: v.Port = Field(description="Port of the replicas.")
    refresh: v.Duration = Field(q.Duration(10_000), description="Interval between lookups.")
    max_replicas: Annotated[int, Field(ge=1, le=4096)] = Field(
        32, description="Maximum number of addresses; further addresses are ignored."
    )
    gpu: v.Gpu | None = Field(None, description="GPU type of the replicas.")
    resolvers: list[v.Address] = Field([], description="Name servers. Default: the system's name servers.")


class FileDiscovery(Section):
    path: v.FilePath = Field(
        description="File with targets in the Prometheus `file_sd` format; lbctl watches it for changes. The "
        "labels gpu, gpu_count, weight, region, zone, priority and name set keys of the replica; other labels "
        "become labels of the replica."
    )


class Discovery(Section):
    CHOICES: ClassVar = (Choice(("dns", "file", "kubernetes")),)

    dns: Dns | None = Field(
        None,
        description="Replicas from a DNS name. With `render`, the proxy resolves the name; with `serve`, lbctl "
        "resolves it and updates the proxy.",
    )
    file: FileDiscovery | None = Field(None, description="Replicas from a file that another program writes.")
    kubernetes: Kubernetes | None = Field(
        None,
        description="Replicas from the endpoints of a Kubernetes service, or from the pods of an InferencePool. "
        "`serve` watches them and updates the proxies.",
    )


class PoolTls(Section):
    ca: v.FilePath | None = Field(
        None,
        description="PEM CA bundle for verifying the replicas' certificates; `system` uses the system CAs. Default: no "
        "verification.",
    )
    server_name: v.Host | None = Field(
        None, description="Server name for SNI, which the replica's certificate must contain."
    )
    certificate: v.FilePath | None = Field(None, description="Client certificate of the proxy (mTLS), PEM.")
    key: v.FilePath | None = Field(None, description="Private key of the client certificate, PEM.")


class Pool(Section):
    CHOICES: ClassVar = (Choice(("replicas", "discovery")),)

    replicas: Annotated[list[Replica], Field(min_length=1)] = Field([], description="Static list of replicas.")
    discovery: Discovery | None = Field(None, description="Source of replicas outside this file.")
    model: Model | None = Field(None, description="Model that the replicas serve.")
    labels: dict[v.Label, v.LabelValue] = Field({}, description="Your own labels.")
    protocol: Literal["http1", "http2", "grpc"] = Field("http1", description="Protocol of the replicas.")
    balance: Balance = Field(Balance.default(), description="Load-balancing settings.")
    affinity: Affinity | None = Field(
        None, description="Keep a client on its replica while the replica is healthy. Default: no."
    )
    drain_deadline: v.Duration = Field(
        q.Duration(120_000), description="With `serve`: maximum time for a drained replica to finish its requests."
    )
    locality: Locality | None = Field(
        None, description="Preference for replicas that are near the proxy. Default: all replicas are equal."
    )
    connections: Connections = Field(Connections.default(), description="Connections to replicas.")
    timeouts: PoolTimeouts = Field(PoolTimeouts.default(), description="Timeouts before a request is sent.")
    circuit_breaker: CircuitBreaker = Field(
        CircuitBreaker.default(),
        description="Limits across all proxies. Requests above a limit are rejected immediately, or wait in the "
        "`queue`.",
    )
    queue: Queue | None = Field(
        None,
        description="Queue at the picker for requests that arrive while all replicas are full. Requires `algorithm: "
        "pick`. Default: no queue.",
    )
    slow_start: SlowStart | None = Field(
        None,
        description="Gradual increase of the weight of a replica that is new or was down. Default: on, except with "
        "`hash`.",
    )
    health: Health = Field(Health.default(), description="Health checks and ejection.")
    telemetry: Telemetry | None = Field(
        None, description="Metrics that `serve` reads from the replicas. Default: none."
    )
    weighting: Weighting | None = Field(None, description="Weights that `serve` computes from telemetry.")
    tls: PoolTls | None = Field(None, description="TLS to replicas. Default: plain text.")
    credentials: Credentials | None = Field(
        None,
        description="API key for the replicas, which replaces the client's header of the same name in requests. The "
        "key is also sent with active HTTP and gRPC checks, but not to agents, and with telemetry requests to a "
        "replica's own address.",
    )
    upstream: Upstream | None = Field(
        None, description="Settings for a hosted API. Default: the replicas are your own servers."
    )
