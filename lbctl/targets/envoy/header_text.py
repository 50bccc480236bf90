"""The headers that a route sets, with their variables as Envoy's command operators."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from envoy.extensions.filters.http.set_filter_state.v3 import set_filter_state_pb2

from lbctl.ir.header_text import HeaderPart, Variable, may_be_empty, parts, variables
from lbctl.ir.listeners import Listener
from lbctl.ir.routes import HeaderRules, Route
from lbctl.ir.snapshot import View
from lbctl.targets.envoy import access_log, auth
from lbctl.targets.envoy.protos import extension
from lbctl.targets.envoy.sources import NAMESPACE

Headers = tuple[tuple[str, str], ...]
"""(name, value) pairs of headers. Values may contain variables."""
_OPERATORS: dict[Variable, str] = {
    "client_ip": "%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%",
    "request_id": "%REQ(X-REQUEST-ID)%",
    "tenant": f"%DYNAMIC_METADATA({NAMESPACE}:{auth.TENANT})%",
    "host": "%REQ(:AUTHORITY)%",
    "pool": f"%CEL({access_log.POOL})%",
}
"""Variables whose value depends on the request."""
_FIRST_HOST = "lbctl.host"
_IN_RESPONSES: dict[Variable, str] = {**_OPERATORS, "host": f"%FILTER_STATE({_FIRST_HOST}:PLAIN)%"}


def filters(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the filter that saves the client's host for responses, because a route may rewrite the request's host."""
    routes = (view.routes[rule.route] for rule in listener.rules)
    if not any("host" in variables(text) for route in routes for _, text in route.response_headers.set):
        return []
    value = {
        "object_key": _FIRST_HOST,
        "factory_key": "envoy.string",
        "format_string": {"text_format_source": {"inline_string": _OPERATORS["host"]}},
    }
    return [extension("envoy.filters.http.set_filter_state", set_filter_state_pb2.Config(on_request_headers=[value]))]


def request_options(listener: Listener, route: Route, without: str) -> Iterator[dict[str, object]]:
    """Yield a `HeaderValueOption` for each header that a request gets, except the one named `without`."""
    rules = tuple(item for item in route.request_headers.set if item[0] != without)
    return _options(rules, listener, route, _OPERATORS)


def response_options(listener: Listener, route: Route) -> Iterator[dict[str, object]]:
    """Yield a `HeaderValueOption` for each header that a response gets."""
    return _options(route.response_headers.set, listener, route, _IN_RESPONSES)


def _options(
    rules: Headers, listener: Listener, route: Route, operators: dict[Variable, str]
) -> Iterator[dict[str, object]]:
    constants: dict[Variable, str] = {"listener": listener.name, "route": route.name}
    for name, text in rules:
        yield {
            "header": {"key": name, "value": "".join(_written(part, operators | constants) for part in parts(text))},
            "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
            "keep_empty_value": not may_be_empty(text),
        }


def replaced(rules: HeaderRules) -> list[str]:
    """Return the headers to remove before setting headers, because Envoy does not set a header to an empty value."""
    return [name for name, text in rules.set if may_be_empty(text)]


def _written(part: HeaderPart, values: Mapping[Variable, str]) -> str:
    return part.text.replace("%", "%%") if part.variable is None else values[part.variable]
