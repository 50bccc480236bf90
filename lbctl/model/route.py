"""`routes`: which request goes to which pool, and how it is treated on the way."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, PlainValidator, ValidationError, WithJsonSchema, model_validator

from lbctl.base import quantities as q
from lbctl.base.diagnostics import did_you_mean, show
from lbctl.model import values as v
from lbctl.model.section import Choice, Section, refuse


class Match(Section):
    CHOICES: ClassVar = (Choice(("path", "path_prefix", "path_regex"), required=False),)

    hosts: list[v.HostPattern] = []
    path: v.UrlPath | None = None
    path_prefix: v.UrlPath | None = None
    path_regex: v.Regex | None = None
    methods: list[v.Method] = []
    headers: v.HeaderMap = {}
    model: list[v.ModelPattern] = []


class Rewrite(Section):
    path_prefix: v.UrlPath | None = None
    host: v.Host | None = None


class Pin(Section):
    CHOICES: ClassVar = (Choice(("header", "cookie")),)

    header: v.HeaderName | None = None
    cookie: v.CookieName | None = None
    equals: v.HeaderValue
    pool: v.Name

    @model_validator(mode="after")
    def _can_match(self) -> Self:
        if self.cookie is not None and not v.is_cookie_value(self.equals):
            hint = "no space, quote, comma, semicolon or backslash"
            raise refuse("LB013", f"{show(self.equals)} is not a cookie's value", hint, ("equals",))
        return self


class StickySplit(Section):
    CHOICES: ClassVar = (Choice(("header", "cookie")),)

    header: v.HeaderName | None = None
    cookie: v.CookieName | None = None
    ttl: v.Duration = q.Duration(3_600_000)


class Mirror(Section):
    pool: v.Name
    percent: v.Percent = q.Percent(100)


class RouteTimeouts(Section):
    request: v.DurationOrUnlimited = None
    idle: v.Duration = q.Duration(300_000)


class Backoff(Section):
    base: v.Duration = q.Duration(25)
    max: v.Duration = q.Duration(250)


RetryCondition = Literal["connect_failure", "refused_stream", "reset_before_request"]


class Retry(Section):
    attempts: Annotated[int, Field(ge=0, le=10)] = 2
    when: list[RetryCondition] = ["connect_failure", "refused_stream", "reset_before_request"]
    idempotent: bool = False
    budget: v.Percent | None = None
    backoff: Backoff = Backoff()


class HeaderKey(Section):
    header: v.HeaderName


_BY = ("tenant", "client_ip", "all")


def _limit_by(value: object) -> str | HeaderKey:
    if isinstance(value, dict):
        try:
            return HeaderKey.model_validate(value)
        except ValidationError as error:
            place = error.errors()[0]["loc"]
            raise refuse("LB013", f"{show(value)} is no key of a limit", "{header: NAME}", place) from None
    if value not in _BY:
        hint = did_you_mean(value, _BY) if isinstance(value, str) else ""
        raise refuse("LB013", f"{show(value)} is no key of a limit", hint or "tenant, client_ip, all or {header: NAME}")
    return str(value)


class RateLimit(Section):
    CHOICES: ClassVar = (Choice(("rate", "concurrent")),)

    by: Annotated[
        str | HeaderKey,
        PlainValidator(_limit_by),
        WithJsonSchema({"oneOf": [{"enum": list(_BY)}, HeaderKey.model_json_schema()]}),
    ]
    rate: v.Rate | None = None
    burst: v.Positive | None = None
    concurrent: v.Positive | None = None


class ApiKeys(Section):
    file: v.FilePath
    header: v.HeaderName = "authorization"


class Jwt(Section):
    issuer: v.Issuer
    jwks_file: v.FilePath
    audiences: list[v.Issuer] = []
    tenant_claim: v.Claim | None = None


class Auth(Section):
    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["api_keys"]}, {"required": ["jwt"]}]})

    api_keys: ApiKeys | None = None
    jwt: Jwt | None = None
    forward_tenant: v.HeaderName | None = None
    forward_credentials: bool = False

    @model_validator(mode="after")
    def _protects(self) -> Self:
        if self.api_keys is None and self.jwt is None:
            raise refuse("LB014", "nothing is chosen here", "api_keys or jwt, or both, is needed")
        return self


class HeaderRules(Section):
    set: v.HeaderMap = {}
    remove: list[v.HeaderName] = []


class Headers(Section):
    request: HeaderRules = HeaderRules()
    response: HeaderRules = HeaderRules()


class Respond(Section):
    CHOICES: ClassVar = (Choice(("status", "redirect")), Choice(("body", "redirect"), required=False))

    status: Annotated[int, Field(ge=200, le=599)] | None = None
    body: v.Body = ""
    redirect: Literal["https"] | None = None


class Step(Section):
    percent: v.Percent
    hold: v.Duration | None = None


class MaxLatency(Section):
    metric: Literal["first_byte", "total"] = "first_byte"
    percentile: Literal["p50", "p90", "p95", "p99"] = "p95"
    ratio: v.PositiveNumber = 1.2


class Analysis(Section):
    interval: v.Duration = q.Duration(30_000)
    min_requests: v.Positive = 1000
    max_error_rate: v.Percent = q.Percent(1)
    max_latency: MaxLatency | None = None
    failures: v.Positive = 3
    on_failure: Literal["rollback", "pause"] = "rollback"


class Rollout(Section):
    to: v.Name
    mode: Literal["manual", "timed", "analysis"] = "analysis"
    steps: Annotated[list[Step], Field(min_length=1)]
    analysis: Analysis | None = None


class Route(Section):
    CHOICES: ClassVar = (Choice(("pool", "split", "respond")),)

    listeners: Annotated[list[v.Name], Field(min_length=1)] | None = None
    match: Match = Match()
    pool: v.Name | None = None
    split: dict[v.Name, v.Count] | None = None
    respond: Respond | None = None
    rewrite: Rewrite | None = None
    pin: list[Pin] = []
    sticky_split: StickySplit | None = None
    mirror: Mirror | None = None
    fallback: v.Name | None = None
    queue_priority: Literal["high", "normal", "low"] = "normal"
    websocket: bool = False
    timeouts: RouteTimeouts = RouteTimeouts()
    retry: Retry = Retry()
    rate_limit: list[RateLimit] = []
    auth: Auth | None = None
    headers: Headers = Headers()
    regions: list[v.Place] = []
    rollout: Rollout | None = None

    @property
    def pools(self) -> list[str]:
        """Those that a request is sent to first: of the split, and of the pins."""
        return [*([self.pool] if self.pool else self.split or {}), *(pin.pool for pin in self.pin)]
