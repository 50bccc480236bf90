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

    hosts: list[v.HostPattern] = Field([], description="One of these. Without it: any host.")
    path: v.UrlPath | None = Field(None, description="The whole path, as it is.")
    path_prefix: v.UrlPath | None = Field(
        None, description="The path's beginning, of whole segments: `/v1` matches `/v1` and `/v1/chat`, never `/v1x`."
    )
    path_regex: v.Regex | None = Field(
        None, description="The whole path, by RE2. nginx and HAProxy answer 400 where it gives up on a long path."
    )
    methods: list[v.Method] = Field([], description="One of these. Without it: any method.")
    headers: v.HeaderMap = Field({}, description="All of these, with exactly these values.")
    model: list[v.ModelPattern] = Field(
        [],
        description="One of these, in the header `x-model`, else in the JSON body's `model`. Where that decides about "
        "protection, a request that does not name one model clearly is answered 400.",
    )


class Rewrite(Section):
    path_prefix: v.UrlPath | None = Field(None, description="Takes the place of the prefix that matched.")
    host: v.Host | None = Field(None, description="The host that the replica sees.")


class Pin(Section):
    CHOICES: ClassVar = (Choice(("header", "cookie")),)

    header: v.HeaderName | None = Field(None, description="The header that is looked at.")
    cookie: v.CookieName | None = Field(None, description="The cookie that is looked at.")
    equals: v.HeaderValue = Field(description="The value that it must have.")
    pool: v.Name = Field(description="Where the request then goes.")

    @model_validator(mode="after")
    def _can_match(self) -> Self:
        if self.cookie is not None and not v.is_cookie_value(self.equals):
            hint = "no space, quote, comma, semicolon or backslash"
            raise refuse("LB013", f"{show(self.equals)} is not a cookie's value", hint, ("equals",))
        return self


class StickySplit(Section):
    CHOICES: ClassVar = (Choice(("header", "cookie")),)

    header: v.HeaderName | None = Field(None, description="Clients with the same value have the same variant.")
    cookie: v.CookieName | None = Field(None, description="The cookie that holds the variant; lbctl sets it.")
    ttl: v.Duration = Field(q.Duration(3_600_000), description="How long the cookie lives.")


class Mirror(Section):
    pool: v.Name = Field(description="Gets the copies. Its answers are thrown away.")
    percent: v.Percent = Field(q.Percent(100), description="The share of requests that is copied.")


class RouteTimeouts(Section):
    request: v.DurationOrUnlimited = Field(
        None, description="How long the whole may take. Without it: unlimited, as a long generation is no error."
    )
    idle: v.Duration = Field(q.Duration(300_000), description="Without a byte from the replica for so long: an error.")


class Backoff(Section):
    base: v.Duration = Field(q.Duration(25), description="Before the first further try; then it doubles.")
    max: v.Duration = Field(q.Duration(250), description="The longest wait.")


RetryCondition = Literal["connect_failure", "refused_stream", "reset_before_request"]


class Retry(Section):
    attempts: Annotated[int, Field(ge=0, le=10)] = Field(2, description="Further tries, each on another replica.")
    when: list[RetryCondition] = Field(
        ["connect_failure", "refused_stream", "reset_before_request"],
        description="What is tried again: only what the model has not seen, never a 5xx of it.",
    )
    idempotent: bool = Field(
        False, description="A repeat is harmless, as for embeddings: a request may be tried again after a reset."
    )
    budget: v.Percent | None = Field(
        None,
        description="Most retries, of the requests in flight; of the pool's routes the smallest. Without it: none.",
    )
    backoff: Backoff = Field(Backoff(), description="The wait between tries.")


class HeaderKey(Section):
    header: v.HeaderName = Field(description="The header whose value is counted.")


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
    ] = Field(description="Whose requests are counted together: a tenant's, a client's, a header value's, or all.")
    rate: v.Rate | None = Field(None, description="Requests in a time; above it 429.")
    burst: v.Positive | None = Field(None, description="So many may come at once. Without it: the number of `rate`.")
    concurrent: v.Positive | None = Field(None, description="Requests in flight; above it 429.")


class ApiKeys(Section):
    file: v.FilePath = Field(
        description="One a line: `sha256:HEX: TENANT`, or `KEY: TENANT`. A missing file refuses every key."
    )
    header: v.HeaderName = Field(
        "authorization", description="The header that holds the key; a `Bearer ` before it is ignored."
    )


class Jwt(Section):
    issuer: v.Issuer = Field(description="The `iss` that a token must have.")
    jwks_file: v.FilePath = Field(description="The issuer's public keys, a JSON Web Key Set.")
    audiences: list[v.Issuer] = Field([], description="One of them must be in `aud`. Without it: any.")
    tenant_claim: v.Claim | None = Field(None, description="The claim that names the tenant. Without it: none.")


