"""`health` of a pool: which replicas get requests, by active checks, by responses, by telemetry."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from lbctl.base import quantities as q
from lbctl.model import values as v
from lbctl.model.section import Choice, Nothing, Section


class HttpCheck(Section):
    path: v.CheckPath = Field("/health", description="What is asked for. Best one that proves that the model answers.")
    host: v.Host | None = Field(None, description="The Host of the request. Without it: the proxy's choice.")
    statuses: Annotated[list[v.Status], Field(min_length=1)] = Field([200], description="The answers that are good.")
    body_contains: v.TextOrNone = Field("", description="What a good answer also holds.")


class GrpcCheck(Section):
    service: v.ServiceOrNone = Field("", description="The service that is asked for; empty: the whole server.")


class Active(Section):
    CHOICES: ClassVar = (Choice(("http", "grpc", "tcp")),)

    port: v.Port | None = Field(None, description="The port that is asked. Without it: the replica's own.")
    http: HttpCheck | None = Field(None, description="By a GET.")
    grpc: GrpcCheck | None = Field(None, description="By gRPC's health protocol.")
    tcp: Nothing | None = Field(None, description="By a connection alone, which proves least.")
    interval: v.Duration = Field(q.Duration(10_000), description="Between two checks of a replica.")
    timeout: v.Duration = Field(
        q.Duration(3_000), description="How long a check may take. Without it at most the interval."
    )
    jitter: v.Percent = Field(q.Percent(10), description="So much of the interval is by chance, so that checks spread.")
    unhealthy_threshold: v.Positive = Field(3, description="After so many bad checks in a row a replica is out.")
    healthy_threshold: v.Positive = Field(2, description="After so many good ones in a row it is back.")


class ErrorRate(Section):
    percent: v.Percent = Field(q.Percent(50), description="Above this share of errors a replica is out.")
    window: v.Duration = Field(q.Duration(10_000), description="The time in which they are counted.")
    min_requests: v.Positive = Field(20, description="With fewer requests in it nothing is judged.")


class Passive(Section):
    consecutive_5xx: v.Positive = Field(5, description="After so many 5xx in a row a replica is out.")
    consecutive_connect_failures: v.Positive = Field(
        3, description="After so many failed connections in a row a replica is out."
    )
    error_rate: ErrorRate = Field(ErrorRate(), description="Out by the share of errors.")
    ejection_time: v.Duration = Field(q.Duration(30_000), description="How long it stays out.")
    max_ejection: v.Percent = Field(
        q.Percent(50),
        description="Of the pool, at most; what `deep` takes out counts too. Of one with a fallback, without it: all.",
    )


class Deep(Section):
    min_free_memory: v.Size | None = Field(
        None,
        description="With less free GPU memory a replica is out. Not judged for engines that reserve memory (vllm, "
        "sglang, trtllm). Without it: not judged.",
    )
    max_temperature: v.Temperature = Field(
        q.Temperature(90), description="Above it a replica goes down to the `floor` of its weight."
    )
    fatal_xids: list[v.Positive] = Field(
        [48, 64, 74, 79, 95], description="A replica whose driver newly reports one of these errors is out."
    )
    stalled_after: v.Duration = Field(
        q.Duration(15_000), description="Requests are there and nothing has moved for so long: out."
    )


class LoadShedding(Section):
    min_healthy: v.Percent = Field(
        q.Percent(50), description="Below this share of healthy replicas requests are answered 503."
    )
    retry_after: v.Duration = Field(q.Duration(5_000), description="The value of `Retry-After` for the client.")


class Health(Section):
    active: Active | None = Field(
        None, description="Asks each replica. Without it: nothing, or TCP where a proxy needs a check."
    )
    passive: Passive = Field(Passive(), description="Learns from the answers to clients.")
    deep: Deep = Field(Deep(), description="Under `serve`: learns from telemetry, where the sources give the signals.")
    load_shedding: LoadShedding | None = Field(
        None, description="Refuse a part early, so that the rest is served. Without it: no."
    )
