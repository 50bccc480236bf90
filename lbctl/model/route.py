"""`routes`: the conditions of requests, the pools that get them, and how a proxy treats them."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from lbctl.base import quantities as q
from lbctl.base.diagnostics import show
from lbctl.model import values as v
from lbctl.model.group_by import GroupBy
from lbctl.model.section import Choice, Section, refuse


class Match(Section):
    CHOICES: ClassVar = (Choice(("path", "path_prefix", "path_regex"), required=False),)

    hosts: list[v.HostPattern] = Field([], description="Hosts of the request. Default: any host.")
    path: v.UrlPath | None = Field(None, description="Exact path.")
    path_prefix: v.UrlPath | None = Field(
        None, description="Path prefix, in whole segments: `/v1` matches `/v1` and `/v1/chat`, but not `/v1x`."
    )
    path_regex: v.Regex | None = Field(
        None,
        description="Regular expression (RE2) for the whole path. nginx and HAProxy respond with 400 if matching a "
        "long path exceeds their limits.",
    )
    methods: list[v.Method] = Field([], description="Methods of the request. Default: any method.")
    headers: v.HeaderMap = Field({}, description="Headers that the request must contain, with exactly these values.")
    model: list[v.ModelPattern] = Field(
        [],
        description="Models of the request, from the header `x-model`, the field `model` of the JSON body, or the "
        "query parameter `model` of a GET. If the protection depends on the model, a request with an ambiguous model "
        "gets 400.",
    )


class Rewrite(Section):
    path_prefix: v.UrlPath | None = Field(None, description="Path prefix that replaces the matched prefix.")
    host: v.Host | None = Field(
        None, description="Value that replaces the `Host` header in the request to the replica."
    )


class Pin(Section):
    CHOICES: ClassVar = (Choice(("header", "cookie")),)

    header: v.HeaderName | None = Field(None, description="Header whose value is compared.")
    cookie: v.CookieName | None = Field(None, description="Cookie whose value is compared.")
    equals: v.HeaderValue = Field(description="Required value of the header or cookie.")
    pool: v.Name = Field(description="Pool that gets matching requests.")

    @model_validator(mode="after")
    def _can_match(self) -> Self:
        if self.cookie is not None and not v.is_cookie_value(self.equals):
            hint = "do not use spaces, quotes, commas, semicolons or backslashes"
            raise refuse("LB013", f"{show(self.equals)} is not a cookie value", hint, ("equals",))
        return self


class StickySplit(Section):
    CHOICES: ClassVar = (Choice(("header", "cookie")),)

    header: v.HeaderName | None = Field(
        None, description="Header that selects the pool: requests with the same value go to the same pool."
    )
    cookie: v.CookieName | None = Field(
        None, description="Cookie that contains the name of the client's pool; the proxy sets this cookie."
    )
    ttl: v.Duration = Field(q.Duration(3_600_000), description="Lifetime of the cookie.")


class Mirror(Section):
    pool: v.Name = Field(description="Pool that gets the copies. Its responses are discarded.")
    percent: v.Percent = Field(q.Percent(100), description="Share of requests to copy.")


class RouteTimeouts(Section):
    request: v.DurationOrUnlimited = Field(
        None, description="Maximum time until the whole response is sent. Default: no limit."
    )
    attempt: v.Duration | None = Field(
        None,
        description="Maximum time until the response to one attempt begins. On timeout, the proxy tries another "
        "replica if `retry.idempotent` is set; otherwise, the client gets 504. Default: only the other limits apply.",
    )
    idle: v.Duration = Field(q.Duration(300_000), description="Maximum time without a byte from the replica.")


class Backoff(Section):
    base: v.Duration = Field(
        q.Duration(25), description="Delay before the first retry. The delay doubles with each further retry."
    )
    max: v.Duration = Field(q.Duration(250), description="Maximum delay.")


RetryCondition = Literal["connect_failure", "refused_stream", "reset_before_request", "replica_busy"]
BusyStatus = Literal[429, 503, 529]


class Retry(Section):
    attempts: Annotated[int, Field(ge=0, le=10)] = Field(
        2, description="Maximum number of retries of a request. Each retry goes to another replica."
    )
    when: list[RetryCondition] = Field(
        ["connect_failure", "refused_stream", "reset_before_request"],
        description="Failures to retry. All of them occur before the model has processed the request. "
        "`replica_busy` means that a replica's response rejects the request, for example because its queue is full. "
        "Other responses are not retried.",
    )
    busy_statuses: Annotated[list[BusyStatus], Field(min_length=1)] = Field(
        [503],
        description="Status codes that mean a busy replica, for `replica_busy`.",
    )
    idempotent: bool = Field(
        False,
        description="Whether a request may run twice, for example a request for embeddings. If so, the request is also "
        "retried after a reset.",
    )
    budget: v.Percent | None = Field(
        None,
        description="Maximum number of concurrent retries, as a share of the pool's requests in flight. If several "
        "routes use the pool, their smallest value applies. Default: no limit.",
    )
    backoff: Backoff = Field(Backoff.default(), description="Delays before retries.")


class RateLimit(Section):
    CHOICES: ClassVar = (
        Choice(("rate", "concurrent", "prompt_tokens")),
        Choice(("burst", "prompt_tokens"), required=False),
    )

    by: GroupBy = Field(
        description="Which requests are counted together: requests of the same tenant, from the same client or "
        "with the same header value, or all requests."
    )
    rate: v.Rate | None = Field(
        None, description="Maximum number of requests in a period of time; further requests get 429."
    )
    burst: v.Positive | None = Field(
        None, description="Maximum number of requests in a burst. Default: the number in `rate`."
    )
    concurrent: v.Positive | None = Field(
        None, description="Maximum number of requests in flight; further requests get 429."
    )
    prompt_tokens: v.TokenRate | None = Field(
        None,
        description="Maximum number of prompt tokens in a period of time, as estimated by the picker; further requests "
        "get 429. All pools of the route need `algorithm: pick`. While the picker does not respond, requests are not "
        "limited.",
    )
    tenants: dict[v.Name, v.Rate] = Field(
        {},
        description="With `by: tenant`: rates of individual tenants, which replace `rate`. The number in a rate is "
        "also the tenant's maximum burst.",
    )


class ApiKeys(Section):
    file: v.FilePath = Field(
        description="File with one key per line: `sha256:HEX: TENANT` or `KEY: TENANT`. If the file is missing, "
        "all keys are rejected."
    )
    CHOICES: ClassVar = (Choice(("header", "headers"), required=False),)

    header: v.HeaderName | None = Field(None, description="The only header that may contain the key.")
    headers: Annotated[list[v.HeaderName], Field(min_length=1, max_length=8)] = Field(
        ["authorization", "x-api-key"],
        description="Headers that may contain the key; the first of them in a request is used. A `Bearer ` in "
        "front of the key is ignored. These headers are not forwarded to replicas unless `forward_credentials` is "
        "set.",
    )
    websocket_protocol: bool = Field(
        False,
        description="Whether a WebSocket request may contain the key in `Sec-WebSocket-Protocol`, as browsers send "
        "it: `openai-insecure-api-key.KEY`. This key is used if the request has none of the headers. It is not "
        "forwarded to replicas.",
    )


class Jwt(Section):
    issuer: v.Issuer = Field(description="Required `iss` of a token.")
    jwks_file: v.FilePath = Field(description="File with the issuer's public keys, a JSON Web Key Set.")
    audiences: list[v.Issuer] = Field([], description="Accepted values of `aud`. Default: any.")
    tenant_claim: v.Claim | None = Field(None, description="Claim that contains the tenant. Default: none.")


class Basic(Section):
    file: v.FilePath = Field(
        description="File with one user per line: `USER: PASSWORD`. The user name is also the tenant. If the file "
        "is missing, all requests are rejected."
    )
    realm: v.Realm = Field("restricted", description="Realm that browsers show.")


class External(Section):
    url: v.CheckUrl = Field(
        description="URL of the authorization service. It receives a request without a body (nginx: GET; Envoy: "
        "the client's method, with a query) and with the headers `x-original-uri`, `x-original-method` and "
        "`x-forwarded-for`."
    )
    timeout: v.Duration = Field(
        q.Duration(500), description="Timeout for the service's response. On timeout, the client gets 503."
    )
    send: list[v.HeaderName] = Field(
        ["authorization", "cookie"], description="Request headers that are sent to the service."
    )
    accept: list[v.HeaderName] = Field(
        [],
        description="Headers of the service's response that are forwarded to the replica. If a client sends "
        "headers with these names, they are removed.",
    )
    tenant_header: v.HeaderName | None = Field(None, description="Header from `accept` that contains the tenant.")

    @model_validator(mode="after")
    def _accepts_tenant(self) -> Self:
        if self.tenant_header is not None and self.tenant_header not in self.accept:
            raise refuse(
                "LB144", f"{self.tenant_header} is not listed in `accept`", "add it to `accept`", ("tenant_header",)
            )
        return self


class Auth(Section):
    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": [name]} for name in ("api_keys", "jwt", "basic", "external")]}
    )

    api_keys: ApiKeys | None = Field(
        None, description="API keys of clients. If `jwt` is also set, a request needs only one kind of credentials."
    )
    jwt: Jwt | None = Field(
        None,
        description="Signed tokens (JWT) of clients. If `api_keys` is also set, a request needs only one kind of "
        "credentials.",
    )
    basic: Basic | None = Field(
        None, description="Users and passwords of clients (HTTP Basic). Cannot be combined with `api_keys` or `jwt`."
    )
    external: External | None = Field(
        None,
        description="External service that authorizes each request. Cannot be combined with other methods. Not "
        "supported on HAProxy.",
    )
    forward_tenant: v.HeaderName | None = Field(
        None, description="Header that passes the tenant to the replica. If a client sends this header, it is removed."
    )
    forward_credentials: bool = Field(False, description="Whether the replica receives the key, token or password.")

    @model_validator(mode="after")
    def _protects(self) -> Self:
        kinds = {"api_keys": self.api_keys, "jwt": self.jwt, "basic": self.basic, "external": self.external}
        chosen = [name for name, section in kinds.items() if section is not None]
        if not chosen:
            raise refuse("LB014", "a required key is missing", "set api_keys, jwt or both, or set basic or external")
        alone = next((name for name in ("basic", "external") if name in chosen), None)
        if alone is not None and len(chosen) > 1:
            raise refuse(
                "LB143",
                f"{alone} cannot be combined with another authentication method",
                "remove one of the two",
                (alone,),
            )
        return self


class HeaderRules(Section):
    set: v.HeaderTexts = Field(
        {},
        description="Headers to set, which replace existing headers of the same name. A value can contain "
        "`{client_ip}`, `{request_id}`, `{tenant}`, `{host}`, `{listener}`, `{route}` and `{pool}`. A header with "
        "an empty value is removed.",
    )
    remove: list[v.HeaderName] = Field(
        [], description="Headers to remove. The cookies of `affinity` and `sticky_split` are kept."
    )


class Headers(Section):
    request: HeaderRules = Field(HeaderRules.default(), description="Changes to the request headers.")
    response: HeaderRules = Field(HeaderRules.default(), description="Changes to the response headers.")


class Respond(Section):
    CHOICES: ClassVar = (
        Choice(("status", "redirect", "models")),
        Choice(("body", "redirect", "models"), required=False),
    )

    status: Annotated[int, Field(ge=200, le=599)] | None = Field(None, description="Status code of the response.")
    body: v.Body = Field("", description="Body of the response.")
    redirect: Literal["https"] | None = Field(None, description="Redirects to the same URL with https.")
    models: bool = Field(
        False,
        description="Lists the models that clients of the listener can use, like OpenAI's `GET /v1/models`: the names "
        "in `match.model` of the listener's routes and in `model` of their pools. The credentials of `auth` are "
        "required.",
    )

    @model_validator(mode="after")
    def _lists_models_or_answers(self) -> Self:
        if "models" in self.model_fields_set and not self.models:
            raise refuse("LB014", "a required key is missing", "set models: true, or set status", ("models",))
        return self


class Step(Section):
    percent: v.Percent = Field(
        description="Share of requests for the pool `to`. The proportions of the other pools do not change."
    )
    hold: v.Duration | None = Field(None, description="Duration of the step.")


class MaxLatency(Section):
    metric: Literal["first_byte", "total"] = Field(
        "first_byte",
        description="Latency to compare: the time to the first or last byte of the response, as measured by the "
        "proxies.",
    )
    percentile: Literal["p50", "p90", "p95", "p99"] = Field(
        "p95", description="Percentile of the latencies in one interval."
    )
    ratio: v.PositiveNumber = Field(
        1.2,
        description="Maximum latency of the new pool, as a multiple of the old pool's latency in the same interval.",
    )


class AnalysisMetric(Section):
    name: v.Name = Field(description="Name of the metric in `status`, in the log and in the audit log.")
    source: v.Url = Field(description="URL of a Prometheus server, or of a server with the same HTTP API.")
    query: v.Text = Field(
        description="PromQL query that returns one non-negative value; lower is better. `{pool}` is the name of "
        "the pool."
    )
    max_ratio: v.PositiveNumber = Field(
        description="Maximum ratio of the new pool's value to the old pool's value. If the ratio is higher, an "
        "evaluation fails."
    )


class Analysis(Section):
    interval: v.Duration = Field(q.Duration(30_000), description="Time between two evaluations.")
    min_requests: v.Positive = Field(
        1000,
        description="Minimum number of requests in an evaluation. With fewer requests, an evaluation neither passes "
        "nor fails, unless nearly all requests to the new pool fail.",
    )
    max_error_rate: v.Percent = Field(
        q.Percent(1),
        description="An evaluation fails if the new pool's error rate is significantly above the old rate and "
        "above this share (or above 1.5 times the old rate and a quarter of this share). Above this share, an "
        "evaluation never passes.",
    )
    max_latency: MaxLatency | None = Field(
        None,
        description="Latency limits. An evaluation fails if the new pool is significantly slower. Default: not "
        "evaluated.",
    )
    failures: v.Positive = Field(3, description="Number of consecutive failed evaluations that trigger `on_failure`.")
    on_failure: Literal["rollback", "pause"] = Field(
        "rollback", description="Action when `failures` consecutive evaluations have failed."
    )
    metrics: list[AnalysisMetric] = Field([], description="PromQL metrics to compare the pools, in addition to errors.")


class Rollout(Section):
    to: v.Name = Field(description="Pool of the `split` to which the rollout shifts traffic.")
    mode: Literal["manual", "timed", "analysis"] = Field(
        "analysis",
        description="How a step ends. `manual`: an operator ends the step. `timed`: the step ends after `hold`. "
        "`analysis`: the step ends after `hold` if the evaluations pass.",
    )
    steps: Annotated[list[Step], Field(min_length=1)] = Field(description="Steps of the rollout, in order.")
    analysis: Analysis | None = Field(None, description="Criteria for the `analysis` mode.")


class Route(Section):
    CHOICES: ClassVar = (Choice(("pool", "split", "respond")),)

    listeners: Annotated[list[v.Name], Field(min_length=1)] | None = Field(
        None, description="Listeners of the route. Default: all."
    )
    match: Match = Field(
        Match.default(),
        description="Requests that the route matches. The most specific route wins, regardless of its position in "
        "the file.",
    )
    pool: v.Name | None = Field(None, description="Pool that gets the requests.")
    split: dict[v.Name, v.Count] | None = Field(
        None, description="Pools that get the requests, with their relative weights."
    )
    respond: Respond | None = Field(None, description="Response that the proxy itself sends.")
    rewrite: Rewrite | None = Field(None, description="Changes to the path and host before the request is forwarded.")
    pin: list[Pin] = Field(
        [], description="Pools for requests with a given header or cookie; the first matching pin applies."
    )
    sticky_split: StickySplit | None = Field(None, description="Keep each client on one pool of the split.")
    mirror: Mirror | None = Field(None, description="Send copies of requests to another pool.")
    fallback: v.Name | None = Field(
        None, description="Pool that is used only while the route's own pools have no healthy replica."
    )
    queue_priority: Literal["high", "normal", "low"] = Field(
        "normal",
        description="Priority of a request while it waits for a free replica. nginx and Envoy use it only in pools "
        "with `queue`.",
    )
    websocket: bool = Field(False, description="Whether clients may upgrade to WebSocket.")
    timeouts: RouteTimeouts = Field(RouteTimeouts.default(), description="Timeouts for requests.")
    retry: Retry = Field(
        Retry.default(), description="Settings for retries: which failures are retried, and how often."
    )
    rate_limit: list[RateLimit] = Field(
        [],
        description="Limits across all proxies. Each proxy gets its share according to `instances`, rounded up. "
        "Pickers share `prompt_tokens` equally.",
    )
    allow_from: Annotated[list[v.Network], Field(min_length=1)] | None = Field(
        None,
        description="Client networks that may send requests; other clients get 403. Default: the listener's list.",
    )
    deny_from: list[v.Network] | None = Field(
        None,
        description="Client networks whose requests get 403; checked before `allow_from`. `[]` removes the listener's "
        "list. Default: the listener's list.",
    )
    auth: Auth | None = Field(None, description="Authentication of clients. Default: none.")
    access_log: Literal["on", "off"] = Field(
        "on", description="Whether the listener's access log includes the route's requests."
    )
    headers: Headers = Field(Headers.default(), description="Headers to set or remove.")
    regions: list[v.Place] = Field(
        [],
        description="Data residency: the route uses only replicas in these regions, even if all of them are down. "
        "This also applies to `split`, `pin`, `fallback` and `mirror`.",
    )
    rollout: Rollout | None = Field(
        None,
        description="Shifts the traffic of `split` step by step, with `lbctl serve`. `render` writes the split "
        "from the file (LB702).",
    )

    @property
    def pools(self) -> list[str]:
        """Return the pools that get requests directly: `pool` or the pools in the split, and the pools in the pins."""
        return [*([self.pool] if self.pool else self.split or {}), *(pin.pool for pin in self.pin)]
