"""`pools`: replicas that serve the same model, and how a proxy treats them."""

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, PlainValidator, ValidationError
from pydantic_core import CoreSchema

from lbctl.base import quantities as q
from lbctl.base.diagnostics import show
from lbctl.model import values as v
from lbctl.model.health import Health
from lbctl.model.kubernetes import Kubernetes
from lbctl.model.section import Choice, Nothing, OneOf, Section, refuse
from lbctl.model.telemetry import Telemetry, Weighting
from lbctl.model.upstream import Credentials, Upstream


class Model(Section):
    name: v.ModelName = Field(description="The model's name, as clients and engines write it.")
    version: v.Label | None = Field(None, description="Tells versions apart, in logs (`variant`) and rollouts.")
    adapters: list[v.ModelName] = Field([], description="The LoRA adapters that it serves beside itself.")


class HashKey(Section):
    CHOICES: ClassVar = (Choice(("prompt_prefix", "header", "cookie", "query", "source_ip", "json_body")),)

    prompt_prefix: Annotated[int, Field(ge=1, le=65536)] | None = Field(
        None, description="So many bytes of the prompt, or of the first messages, with the model."
    )
    header: v.HeaderName | None = Field(None, description="The value of this header.")
    cookie: v.CookieName | None = Field(None, description="The value of this cookie.")
    query: v.QueryName | None = Field(None, description="The value of this parameter of the query.")
    source_ip: Nothing | None = Field(None, description="The client's address.")
    json_body: v.JsonPath | None = Field(None, description="The value of this field of the JSON body.")


class Hash(Section):
    key: HashKey = Field(description="Requests with the same key go to the same replica.")
    bounded_load: v.PositiveNumber | None = Field(
        None, description="No replica above so many times the mean: the next one gets the rest. Without it: no bound."
    )


class BodyKey(Section):
    body: v.JsonPath = Field(description="A field of the JSON body, as $.prompt_cache_key.")


class PickPrefix(Section):
    block: Annotated[int, Field(ge=16, le=65536)] = Field(
        256, description="The size of a block in bytes: a beginning is recognised in whole blocks."
    )
    blocks: Annotated[int, Field(ge=1, le=1024)] = Field(
        128, description="The most blocks that are remembered of a prompt."
    )


class _OrOff:
    """Adds the word `off` to the JSON Schema of a section."""

    def __get_pydantic_json_schema__(self, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"oneOf": [handler(core_schema), {"enum": ["off"]}]}


def _session_key(value: object) -> str | BodyKey:
    hint = "the name of a header, or {body: $.FIELD}"
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", value, re.ASCII):
        return value.lower()
    if isinstance(value, dict):
        try:
            return BodyKey.model_validate(value)
        except ValidationError as error:
            place = error.errors()[0]["loc"] if "body" in value else ()
            header = value.get("header")
            written = f"write {header}, or {{body: $.FIELD}}" if isinstance(header, str) else hint
            raise refuse("LB013", f"{show(value)} names no session key", written, place) from None
    raise refuse("LB013", f"{show(value)} names no session key", hint)


SessionKey = Annotated[
    str | BodyKey,
    PlainValidator(_session_key),
    OneOf({"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$", "grammar": "a header's name"}, BodyKey),
]
"""A header, or a field of the JSON body."""
PICK_SESSION: tuple[str | BodyKey, ...] = (
    "x-session-id",
    "x-correlation-id",
    BodyKey(body="$.prompt_cache_key"),
    BodyKey(body="$.user"),
)
"""The session keys of a pool that names none; without the fields of the body where `prefix` is off."""


def _prefix(value: object) -> object:
    if value == "off":
        return None
    if not isinstance(value, dict | PickPrefix):
        hint = "off, or a map as {block: 256, blocks: 128}; without the key prompts are recognised"
        raise refuse("LB013", f"{show(value)} is not known here", hint)
    return value


class Pick(Section):
    session: list[SessionKey] | None = Field(
        None,
        description="What names a session; the first one that a request has counts. Without it: x-session-id, "
        "x-correlation-id and, unless `prefix` is off, the body's prompt_cache_key and user.",
    )
    prefix: Annotated[PickPrefix | None, BeforeValidator(_prefix), _OrOff()] = Field(
        PickPrefix.default(),
        description="For requests without a session: the replica that had the longest same beginning of model, "
        "adapter and prompt. `off`: no body is read for it.",
    )
    bound: v.PositiveNumber = Field(
        1.25,
        description="A replica with more than so many times the mean of unread prompts or of requests in flight, by "
        "weight and with a margin, gets no request for the sake of its cache.",
    )
    timeout: v.Duration = Field(
        q.Duration(200), description="After this time, and on any failure of the picker, `otherwise` chooses."
    )
    otherwise: Literal["round_robin", "least_request", "least_time", "random", "hash"] = Field(
        "least_request", description="The proxy's own algorithm, for requests that the picker does not answer."
    )


