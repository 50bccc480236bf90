"""The routes of the HTTP API. The server registers this table, and the OpenAPI document is generated from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lbctl.api import schema
from lbctl.api.fields import choices

Access = Literal["public", "read", "write"]
"""public: no token needed. read: a token is needed except on loopback. write: a token is always needed."""
_READ = {401: "the token is missing or wrong", 403: "the Host or Origin is not allowed, or there is no token"}
_WRITE = {
    400: "the body is invalid",
    401: _READ[401],
    403: f"{_READ[403]}; or the token's role is `read`",
    408: "the body does not arrive in time",
    413: "the body is larger than 64 KiB",
    415: "the body is not `application/json`",
}
_TOO_MANY = (503, "too many such streams are open")
_NOT_SAVED = {503: "the state cannot be written, or there is no leader: nothing has changed"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A part of the URL that the client chooses."""

    name: str
    place: Literal["path", "query"]
    """The part of the URL that contains it."""
    about: str
    """Description for the documents."""
    required: bool = False
    """Whether the request is rejected without it."""


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One method of one path."""

    operation: str
    """The name of the operation, unique, also the key of its handler."""
    method: Literal["GET", "POST", "DELETE"]
    """The HTTP method."""
    path: str
    summary: str
    """Description for OpenAPI."""
    answer: type | str
    """The type of the JSON in a response with status 200, or another content type."""
    access: Access = "read"
    """The access that it needs."""
    body: type | None = None
    """The type of the JSON in the request; None: it takes no body."""
    errors: tuple[tuple[int, str], ...] = tuple(_READ.items())
    """Status and its cause; the body is an `Error`."""
    unready: bool = False
    """Whether a 503 has the same type as a 200."""
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
    Parameter("replica", "query", "A replica, or `*` for all replicas; default: the values of the whole pool"),
    Parameter("points", "query", "Maximal number of values in a series, from 2 to 720; default: 240"),
)

ROUTES = (
    ApiRoute(
        "dashboard", "GET", "/", "The dashboard, a page for browsers", "text/html", "public",
        errors=((403, _READ[403]),),
    ),
    ApiRoute(
        "dashboard_file", "GET", "/dashboard/{name}", "Files of the dashboard", "application/octet-stream", "public",
        errors=((403, _READ[403]), (404, "there is no such file")),
        parameters=(Parameter("name", "path", "The name of the file", required=True),),
    ),
    _probe("healthz", "/healthz", "200 while the process is healthy"),
    _probe("readyz", "/readyz", "200 from the first complete fleet until the process ends", unready=True),
    ApiRoute("metrics", "GET", "/metrics", "Metrics for Prometheus", "text/plain"),
    ApiRoute("status", "GET", "/api/v1/status", "The published fleet, its files, and current problems", schema.Status),
    ApiRoute(
        "proxies", "GET", "/api/v1/proxies", "Every proxy with its state, and accepted and rejected versions",
        schema.Proxies,
    ),
    ApiRoute("pools", "GET", "/api/v1/pools", "Pools and replicas with weights, shares and drains", schema.Pools),
    ApiRoute("fleet", "GET", "/api/v1/fleet", "Every setting of the published fleet", schema.FleetSettings),
    ApiRoute("signals", "GET", "/api/v1/signals", "Every signal and source of every replica", schema.Signals),
    ApiRoute(
        "decisions", "GET", "/api/v1/decisions", "Every weight with the values that it was derived from",
        schema.Decisions,
    ),
    ApiRoute("picks", "GET", "/api/v1/picks", "The picker, its counts, and samples of its decisions", schema.Picks),
    ApiRoute(
        "pick_tables", "GET", "/api/v1/picks/tables", "The tables of replicas for a picker, and then their changes",
        "text/event-stream",
        errors=((400, "a parameter is invalid"), *_READ.items(), _TOO_MANY),
        parameters=(
            Parameter("id", "query", "Unique id of the picker"),
            Parameter("address", "query", "Address to which other pickers send their counts, as IP:PORT; needs the "
            "role picker or operate"),
        ),
    ),
    ApiRoute("overrides", "GET", "/api/v1/overrides", "The active overrides", schema.Overrides),
    ApiRoute("rollouts", "GET", "/api/v1/rollouts", "The state of every rollout", schema.Rollouts),
    ApiRoute(
        "members", "GET", "/api/v1/members", "The members of the control plane, and its leader", schema.Members
    ),
    ApiRoute("history", "GET", "/api/v1/history", "Previously published fleets", schema.History),
    ApiRoute(
        "audit", "GET", "/api/v1/audit", "The audit log: actions and their actors, as a chain of hashes", schema.Audit,
        errors=((400, "a parameter is invalid"), *_READ.items(), (503, "the state cannot be read")),
        parameters=(Parameter("last", "query", "Number of records to return, the newest ones; default: all"),),
    ),
    ApiRoute(
        "events", "GET", "/api/v1/events", "Changes as server-sent events", "text/event-stream",
        errors=(*_READ.items(), _TOO_MANY),
    ),
    ApiRoute(
        "live", "GET", "/api/v1/live", "The data of the dashboard, and then its changes", "text/event-stream",
        errors=(*_READ.items(), _TOO_MANY),
    ),
    ApiRoute(
        "series", "GET", "/api/v1/series", "The history of a metric, as far back as `control.dashboard.history`",
        schema.Series, errors=((400, "a parameter is invalid"), *_READ.items()), parameters=_SERIES,
    ),
    ApiRoute("openapi", "GET", "/api/v1/openapi.json", "This document", "application/json"),
    _write("reload", "POST", "/api/v1/reload", "Reload the files now", schema.ReloadRequest, schema.ReloadResult, {}),
    _write(
        "rollback", "POST", "/api/v1/rollback", "Publish an earlier fleet until the files change",
        schema.RollbackRequest, schema.RollbackResult, _NOT_SAVED,
    ),
    _question(
        "explain_pick", "/api/v1/picks/explain", "Explain which replica the picker would choose for a request",
        schema.PickQuestion, schema.PickExplanation, {503: "the picker of this control plane is not running"},
    ),
    _write(
        "put_override", "POST", "/api/v1/overrides", "Set an override: drain a replica, set a weight, freeze a pool's "
        "weights, or set a split",
        schema.OverrideRequest, schema.OverrideResult, _NOT_SAVED,
    ),
    _write(
        "remove_override", "DELETE", "/api/v1/overrides", "Remove an override",
        schema.OverrideRemoval, schema.RemovalResult, _NOT_SAVED,
    ),
    _write(
        "act_on_rollout", "POST", "/api/v1/rollouts", "Start, promote, pause, resume, set or abort a rollout",
        schema.RolloutRequest, schema.RolloutResult,
        {503: "the state cannot be written: nothing has changed, except that an abort is applied"},
    ),
)  # fmt: skip
"""Every route, in the order of the documents."""
