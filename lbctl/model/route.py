"""`routes`: which request goes to which pool, and how it is treated on the way."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, PlainValidator, ValidationError, model_validator

from lbctl.base import quantities as q
from lbctl.base.diagnostics import did_you_mean, show
from lbctl.model import values as v
from lbctl.model.section import Choice, OneOf, Section, refuse


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
        description="One of these, in the header `x-model`, else in the JSON body's `model`, else in the parameter "
        "`model` of a GET's query. Where that decides about protection, a request that does not name one model clearly "
        "is answered 400.",
    )


class Rewrite(Section):
    path_prefix: v.UrlPath | None = Field(None, description="Replaces the prefix that matched.")
    host: v.Host | None = Field(None, description="Replaces the Host that the replica receives.")


class Pin(Section):
    CHOICES: ClassVar = (Choice(("header", "cookie")),)

    header: v.HeaderName | None = Field(None, description="The header that is compared.")
    cookie: v.CookieName | None = Field(None, description="The cookie that is compared.")
    equals: v.HeaderValue = Field(description="The value that the header or cookie must have.")
    pool: v.Name = Field(description="The pool that a matching request goes to.")

    @model_validator(mode="after")
    def _can_match(self) -> Self:
        if self.cookie is not None and not v.is_cookie_value(self.equals):
            hint = "no space, quote, comma, semicolon or backslash"
            raise refuse("LB013", f"{show(self.equals)} is not a cookie's value", hint, ("equals",))
        return self


class StickySplit(Section):
    CHOICES: ClassVar = (Choice(("header", "cookie")),)

    header: v.HeaderName | None = Field(
        None, description="Requests with the same value of this header go to the same pool."
    )
    cookie: v.CookieName | None = Field(None, description="The cookie that names the client's pool; the proxy sets it.")
    ttl: v.Duration = Field(q.Duration(3_600_000), description="The lifetime of the cookie.")


class Mirror(Section):
    pool: v.Name = Field(description="The pool that gets the copies; its responses are discarded.")
    percent: v.Percent = Field(q.Percent(100), description="The share of requests that is copied.")


class RouteTimeouts(Section):
    request: v.DurationOrUnlimited = Field(
        None, description="The longest time until the whole response is sent. Without it: no limit."
    )
    attempt: v.Duration | None = Field(
        None,
        description="The longest time until the answer to one try begins. Then `retry.idempotent` tries another "
        "replica, and without it the client gets 504. Without `attempt`: no limit but the others.",
    )
    idle: v.Duration = Field(q.Duration(300_000), description="The longest time without a byte from the replica.")


class Backoff(Section):
    base: v.Duration = Field(
        q.Duration(25), description="The wait before the first retry; it doubles with each further one."
    )
    max: v.Duration = Field(q.Duration(250), description="The longest wait.")


RetryCondition = Literal["connect_failure", "refused_stream", "reset_before_request", "replica_busy"]
BusyStatus = Literal[429, 503, 529]


class Retry(Section):
    attempts: Annotated[int, Field(ge=0, le=10)] = Field(
        2, description="The most retries of a request; each goes to another replica."
    )
    when: list[RetryCondition] = Field(
        ["connect_failure", "refused_stream", "reset_before_request"],
        description="What is retried: failures before the model has seen the request; with `replica_busy` the answers "
        "of a replica that declined before it worked, as one whose queue is full does. No other answer is.",
    )
    busy_statuses: Annotated[list[BusyStatus], Field(min_length=1)] = Field(
        [503],
        description="The statuses by which a replica says that it is busy, for `replica_busy`.",
    )
    idempotent: bool = Field(
        False,
        description="Whether a request may run twice, as for embeddings; if so, it is also retried after a reset.",
    )
    budget: v.Percent | None = Field(
        None,
        description="The most concurrent retries, as a share of the pool's requests in flight; the smallest of its "
        "routes holds. Without it: no limit.",
    )
    backoff: Backoff = Field(Backoff.default(), description="The waits before retries.")


class HeaderKey(Section):
    header: v.HeaderName = Field(description="Requests with the same value of this header are counted together.")


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
        OneOf({"enum": list(_BY)}, HeaderKey),
    ] = Field(description="Whose requests are counted together: a tenant's, a client's, a header value's, or all.")
    rate: v.Rate | None = Field(None, description="The most requests in the given time; further ones get 429.")
    burst: v.Positive | None = Field(None, description="The most requests at once. Without it: the number of `rate`.")
    concurrent: v.Positive | None = Field(None, description="The most requests in flight; further ones get 429.")
    tenants: dict[v.Name, v.Rate] = Field(
        {}, description="With `by: tenant`: rates of single tenants instead, each with as many requests at once."
    )


class ApiKeys(Section):
    file: v.FilePath = Field(
        description="One a line: `sha256:HEX: TENANT`, or `KEY: TENANT`. A missing file refuses every key."
    )
    CHOICES: ClassVar = (Choice(("header", "headers"), required=False),)

    header: v.HeaderName | None = Field(None, description="The only header that may hold the key.")
    headers: Annotated[list[v.HeaderName], Field(min_length=1, max_length=8)] = Field(
        ["authorization", "x-api-key"],
        description="The headers that may hold the key: the first one that a request has decides. A `Bearer ` in front "
        "of the key is ignored. Replicas get none of them, unless `forward_credentials` is set.",
    )
    websocket_protocol: bool = Field(
        False,
        description="Whether a WebSocket may have the key in `Sec-WebSocket-Protocol`, as browsers send it: "
        "`openai-insecure-api-key.KEY`. It counts where none of the headers is sent; replicas do not get it.",
    )


class Jwt(Section):
    issuer: v.Issuer = Field(description="The `iss` that a token must have.")
    jwks_file: v.FilePath = Field(description="The issuer's public keys, a JSON Web Key Set.")
    audiences: list[v.Issuer] = Field([], description="One of them must be in `aud`. Without it: any.")
    tenant_claim: v.Claim | None = Field(None, description="The claim that names the tenant. Without it: none.")


class Basic(Section):
    file: v.FilePath = Field(
        description="One a line: `USER: PASSWORD`; the user is the tenant. A missing file refuses everybody."
    )
    realm: v.Realm = Field("restricted", description="The name of what is protected, as browsers show it.")


class External(Section):
    url: v.CheckUrl = Field(
        description="The service that decides. It is asked without the body (nginx: by GET; Envoy: by the client's "
        "method, with a query), with `x-original-uri`, `x-original-method` and `x-forwarded-for`."
    )
    timeout: v.Duration = Field(q.Duration(500), description="The longest wait for its answer; then 503.")
    send: list[v.HeaderName] = Field(
        ["authorization", "cookie"], description="The headers of the request that it gets; it gets no others."
    )
    accept: list[v.HeaderName] = Field(
        [], description="The headers of its answer that the replica gets; what clients send under them is removed."
    )
    tenant_header: v.HeaderName | None = Field(None, description="The header of `accept` that names the tenant.")

    @model_validator(mode="after")
    def _accepts_tenant(self) -> Self:
        if self.tenant_header is not None and self.tenant_header not in self.accept:
            raise refuse("LB144", f"{self.tenant_header} is not accepted", "add it to accept", ("tenant_header",))
        return self


class Auth(Section):
    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": [name]} for name in ("api_keys", "jwt", "basic", "external")]}
    )

    api_keys: ApiKeys | None = Field(None, description="Clients send an API key. With `jwt`, either of them suffices.")
    jwt: Jwt | None = Field(
        None, description="Clients send a signed token (JWT). With `api_keys`, either of them suffices."
    )
    basic: Basic | None = Field(
        None, description="Clients send a user and a password (HTTP Basic). It excludes `api_keys` and `jwt`."
    )
    external: External | None = Field(
        None, description="A service decides about each request. It excludes the others. HAProxy cannot ask it."
    )
    forward_tenant: v.HeaderName | None = Field(
        None, description="The header that names the tenant to the replica. It is removed from every client's request."
    )
    forward_credentials: bool = Field(False, description="Whether the replica receives the key, token or password.")

    @model_validator(mode="after")
    def _protects(self) -> Self:
        kinds = {"api_keys": self.api_keys, "jwt": self.jwt, "basic": self.basic, "external": self.external}
        chosen = [name for name, section in kinds.items() if section is not None]
        if not chosen:
            raise refuse("LB014", "nothing is chosen here", "api_keys or jwt, or both, or basic or external is needed")
        alone = next((name for name in ("basic", "external") if name in chosen), None)
        if alone is not None and len(chosen) > 1:
            raise refuse("LB143", f"{alone} is set with another kind of credentials", "one of the two", (alone,))
        return self


class HeaderRules(Section):
    set: v.HeaderTexts = Field(
        {},
        description="Headers that are set; they replace those of the same name. `{client_ip}`, `{request_id}`, "
        "`{tenant}`, `{host}`, `{listener}`, `{route}` and `{pool}` in a value are replaced; a header whose value is "
        "then empty is removed.",
    )
    remove: list[v.HeaderName] = Field(
        [], description="Headers that are removed; the cookies of `affinity` and `sticky_split` stay."
    )


class Headers(Section):
    request: HeaderRules = Field(HeaderRules.default(), description="Changes to the headers of the request.")
    response: HeaderRules = Field(HeaderRules.default(), description="Changes to the headers of the response.")


class Respond(Section):
    CHOICES: ClassVar = (
        Choice(("status", "redirect", "models")),
        Choice(("body", "redirect", "models"), required=False),
    )

    status: Annotated[int, Field(ge=200, le=599)] | None = Field(None, description="The status of the response.")
    body: v.Body = Field("", description="The body of the response.")
    redirect: Literal["https"] | None = Field(None, description="Redirects to the same URL by https.")
    models: bool = Field(
        False,
        description="Lists the models that clients of the listener can use, as OpenAI's `GET /v1/models` does: the "
        "names in `match.model` of its routes, and `model` of their pools. It needs the credentials of `auth`.",
    )

    @model_validator(mode="after")
    def _lists_models_or_answers(self) -> Self:
        if "models" in self.model_fields_set and not self.models:
            raise refuse("LB014", "nothing is chosen here", "models: true, or status", ("models",))
        return self


class Step(Section):
    percent: v.Percent = Field(description="The share of the pool `to`; the other pools keep their proportions.")
    hold: v.Duration | None = Field(None, description="How long the step lasts.")


class MaxLatency(Section):
    metric: Literal["first_byte", "total"] = Field(
        "first_byte",
        description="The time to the first byte of the response, or to the last, as the proxies measure it.",
    )
    percentile: Literal["p50", "p90", "p95", "p99"] = Field(
        "p95", description="The percentile of the requests in one interval."
    )
    ratio: v.PositiveNumber = Field(
        1.2, description="The highest latency of the new pool, as a multiple of the old one's in the same interval."
    )


class AnalysisMetric(Section):
    name: v.Name = Field(description="Its name in `status`, in the log and in the audit log.")
    source: v.Url = Field(description="A Prometheus, or what answers its HTTP API.")
    query: v.Text = Field(
        description="PromQL with one value from 0 on, less being better; `{pool}` is the name of the pool."
    )
    max_ratio: v.PositiveNumber = Field(
        description="With a higher value of the new pool, relative to that of the old one, an evaluation fails."
    )


class Analysis(Section):
    interval: v.Duration = Field(q.Duration(30_000), description="The time between two evaluations.")
    min_requests: v.Positive = Field(
        1000,
        description="With fewer requests, an evaluation neither passes nor fails, unless nearly all requests of the "
        "new pool fail.",
    )
    max_error_rate: v.Percent = Field(
        q.Percent(1),
        description="An evaluation fails when the new pool has more errors than the old ones beyond chance, and "
        "more than this share, or half as many again and more than a quarter of this share. Above this share it never "
        "passes.",
    )
    max_latency: MaxLatency | None = Field(
        None,
        description="An evaluation fails when the new pool is slower than this allows, beyond chance. Without it: not "
        "evaluated.",
    )
    failures: v.Positive = Field(3, description="The number of failed evaluations in a row that triggers `on_failure`.")
    on_failure: Literal["rollback", "pause"] = Field(
        "rollback", description="What the rollout does after so many failed evaluations."
    )
    metrics: list[AnalysisMetric] = Field([], description="PromQL that compares the pools beside their errors.")


class Rollout(Section):
    to: v.Name = Field(description="The pool of the `split` that the traffic moves to.")
    mode: Literal["manual", "timed", "analysis"] = Field(
        "analysis",
        description="What ends a step: an operator, `hold`, or `hold` with good evaluations.",
    )
    steps: Annotated[list[Step], Field(min_length=1)] = Field(description="The steps, in their order.")
    analysis: Analysis | None = Field(None, description="The criteria of the mode `analysis`.")


class Route(Section):
    CHOICES: ClassVar = (Choice(("pool", "split", "respond")),)

    listeners: Annotated[list[v.Name], Field(min_length=1)] | None = Field(
        None, description="The listeners that serve the route. Without it: all."
    )
    match: Match = Field(
        Match.default(),
        description="The requests that the route takes. The most specific route wins, whatever its position.",
    )
    pool: v.Name | None = Field(None, description="The pool that requests go to.")
    split: dict[v.Name, v.Count] | None = Field(
        None, description="The pools that requests go to, with their relative weights."
    )
    respond: Respond | None = Field(None, description="The proxy itself responds.")
    rewrite: Rewrite | None = Field(None, description="Changes to path and host before the request is forwarded.")
    pin: list[Pin] = Field(
        [], description="Requests with a given header or cookie go to a given pool; the first pin that matches decides."
    )
    sticky_split: StickySplit | None = Field(None, description="Each client stays with one pool of the split.")
    mirror: Mirror | None = Field(None, description="Copies of requests go to another pool too.")
    fallback: v.Name | None = Field(
        None, description="The pool that serves only while the route's own pools have no healthy replica."
    )
    queue_priority: Literal["high", "normal", "low"] = Field(
        "normal", description="The priority of a request that waits for a free replica."
    )
    websocket: bool = Field(False, description="Whether clients may upgrade to WebSocket.")
    timeouts: RouteTimeouts = Field(RouteTimeouts.default(), description="The timeouts of a request.")
    retry: Retry = Field(Retry.default(), description="Which failures are retried, and how often.")
    rate_limit: list[RateLimit] = Field(
        [], description="Limits for all proxies together: each gets its part by `instances`, rounded up."
    )
    allow_from: Annotated[list[v.Network], Field(min_length=1)] | None = Field(
        None,
        description="The networks of clients that may send requests; others get 403. It replaces the list of the "
        "listener. Without it: that list.",
    )
    deny_from: list[v.Network] | None = Field(
        None,
        description="The networks of clients that get 403, before `allow_from`. It replaces the list of the listener, "
        "and `[]` lifts it. Without it: that list.",
    )
    auth: Auth | None = Field(None, description="Who may send requests. Without it: everybody.")
    access_log: Literal["on", "off"] = Field("on", description="Whether its requests are in the log of the listener.")
    headers: Headers = Field(Headers.default(), description="Headers that are set or removed.")
    regions: list[v.Place] = Field(
        [],
        description="Data residency: the route uses only replicas in these regions, also when all of them are down. "
        "It holds for `split`, `pin`, `fallback` and `mirror` too.",
    )
    rollout: Rollout | None = Field(
        None,
        description="Moves `split` step by step, under `lbctl serve`; `render` writes the split of the file (LB702).",
    )

    @property
    def pools(self) -> list[str]:
        """Those that a request is sent to first: of the split, and of the pins."""
        return [*([self.pool] if self.pool else self.split or {}), *(pin.pool for pin in self.pin)]