class Balance(Section):
    algorithm: Literal["round_robin", "least_request", "least_time", "random", "hash", "pick"] = Field(
        "least_request",
        description="How a replica is chosen. `least_request`: the one with the fewest requests for its "
        "weight. `hash`: the one that had the same key before, for caches. `pick`: the one that `serve` "
        "names.",
    )
    hash: Hash | None = Field(
        None, description="For the algorithm `hash`, and needed there; also for `pick` with `otherwise: hash`."
    )
    pick: Pick | None = Field(None, description="For the algorithm `pick`. Without it: the defaults of its keys.")


class Affinity(Section):
    CHOICES: ClassVar = (Choice(("cookie", "header")),)

    cookie: v.CookieName | None = Field(None, description="The cookie that holds the replica; lbctl sets it.")
    header: v.HeaderName | None = Field(
        None,
        description="The header in which a replica's answer names a session, and in which the client sends it back, "
        "such as `mcp-session-id`. Requests of the session go to that replica.",
    )
    ttl: v.Duration | None = Field(
        None,
        description="How long the cookie lives, or how long a session may be idle. Without it: 30 minutes, and "
        "24 hours for sessions.",
    )


class Replica(Section):
    address: v.Address = Field(description="Where it listens.")
    name: v.Name | None = Field(
        None,
        description="What it is called. Without it: the address, with `-` for each character that a name cannot have.",
    )
    gpu: v.Gpu | None = Field(None, description="The type of its GPU; `lbctl gpus` lists what each one counts.")
    gpu_count: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None, description="How many GPUs it has. Without it: the number of `devices`, else 1."
    )
    devices: list[v.Device] = Field(
        [],
        description='Its GPUs among those of the host: indices as `"0"`, UUIDs, or `"0:3"` for MIG slice 3 of GPU 0.',
    )
    weight: v.Capacity | None = Field(
        None,
        description="What it can carry, on the scale of the others. Without it: throughput of its GPU × their number.",
    )
    region: v.Place | None = Field(None, description="Without it the replica is outside every region.")
    zone: v.Place | None = Field(
        None, description="The zone within its region: two regions may each have one of this name."
    )
    priority: Annotated[int, Field(ge=0, le=127)] = Field(
        0, description="0 is used first; the next rank helps as that one loses health."
    )
    drain: bool = Field(False, description="It finishes what it has and gets nothing new.")
    labels: dict[v.Label, v.LabelValue] = Field({}, description="Words of your own.")
    telemetry: Telemetry | None = Field(None, description="In place of the pool's.")
    ports: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        None,
        description="So many replicas on consecutive ports of the host, from that of `address` on: NAME-0, NAME-1 and "
        "so on. The other keys are those of each; `devices` are divided among them.",
    )


class Locality(Section):
    prefer: Literal["zone", "region"] = Field("zone", description="Replicas there, as seen from the proxy, come first.")
    spill_below: v.Percent = Field(q.Percent(70), description="Below this share of healthy ones the next rank helps.")


class Connections(Section):
    idle: v.DurationOrUnlimited = Field(
        q.Duration(4_000),
        description="How long an idle connection is kept. Shorter than the server's own keep-alive (uvicorn: 5s); "
        "`unlimited` says that servers close none, and then HAProxy keeps HTTP/1 connections too.",
    )
    max_requests: v.Positive | None = Field(
        None, description="After so many requests a connection is closed. Without it: no limit."
    )


class PoolTimeouts(Section):
    connect: v.Duration = Field(q.Duration(2_000), description="How long connecting to a replica may take.")
    queue: v.Duration = Field(q.Duration(10_000), description="How long a request may wait for a free replica.")


class PerReplica(Section):
    max_connections: v.Positive | None = Field(None, description="The most connections to one replica.")
    max_requests: v.Positive | None = Field(None, description="The most requests in flight at one replica.")


class CircuitBreaker(Section):
    max_connections: v.Positive | None = Field(
        None,
        description="The most connections. Without it: 512 for each replica, their number rounded up to a power "
        "of two.",
    )
    max_pending_requests: v.Positive | None = Field(
        None, description="The most requests that wait. Without it: as many as `max_requests`."
    )
    max_requests: v.Positive | None = Field(
        None,
        description="The most requests in flight. Without it: 512 for each replica, their number rounded up to a power "
        "of two.",
    )
    max_retries: v.Positive | None = Field(
        None, description="The most concurrent retries. Without it: as many as `max_requests`."
    )
    per_replica: PerReplica = Field(PerReplica.default(), description="The limits of each replica. Without it: none.")