class Auth(Section):
    model_config = ConfigDict(json_schema_extra={"anyOf": [{"required": ["api_keys"]}, {"required": ["jwt"]}]})

    api_keys: ApiKeys | None = Field(None, description="By a key. With `jwt`: either suffices.")
    jwt: Jwt | None = Field(None, description="By a signed token. With `api_keys`: either suffices.")
    forward_tenant: v.HeaderName | None = Field(
        None, description="Tells the replica the tenant. What clients send under that name is removed, from everyone."
    )
    forward_credentials: bool = Field(False, description="The key or token goes on to the replica.")

    @model_validator(mode="after")
    def _protects(self) -> Self:
        if self.api_keys is None and self.jwt is None:
            raise refuse("LB014", "nothing is chosen here", "api_keys or jwt, or both, is needed")
        return self


class HeaderRules(Section):
    set: v.HeaderMap = Field({}, description="In place of what was there under that name.")
    remove: list[v.HeaderName] = Field([], description="Taken away.")


class Headers(Section):
    request: HeaderRules = Field(HeaderRules(), description="On the way to the replica.")
    response: HeaderRules = Field(HeaderRules(), description="On the way to the client.")


class Respond(Section):
    CHOICES: ClassVar = (Choice(("status", "redirect")), Choice(("body", "redirect"), required=False))

    status: Annotated[int, Field(ge=200, le=599)] | None = Field(None, description="The status of the answer.")
    body: v.Body = Field("", description="Its text.")
    redirect: Literal["https"] | None = Field(None, description="To the same URL by https.")


class Step(Section):
    percent: v.Percent = Field(description="The share of `to`; the others keep their proportions.")
    hold: v.Duration | None = Field(None, description="How long it stays so.")


class MaxLatency(Section):
    metric: Literal["first_byte", "total"] = Field("first_byte", description="Until the first byte, or until the last.")
    percentile: Literal["p50", "p90", "p95", "p99"] = Field("p95", description="Of the requests of one window.")
    ratio: v.PositiveNumber = Field(1.2, description="New against old in the same window; more is bad.")


class Analysis(Section):
    interval: v.Duration = Field(q.Duration(30_000), description="Between two evaluations.")
    min_requests: v.Positive = Field(1000, description="With fewer an evaluation is neither good nor bad.")
    max_error_rate: v.Percent = Field(q.Percent(1), description="More errors are bad.")
    max_latency: MaxLatency | None = Field(None, description="Slower than this is bad. Without it: not evaluated.")
    failures: v.Positive = Field(3, description="Bad evaluations in a row before it acts.")
    on_failure: Literal["rollback", "pause"] = Field("rollback", description="What it then does.")


class Rollout(Section):
    to: v.Name = Field(description="The pool of the `split` that the traffic moves to.")
    mode: Literal["manual", "timed", "analysis"] = Field(
        "analysis",
        description="What ends a step: a person, the time, or the time and good answers (not executed yet, LB703).",
    )
    steps: Annotated[list[Step], Field(min_length=1)] = Field(description="One after the other.")
    analysis: Analysis | None = Field(None, description="For the mode `analysis`: what is good.")


class Route(Section):
    CHOICES: ClassVar = (Choice(("pool", "split", "respond")),)

    listeners: Annotated[list[v.Name], Field(min_length=1)] | None = Field(
        None, description="Where it is served. Without it: on all listeners."
    )
    match: Match = Field(
        Match(), description="Which requests it is for. The most specific route wins, wherever it stands."
    )
    pool: v.Name | None = Field(None, description="Where they go.")
    split: dict[v.Name, v.Count] | None = Field(
        None, description="Where they go, by relative weights of several pools."
    )
    respond: Respond | None = Field(None, description="An answer of the proxy's own.")
    rewrite: Rewrite | None = Field(None, description="What the replica sees instead.")
    pin: list[Pin] = Field([], description="Before the draw of a split: the first rule that matches decides.")
    sticky_split: StickySplit | None = Field(None, description="A client keeps the variant that it was given.")
    mirror: Mirror | None = Field(None, description="Sends copies elsewhere.")
    fallback: v.Name | None = Field(
        None, description="The pool that serves when no replica of the route's own is fit, and only then."
    )
    queue_priority: Literal["high", "normal", "low"] = Field(
        "normal", description="Who is served first of those that wait for a free replica."
    )
    websocket: bool = Field(False, description="Upgrades to WebSocket are let through.")
    timeouts: RouteTimeouts = Field(RouteTimeouts(), description="How long a request may take.")
    retry: Retry = Field(Retry(), description="What is tried again, and how often.")
    rate_limit: list[RateLimit] = Field(
        [], description="For the whole fleet of proxies: divided by their `instances`, rounded up."
    )
    auth: Auth | None = Field(None, description="Who may send requests. Without it: everybody.")
    headers: Headers = Field(Headers(), description="Headers that are set or removed.")
    regions: list[v.Place] = Field(
        [],
        description="Data residency: replicas of these regions alone, also when all of them are down; for `split`, "
        "`pin`, `fallback` and `mirror` alike.",
    )
    rollout: Rollout | None = Field(
        None,
        description="Moves `split` step by step, under `lbctl serve`; `render` writes the split of the file (LB702).",
    )

    @property
    def pools(self) -> list[str]:
        """Those that a request is sent to first: of the split, and of the pins."""
        return [*([self.pool] if self.pool else self.split or {}), *(pin.pool for pin in self.pin)]
