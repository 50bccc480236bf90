"""Envoy's own replies, as JSON in lbctl's format instead of Envoy's default text.

Responses configured in the fleet (`respond`, a redirect) are unchanged. If Envoy sets a response flag, the flag
determines the status: 503 for no healthy or reachable replica and for no capacity, 504 for a silent replica, and 502
for a broken response.
"""

from __future__ import annotations

from collections.abc import Iterator

from envoy.extensions.access_loggers.filters.cel.v3 import cel_pb2

from lbctl.ir.listeners import Listener
from lbctl.ir.snapshot import View
from lbctl.targets import client_identity, picker, request_grammar
from lbctl.targets.client_identity import BEARER, challenge
from lbctl.targets.envoy import access, external
from lbctl.targets.envoy.protos import extension
from lbctl.targets.envoy.sources import NAMESPACE
from lbctl.targets.reading import CODED as CODED_MESSAGE
from lbctl.targets.reading import UNCLEAR
from lbctl.targets.response_bodies import OVERLOADED, error_body

_STATUSES = {
    400: ("the request is not valid HTTP", "bad_request"),
    401: ("no valid credentials", "unauthorized"),
    403: ("this request is not allowed", "forbidden"),
    404: ("no route", "not_found"),
    408: ("the request did not arrive in time", "timeout"),
    413: ("the request body is too large", "too_large"),
    429: ("too many requests", "rate_limited"),
    431: ("the request headers are too large", "too_large"),
    500: ("the gateway failed", "internal"),
    502: ("the replica aborted its response", "bad_gateway"),
    503: ("no replica available", "unavailable"),
    504: ("the replica did not respond in time", "timeout"),
}
_REFUSED = {
    "Audience": ("this token is for another audience", "forbidden"),
    "rbac_access_denied": ("the credentials do not identify a tenant", "forbidden"),
}
"""Maps a part of the response code details of a rejection by an Envoy filter to the error message and its type."""
_BY_ADDRESS = f"[{access.POLICY}]"
"""Error messages and types for clients that are rejected by their address, in the same form."""
_BY_PICKER = "response.code == 429 && 'retry-after' in response.headers"
"""Expression for a request that the picker rejects. Authorization services do not send this header to clients."""
_BY_QUEUE = {
    "metadata_filter": {
        "matcher": {
            "filter": "envoy.filters.http.ext_authz",
            "path": [{"key": picker.FULL_HEADER}],
            "value": {"present_match": True},
        },
        "match_if_key_not_found": {"value": False},
    }
}
"""Filter for a request that the queue of its pool rejects, by the metadata from the picker's response."""
_OVERFLOW = ["UO"]
_NO_REPLICA = ["UH", "UF", "NC"]
_SILENCE = ["SI", "UT", "DT"]
_BROKEN = ["UC", "UR", "UPE"]
_BEARER = {"header": {"key": "www-authenticate", "value": "Bearer"}, "append_action": "ADD_IF_ABSENT"}
_SOON = {"header": {"key": "retry-after", "value": "1"}}
_RETRY_AFTER = {"header": {"key": "retry-after", "value": f"%METADATA(CLUSTER:{NAMESPACE}:retry_after)%"}}


def error(status: int) -> str:
    """Return the body for a status that Envoy generates."""
    return error_body(*_STATUSES[status])


CODED = error_body(CODED_MESSAGE, "bad_request")
FRAMING = error_body("HTTP/1.0 does not support transfer-encoding", "bad_request")
HOST = error_body(request_grammar.HOST_MESSAGE, "bad_request")
METHOD = error_body(request_grammar.METHOD_MESSAGE, "bad_request")
PATH = error_body(request_grammar.TARGET_MESSAGE, "bad_request")
SEVERAL_ADDRESSES = error_body("the request contains several client addresses", "bad_request")
UNCLEAR_MODEL = error_body(UNCLEAR, "bad_request")


def local_replies(view: View, listener: Listener, *, by_address: bool) -> dict[str, object]:
    """Return the `LocalReplyConfig` of a connection manager, which may reject clients by their address."""
    flagged = [
        {**_flags(_OVERFLOW), "status_code": {"value": 503}, **_body(503), "headers_to_add": [_SOON]},
        {**_flags(_NO_REPLICA), "status_code": {"value": 503}, **_body(503), "headers_to_add": [_RETRY_AFTER]},
        {**_flags(_SILENCE), **_body(504)},
        {**_flags(_BROKEN), "status_code": {"value": 502}, **_body(502)},
    ]
    addresses = [_by_details(_BY_ADDRESS, client_identity.REFUSED_ADDRESS_BODY)] if by_address else []
    refused = [_by_details(detail, error_body(*reply)) for detail, reply in _REFUSED.items()]
    full = [{"filter": _BY_QUEUE, **_json_body(OVERLOADED)}] if picker.has_queue(view) else []
    users = [*_unchecked(view, listener), *_unauthorized(view, listener)]
    return {"mappers": [*flagged, *full, *addresses, *refused, *users, *(_by_status(status) for status in _STATUSES)]}


def _flags(names: list[str]) -> dict[str, object]:
    return {"filter": {"response_flag_filter": {"flags": names}}}


def _by_details(detail: str, body: str) -> dict[str, object]:
    return {**_filter(f"response.code == 403 && response.code_details.contains('{detail}')"), **_json_body(body)}


def _unchecked(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the 503 reply for the case that a service's response neither accepts nor rejects the request."""
    if not external.http_filters(view, listener):
        return []
    refused = "response.code_details.startsWith('ext_authz') && response.code != 401 && response.code != 403"
    if picker.rejects(view):
        refused += f" && !({_BY_PICKER})"
    return [{**_filter(refused), "status_code": {"value": 503}, **_body(503)}]


def _unauthorized(view: View, listener: Listener) -> Iterator[dict[str, object]]:
    """Yield the 401 reply of each route that requires a user and a password, or whose service sends a challenge."""
    for name in sorted({rule.route for rule in listener.rules}):
        value = challenge(view.routes[name].auth)
        if value != BEARER:
            is_route = (
                f"response.code == 401 && xds.route_name == '{name}' && response.code_details != 'direct_response'"
            )
            header = {"header": {"key": "www-authenticate", "value": value.replace("%", "%%")}}
            yield {**_filter(is_route), **_body(401), "headers_to_add": [header] if value else []}


def _by_status(status: int) -> dict[str, object]:
    expression = f"response.code == {status} && response.code_details != 'direct_response'"
    mapper = {**_filter(expression), **_body(status)}
    return {**mapper, "headers_to_add": [_BEARER]} if status == 401 else mapper


def _filter(expression: str) -> dict[str, object]:
    condition = extension("envoy.access_loggers.extension_filters.cel", cel_pb2.ExpressionFilter(expression=expression))
    return {"filter": {"extension_filter": condition}}


def _body(status: int) -> dict[str, object]:
    return _json_body(error(status))


def _json_body(body: str) -> dict[str, object]:
    form = {"text_format_source": {"inline_string": body}, "content_type": "application/json"}
    return {"body_format_override": form}