class SlowStart(Section):
    window: v.Duration = Field(q.Duration(60_000), description="The time until a replica has its full weight.")
    min_weight: v.Percent = Field(q.Percent(10), description="The weight at the start, as a share of the full weight.")
    aggression: v.PositiveNumber = Field(
        1.0, description="The shape of the increase: 1 is linear, more is faster at first."
    )


class Dns(Section):
    name: v.Host = Field(description="Every address of this name is a replica.")
    port: v.Port = Field(description="The port of each.")
    refresh: v.Duration = Field(q.Duration(10_000), description="Between two look-ups.")
    max_replicas: Annotated[int, Field(ge=1, le=4096)] = Field(32, description="More addresses are left out.")
    gpu: v.Gpu | None = Field(None, description="The type of their GPUs.")
    resolvers: list[v.Address] = Field([], description="Name servers to ask. Without them: the system's.")


class FileDiscovery(Section):
    path: v.FilePath = Field(
        description="Targets in the form of Prometheus' `file_sd`, watched. The labels gpu, gpu_count, weight, region, "
        "zone, priority and name are the replica's keys, others its labels."
    )


class Discovery(Section):
    CHOICES: ClassVar = (Choice(("dns", "file", "kubernetes")),)

    dns: Dns | None = Field(
        None, description="With `render` the proxy looks the name up; under `serve` lbctl does, and updates the proxy."
    )
    file: FileDiscovery | None = Field(None, description="A file of replicas that another program writes.")
    kubernetes: Kubernetes | None = Field(
        None, description="The endpoints of a Kubernetes service, which `serve` watches and keeps the proxies up to."
    )


class PoolTls(Section):
    ca: v.FilePath | None = Field(
        None,
        description="The CA that must have signed the replicas' certificates, PEM. `system`: those that the system "
        "trusts. Without it: no verification.",
    )
    server_name: v.Host | None = Field(
        None, description="The name that is sent as SNI and that the replica's certificate must have."
    )
    certificate: v.FilePath | None = Field(None, description="The client certificate of the proxy (mTLS), PEM.")
    key: v.FilePath | None = Field(None, description="The private key of the client certificate, PEM.")


class Pool(Section):
    CHOICES: ClassVar = (Choice(("replicas", "discovery")),)

    replicas: Annotated[list[Replica], Field(min_length=1)] = Field([], description="The replicas, by hand.")
    discovery: Discovery | None = Field(None, description="The replicas, from elsewhere.")
    model: Model | None = Field(None, description="What its replicas serve.")
    labels: dict[v.Label, v.LabelValue] = Field({}, description="Words of your own.")
    protocol: Literal["http1", "http2", "grpc"] = Field("http1", description="What replicas speak.")
    balance: Balance = Field(Balance.default(), description="Which replica gets a request.")
    affinity: Affinity | None = Field(
        None, description="A client stays with its replica while that is healthy. Without it: no."
    )
    drain_deadline: v.Duration = Field(
        q.Duration(120_000), description="How long a drained replica may finish, under `serve`."
    )
    locality: Locality | None = Field(None, description="Near replicas first. Without it: all are equal.")
    connections: Connections = Field(Connections.default(), description="Connections to replicas.")
    timeouts: PoolTimeouts = Field(PoolTimeouts.default(), description="Times before a request is sent.")
    circuit_breaker: CircuitBreaker = Field(
        CircuitBreaker.default(),
        description="Above these limits, for the whole fleet of proxies, requests are refused at once.",
    )
    slow_start: SlowStart | None = Field(
        None,
        description="The weight of a replica that is new or was down increases gradually. Without it: as by default, "
        "but off with `hash`.",
    )
    health: Health = Field(Health.default(), description="Who is fit to get requests.")
    telemetry: Telemetry | None = Field(None, description="What `serve` reads of the replicas. Without it: nothing.")
    weighting: Weighting | None = Field(None, description="What `serve` makes of it.")
    tls: PoolTls | None = Field(None, description="TLS to replicas. Without it: plain text.")
    credentials: Credentials | None = Field(
        None,
        description="The key that the replicas ask for. It is sent with requests, with active checks by HTTP or gRPC "
        "and to telemetry at a replica's own address, in place of the client's header of that name.",
    )
    upstream: Upstream | None = Field(None, description="The pool is a hosted API. Without it: replicas of your own.")
