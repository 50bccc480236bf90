"""`health` of a pool: which replicas get requests, by active checks, by responses, by telemetry."""

from typing import Annotated, ClassVar

from pydantic import Field

from lbctl.base import quantities as q
from lbctl.model import values as v
from lbctl.model.section import Choice, Nothing, Section


class HttpCheck(Section):
    path: v.CheckPath = Field(
        "/health", description="The path of the request. Prefer one that shows that the model can answer."
    )
    host: v.Host | None = Field(None, description="The Host of the request. Without it: the proxy's choice.")
    statuses: Annotated[list[v.Status], Field(min_length=1)] = Field(
        [200], description="The statuses of a healthy replica."
    )
    body_contains: v.TextOrNone = Field("", description="The text that the body of a healthy replica contains.")


class GrpcCheck(Section):
    service: v.ServiceOrNone = Field("", description="The service to check; empty: the server as a whole.")


class Active(Section):
    CHOICES: ClassVar = (Choice(("http", "grpc", "tcp")),)

    port: v.Port | None = Field(None, description="The port to check. Without it: the replica's own.")
    http: HttpCheck | None = Field(None, description="Checks with an HTTP GET.")
    grpc: GrpcCheck | None = Field(None, description="Checks with the gRPC health checking protocol.")
    tcp: Nothing | None = Field(None, description="Checks that a TCP connection opens, and nothing else.")
    interval: v.Duration = Field(q.Duration(10_000), description="The time between two checks of a replica.")
    timeout: v.Duration = Field(
        q.Duration(3_000), description="The longest time of a check. Without it at most the interval."
    )
    jitter: v.Percent = Field(q.Percent(10), description="The random part of the interval, which spreads the checks.")
    unhealthy_threshold: v.Positive = Field(3, description="The failed checks in a row that make a replica unhealthy.")
    healthy_threshold: v.Positive = Field(2, description="The passed checks in a row that make it healthy again.")


class ErrorRate(Section):
    percent: v.Percent = Field(q.Percent(50), description="Above this share of errors, a replica is ejected.")
    window: v.Duration = Field(q.Duration(10_000), description="The time in which errors are counted.")
    min_requests: v.Positive = Field(20, description="With fewer requests in the window, no replica is ejected.")


class Passive(Section):
    consecutive_5xx: v.Positive = Field(5, description="After so many 5xx in a row, a replica is ejected.")
    consecutive_connect_failures: v.Positive = Field(
        3, description="After so many failed connections in a row, a replica is ejected."
    )
    error_rate: ErrorRate = Field(ErrorRate.default(), description="Ejects a replica by its share of errors.")
    ejection_time: v.Duration = Field(q.Duration(30_000), description="How long a replica stays ejected.")
    max_ejection: v.Percent = Field(
        q.Percent(50),
        description="The largest share of the pool that may be ejected, by `deep` too. Without it, a pool with a "
        "fallback may lose all of its replicas.",
    )


class Deep(Section):
    min_free_memory: v.Size | None = Field(
        None,
        description="With less free GPU memory, a replica is ejected. It does not hold for engines that reserve memory "
        "(vllm, sglang, trtllm). Without it: no limit.",
    )
    max_temperature: v.Temperature = Field(
        q.Temperature(90), description="Above it, the weight of a replica falls to its `floor`."
    )
    fatal_xids: list[v.Positive] = Field(
        [48, 64, 74, 79, 95], description="A replica whose GPU driver newly reports one of these errors is ejected."
    )
    stalled_after: v.Duration = Field(
        q.Duration(15_000), description="A replica with requests and no progress for so long is ejected."
    )


class LoadShedding(Section):
    min_healthy: v.Percent = Field(q.Percent(50), description="Below this share of healthy replicas, requests get 503.")
    retry_after: v.Duration = Field(q.Duration(5_000), description="The value of `Retry-After` for the client.")


class Health(Section):
    active: Active | None = Field(
        None, description="Checks of each replica. Without it: none, or TCP where a proxy needs a check."
    )
    passive: Passive = Field(Passive.default(), description="Ejects replicas by their responses to clients.")
    deep: Deep = Field(
        Deep.default(), description="Under `serve`: ejects replicas by telemetry, where the sources give the signals."
    )
    fail_open: bool = Field(
        False,
        description="When all active checks of the pool fail, its replicas are used as if none had failed. Drained "
        "replicas and those that `deep` ejects still get nothing. A route's fallback pool comes first.",
    )
    load_shedding: LoadShedding | None = Field(
        None, description="Refuses requests while too few replicas are healthy. Without it: never."
    )
