"""A pool's `health`: active checks, passive checks of responses, and telemetry decide which replicas get requests."""

from typing import Annotated, ClassVar

from pydantic import Field

from lbctl.base import quantities as q
from lbctl.model import values as v
from lbctl.model.section import Choice, Nothing, Section


class HttpCheck(Section):
    path: v.CheckPath = Field(
        "/health", description="Path of the request. Prefer a path that reports whether the model can answer."
    )
    host: v.Host | None = Field(None, description="Host header to send. Default: chosen by the proxy.")
    statuses: Annotated[list[v.Status], Field(min_length=1)] = Field(
        [200], description="Status codes that count as healthy."
    )
    body_contains: v.TextOrNone = Field("", description="Text that a healthy replica's response body contains.")


class GrpcCheck(Section):
    service: v.ServiceOrNone = Field(
        "", description="Service to check. If it is empty, the check covers the server as a whole."
    )


class Active(Section):
    CHOICES: ClassVar = (Choice(("http", "grpc", "tcp")),)

    port: v.Port | None = Field(None, description="Port to check. Default: the replica's port.")
    http: HttpCheck | None = Field(None, description="Checks that send an HTTP GET request.")
    grpc: GrpcCheck | None = Field(None, description="Checks that use the gRPC health checking protocol.")
    tcp: Nothing | None = Field(None, description="Checks that only open a TCP connection.")
    interval: v.Duration = Field(q.Duration(10_000), description="Time between checks of a replica.")
    timeout: v.Duration = Field(
        q.Duration(3_000), description="Timeout for each check. The default is at most the interval."
    )
    jitter: v.Percent = Field(q.Percent(10), description="Random variation of the interval, to spread out the checks.")
    unhealthy_threshold: v.Positive = Field(
        3, description="Number of consecutive failed checks after which a replica is unhealthy."
    )
    healthy_threshold: v.Positive = Field(
        2, description="Number of consecutive successful checks after which a replica is healthy again."
    )


class Agent(Section):
    port: Annotated[int, Field(ge=1, le=65534)] = Field(
        description="HTTP port of the agent on each replica's host. Each replica on the same host needs its own "
        "agent with a separate `agent_port`. HAProxy sends its agent checks to the next port.",
    )


class ErrorRate(Section):
    percent: v.Percent = Field(q.Percent(50), description="Share of errors above which a replica is ejected.")
    window: v.Duration = Field(q.Duration(10_000), description="Time window in which errors are counted.")
    min_requests: v.Positive = Field(
        20, description="Minimum number of requests in the window. With fewer requests, no replica is ejected."
    )


class Passive(Section):
    consecutive_5xx: v.Positive = Field(
        5, description="Number of consecutive 5xx responses after which a replica is ejected."
    )
    consecutive_connect_failures: v.Positive = Field(
        3, description="Number of consecutive failed connections after which a replica is ejected."
    )
    error_rate: ErrorRate = Field(ErrorRate.default(), description="Ejects a replica based on its error rate.")
    ejection_time: v.Duration = Field(q.Duration(30_000), description="Time that a replica stays ejected.")
    max_ejection: v.Percent = Field(
        q.Percent(50),
        description="Largest share of the pool that may be ejected, including ejections by `deep`. Default: no limit "
        "for a pool with a fallback.",
    )


class Deep(Section):
    min_free_memory: v.Size | None = Field(
        None,
        description="Minimum free GPU memory; a replica with less is ejected. This limit does not apply to engines "
        "that reserve memory (vllm, sglang, trtllm). Default: no limit.",
    )
    max_temperature: v.Temperature = Field(
        q.Temperature(90), description="Temperature above which a replica's weight drops to its `floor`."
    )
    fatal_xids: list[v.Positive] = Field(
        [48, 64, 74, 79, 95],
        description="XID errors that cause a replica to be ejected when its GPU driver reports a new one.",
    )
    stalled_after: v.Duration = Field(
        q.Duration(15_000),
        description="Time without progress, while requests are in flight, after which a replica is ejected.",
    )


class LoadShedding(Section):
    min_healthy: v.Percent = Field(q.Percent(50), description="Share of healthy replicas below which requests get 503.")
    retry_after: v.Duration = Field(
        q.Duration(5_000), description="Value of the `Retry-After` header sent to the client."
    )


class Health(Section):
    active: Active | None = Field(
        None, description="Active checks of each replica. Default: none, or TCP if a proxy needs a check."
    )
    agent: Agent | None = Field(
        None,
        description="`lbctl agent` next to each replica. Active checks then query the agent, with the timing of "
        "`active` (by default every 2 s). The agent checks the path in `active.http`. Default: no agent.",
    )
    passive: Passive = Field(Passive.default(), description="Ejects replicas based on their responses to clients.")
    deep: Deep = Field(
        Deep.default(),
        description="With `serve`: ejects replicas based on telemetry, if the sources provide the signals.",
    )
    fail_open: bool = Field(
        False,
        description="If all active checks of the pool fail, its replicas are used as if none had failed. Drained "
        "replicas and replicas ejected by `deep` still get no requests. A fallback pool of the route takes precedence.",
    )
    load_shedding: LoadShedding | None = Field(
        None, description="Rejects requests while too few replicas are healthy. Default: never."
    )
