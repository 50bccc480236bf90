"""The routes of the HTTP API. The server registers this table, and the OpenAPI document is generated from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lbctl.api import schema
from lbctl.api.fields import choices

Access = Literal["public", "read", "write"]
"""public: no token needed. read: a token is needed except on loopback. write: a token is always needed."""
_READ = {
    401: "the token is missing or wrong",
    403: "the Host or Origin is not allowed, or the control plane has no token",
}
_WRITE = {
    400: "the request body is invalid",
    401: _READ[401],
    403: f"{_READ[403]}, or the token has the `read` role",
    408: "the request body did not arrive in time",
    413: "the request body is larger than 64 KiB",
    415: "the content type of the request is not `application/json`",
}
_TOO_MANY = (503, "too many streams of this kind are open")
_NOT_SAVED = {503: "nothing has changed, because the state cannot be written or there is no leader"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A URL parameter set by the client."""

    name: str
    place: Literal["path", "query"]
    """The part of the URL that contains the parameter."""
    about: str
    """Description for the OpenAPI document and the reference."""
    required: bool = False
    """Whether a request without this parameter is rejected."""


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """An HTTP method on a path."""

    operation: str
    """The unique name of the operation, which is also the key of its handler."""
    method: Literal["GET", "POST", "DELETE"]
    """The HTTP method."""
    path: str
    summary: str
    """Description for OpenAPI."""
    answer: type | str
    """The type of the JSON in a response with status 200, or another content type."""
    access: Access = "read"
    """The access level that the operation requires."""
    body: type | None = None
    """The type of the JSON in the request; None if the request has no body."""
    errors: tuple[tuple[int, str], ...] = tuple(_READ.items())
    """Pairs of a status and its cause. The response body is an `Error`."""
    unready: bool = False
    """Whether a 503 response has the same type as a 200 response."""
    parameters: tuple[Parameter, ...] = ()
    """The parameters in the URL."""


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
    """Return a route that accepts a body but changes nothing."""
    errors = tuple((_WRITE | _READ | more).items())
    return ApiRoute(operation, "POST", path, summary, answer, "read", body, errors)


_SERIES = (
    Parameter("pool", "query", "The pool", required=True),
    Parameter("metric", "query", f"The metric, one of {', '.join(choices(schema.SeriesMetric))}", required=True),
    Parameter("replica", "query", "The replica, or `*` for all replicas (default: the values of the whole pool)"),
    Parameter("points", "query", "The maximum number of values in a series, from 2 to 720 (default: 240)"),
)

ROUTES = (
    ApiRoute(
        "dashboard", "GET", "/", "Get the dashboard as a web page", "text/html", "public",
        errors=((403, _READ[403]),),
    ),
    ApiRoute(
        "dashboard_file", "GET", "/dashboard/{name}", "Get a file that the dashboard uses", "application/octet-stream",
        "public",
        errors=((403, _READ[403]), (404, "the file does not exist")),
        parameters=(Parameter("name", "path", "The name of the file", required=True),),
    ),
    _probe("healthz", "/healthz", "Return 200 while the process is healthy"),
    _probe(
        "readyz", "/readyz", "Return 200 once the first complete fleet has been published, until the process exits",
        unready=True,
    ),
    ApiRoute("metrics", "GET", "/metrics", "Get metrics in the Prometheus format", "text/plain"),
    ApiRoute(
        "status", "GET", "/api/v1/status", "Get the published fleet, its files, and current problems", schema.Status
    ),
    ApiRoute(
        "proxies", "GET", "/api/v1/proxies",
        "List all proxies with their state and the versions that they accepted and rejected", schema.Proxies,
    ),
    ApiRoute(
        "pools", "GET", "/api/v1/pools", "List all pools and replicas with their weights, shares and drains",
        schema.Pools,
    ),
    ApiRoute("fleet", "GET", "/api/v1/fleet", "Get all settings of the published fleet", schema.FleetSettings),
    ApiRoute(
        "signals", "GET", "/api/v1/signals", "List all signals and telemetry sources of all replicas", schema.Signals
    ),
    ApiRoute(
        "decisions", "GET", "/api/v1/decisions", "List all weights with the values from which they were derived",
        schema.Decisions,
    ),
    ApiRoute("picks", "GET", "/api/v1/picks", "Get the picker, its counts, and samples of its decisions", schema.Picks),
    ApiRoute(
        "pick_tables", "GET", "/api/v1/picks/tables",
        "Stream the replica tables to a picker, followed by changes to them", "text/event-stream",
        errors=((400, "a parameter is invalid"), *_READ.items(), _TOO_MANY),
        parameters=(
            Parameter("id", "query", "A unique ID of the picker"),
            Parameter("address", "query", "The address to which other pickers send their counts, as IP:PORT; requires "
            "a token with the `picker` or `operate` role"),
        ),
    ),
    ApiRoute("overrides", "GET", "/api/v1/overrides", "List the active overrides", schema.Overrides),
    ApiRoute("rollouts", "GET", "/api/v1/rollouts", "List all rollouts with their state", schema.Rollouts),
    ApiRoute(
        "members", "GET", "/api/v1/members", "List the members of the control plane, including the leader",
        schema.Members,
    ),
    ApiRoute("history", "GET", "/api/v1/history", "List previously published fleets", schema.History),
    ApiRoute(
        "audit", "GET", "/api/v1/audit", "Get the audit log, a hash chain of actions and their actors", schema.Audit,
        errors=((400, "a parameter is invalid"), *_READ.items(), (503, "the state cannot be read")),
        parameters=(Parameter("last", "query", "The number of most recent records to return (default: all records)"),),
    ),
    ApiRoute(
        "events", "GET", "/api/v1/events", "Stream changes as server-sent events", "text/event-stream",
        errors=(*_READ.items(), _TOO_MANY),
    ),
    ApiRoute(
        "live", "GET", "/api/v1/live", "Stream the data of the dashboard, followed by changes to it",
        "text/event-stream", errors=(*_READ.items(), _TOO_MANY),
    ),
    ApiRoute(
        "series", "GET", "/api/v1/series",
        "Get the history of a metric for the period set in `control.dashboard.history`", schema.Series,
        errors=((400, "a parameter is invalid"), *_READ.items()), parameters=_SERIES,
    ),
    ApiRoute("openapi", "GET", "/api/v1/openapi.json", "Get the OpenAPI document of this API", "application/json"),
    _write(
        "reload", "POST", "/api/v1/reload", "Reload the fleet files immediately", schema.ReloadRequest,
        schema.ReloadResult, {},
    ),
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
        {503: "nothing has changed, because the state cannot be written; only an abort is applied"},
    ),
)  # fmt: skip
"""All routes, in the order of the documents."""
