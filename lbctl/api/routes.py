"""The routes of the HTTP API: the one table that the server registers and that the OpenAPI document is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lbctl.api import schema
from lbctl.api.fields import choices

Access = Literal["public", "read", "write"]
"""public: never a token. read: a token beyond loopback alone. write: always a token."""
_READ = {401: "the token is missing or wrong", 403: "the Host or Origin is not served here, or there is no token"}
_WRITE = {
    400: "the body is not what it should be",
    401: _READ[401],
    403: f"{_READ[403]}; or the token may only read",
    408: "the body does not come in time",
    413: "the body is larger than 64 KiB",
    415: "the body is not `application/json`",
}
_TOO_MANY = (503, "there are too many such streams already")
_NOT_SAVED = {503: "the state cannot be written, or no member leads: nothing has changed"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A part of the URL that the client chooses."""

    name: str
    place: Literal["path", "query"]
    """Where it stands."""
    about: str
    """What it is, in words for the documents."""
    required: bool = False
    """Whether the request is refused without it."""


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One method of one path."""

    operation: str
    """The name of the operation, unique, also the key of its handler."""
    method: Literal["GET", "POST", "DELETE"]
    """The HTTP method."""
    path: str
    summary: str
    """What it does, for OpenAPI."""
    answer: type | str
    """The type of the JSON of a 200, or another content type."""
    access: Access = "read"
    """Which role may use it."""
    body: type | None = None
    """The type of the JSON that it takes; None: it takes no body."""
    errors: tuple[tuple[int, str], ...] = tuple(_READ.items())
    """Status → when it is answered; the body is an `Error`."""
    unready: bool = False
    """Whether a 503 has the type of the 200."""
    parameters: tuple[Parameter, ...] = ()
    """The parts of the URL that the client chooses."""


def _probe(operation: str, path: str, summary: str, *, unready: bool = False) -> ApiRoute:
    forbidden = ((403, _READ[403]),)
    return ApiRoute(operation, "GET", path, summary, schema.Probe, "public", errors=forbidden, unready=unready)


def _write(
    operation: str, method: Literal["POST", "DELETE"], path: str, summary: str, body: type, answer: type,
    more: dict[int, str],
) -> ApiRoute:  # fmt: skip
    return ApiRoute(operation, method, path, summary, answer, "write", body, tuple((_WRITE | more).items()))


def _question(
    operation: str, path: str, summary: str, body: type, answer: type, more: dict[int, str]
) -> ApiRoute:  # fmt: skip
    """Return a route that takes a body and changes nothing."""
    errors = tuple((_WRITE | _READ | more).items())
    return ApiRoute(operation, "POST", path, summary, answer, "read", body, errors)


_SERIES = (
    Parameter("pool", "query", "The pool", required=True),
    Parameter("metric", "query", f"One of {', '.join(choices(schema.SeriesMetric))}", required=True),
    Parameter("replica", "query", "A replica, or `*` for every one; without it the pool's own values"),
    Parameter("points", "query", "The most values of a series, 2 to 720; 240 without it"),
)

ROUTES = (
    ApiRoute(
        "dashboard", "GET", "/", "The dashboard, a page for browsers", "text/html", "public",
        errors=((403, _READ[403]),),
    ),
    ApiRoute(
        "dashboard_file", "GET", "/dashboard/{name}", "The files of that page", "application/octet-stream", "public",
        errors=((403, _READ[403]), (404, "there is no such file")),
        parameters=(Parameter("name", "path", "The name of the file", required=True),),
    ),
    _probe("healthz", "/healthz", "200 while the process works"),
    _probe("readyz", "/readyz", "200 from the first complete fleet until the process ends", unready=True),
    ApiRoute("metrics", "GET", "/metrics", "Metrics for Prometheus", "text/plain"),
    ApiRoute("status", "GET", "/api/v1/status", "What is served, from which files, and what waits", schema.Status),
    ApiRoute("proxies", "GET", "/api/v1/proxies", "Every proxy, and what it has accepted and rejected", schema.Proxies),
    ApiRoute("pools", "GET", "/api/v1/pools", "Pools and replicas with weights, shares and drains", schema.Pools),
    ApiRoute("fleet", "GET", "/api/v1/fleet", "Every setting of the fleet that is served", schema.FleetSettings),
    ApiRoute("signals", "GET", "/api/v1/signals", "Every signal and source of every replica", schema.Signals),
    ApiRoute("decisions", "GET", "/api/v1/decisions", "Every weight with all that led to it", schema.Decisions),
    ApiRoute("picks", "GET", "/api/v1/picks", "The picker, its counts, and samples of its decisions", schema.Picks),
    ApiRoute(
        "pick_tables", "GET", "/api/v1/picks/tables", "The tables of replicas for a picker, and then what changes",
        "text/event-stream",
        errors=((400, "a parameter is not what it should be"), *_READ.items(), _TOO_MANY),
        parameters=(
            Parameter("id", "query", "What names the picker among others"),
            Parameter("address", "query", "Where the others send counts, as IP:PORT; needs the role picker or operate"),
        ),
    ),
    ApiRoute("overrides", "GET", "/api/v1/overrides", "What operators hold", schema.Overrides),
    ApiRoute("rollouts", "GET", "/api/v1/rollouts", "How far each rollout is", schema.Rollouts),
    ApiRoute(
        "members", "GET", "/api/v1/members", "The members of the control plane, and which one leads", schema.Members
    ),
    ApiRoute("history", "GET", "/api/v1/history", "The fleets that were served", schema.History),
    ApiRoute(
        "audit", "GET", "/api/v1/audit", "Who did what, as a chain of hashes", schema.Audit,
        errors=((400, "a parameter is not what it should be"), *_READ.items(), (503, "the state cannot be read")),
        parameters=(Parameter("last", "query", "Only so many records, the newest ones; all without it"),),
    ),
    ApiRoute(
        "events", "GET", "/api/v1/events", "What changes, as server-sent events", "text/event-stream",
        errors=(*_READ.items(), _TOO_MANY),
    ),
    ApiRoute(
        "live", "GET", "/api/v1/live", "What the dashboard shows, and then what changes", "text/event-stream",
        errors=(*_READ.items(), _TOO_MANY),
    ),
    ApiRoute(
        "series", "GET", "/api/v1/series", "The history of a metric, as far back as `control.dashboard.history`",
        schema.Series, errors=((400, "a parameter is not what it should be"), *_READ.items()), parameters=_SERIES,
    ),
    ApiRoute("openapi", "GET", "/api/v1/openapi.json", "This document", "application/json"),
    _write("reload", "POST", "/api/v1/reload", "Read the files now", schema.ReloadRequest, schema.ReloadResult, {}),
    _write(
        "rollback", "POST", "/api/v1/rollback", "Serve an earlier fleet until the files change",
        schema.RollbackRequest, schema.RollbackResult, _NOT_SAVED,
    ),
    _question(
        "explain_pick", "/api/v1/picks/explain", "Which replica a request would be given now, and why",
        schema.PickQuestion, schema.PickExplanation, {503: "the picker of this control plane does not run"},
    ),
    _write(
        "put_override", "POST", "/api/v1/overrides", "Hold a drain, a weight or a pool's weights",
        schema.OverrideRequest, schema.OverrideResult, _NOT_SAVED,
    ),
    _write(
        "remove_override", "DELETE", "/api/v1/overrides", "End what is held",
        schema.OverrideRemoval, schema.RemovalResult, _NOT_SAVED,
    ),
    _write(
        "act_on_rollout", "POST", "/api/v1/rollouts", "Start, move or end a rollout",
        schema.RolloutRequest, schema.RolloutResult,
        {503: "the state cannot be written: nothing has changed, but an abort is applied"},
    ),
)  # fmt: skip
"""Every route, in the order of the documents."""
