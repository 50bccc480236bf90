"""What the replica of a request is chosen by, where Envoy's hash policies cannot find it by themselves.

They read headers, and read them when those that no replica may see are gone. A key out of the body, or out of a header
that goes no further, is put into the request's filter state before: a value that no client can write.
"""

from __future__ import annotations

from collections.abc import Sequence

from envoy.extensions.filters.http.set_filter_state.v3 import set_filter_state_pb2

from lbctl.ir.listeners import Listener
from lbctl.ir.pools import HashKey
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets.envoy import auth
from lbctl.targets.envoy.protos import extension
from lbctl.targets.envoy.sources import NAMESPACE


def policy(key: HashKey, route: Route) -> dict[str, object]:
    """A `HashPolicy`."""
    if _carried(key, route):
        return {"filter_state": {"key": _state(key)}}
    if key.kind == "header":
        return {"header": {"header_name": key.name}}
    if key.kind == "cookie":
        return {"cookie": {"name": key.name}}
    if key.kind == "query":
        return {"query_parameter": {"name": key.name}}
    return {"connection_properties": {"source_ip": True}}


def keys(view: View, pools: Sequence[str]) -> list[HashKey]:
    """Of those of `pools` that hash, in their order."""
    balances = [view.pools[name].balance for name in pools]
    return list(dict.fromkeys(item.key for item in balances if item.algorithm == "hash" and item.key))


def body_fields(view: View, listener: Listener) -> list[HashKey]:
    """The keys that are fields of a JSON body."""
    return [key for key in _all_carried(view, listener) if key.kind == "json_body"]


def field(key: HashKey) -> str:
    """Where in the request's metadata a key of the body stands."""
    return f"hash.{key.name.removeprefix('$.')}" if key.kind == "json_body" else f"prompt.{key.bytes}"


def http_filters(view: View, listener: Listener) -> list[dict[str, object]]:
    found = _all_carried(view, listener)
    if not found:
        return []
    config = set_filter_state_pb2.Config(on_request_headers=[_value(key) for key in found])
    return [extension("envoy.filters.http.set_filter_state", config)]


def _value(key: HashKey) -> dict[str, object]:
    words = f"%REQ({key.name})%" if key.kind == "header" else f"%DYNAMIC_METADATA({NAMESPACE}:{field(key)})%"
    return {
        "object_key": _state(key),
        "factory_key": "envoy.hashable_string",
        "format_string": {"text_format_source": {"inline_string": words}, "omit_empty_values": True},
        "skip_if_empty": True,
    }


def _state(key: HashKey) -> str:
    return f"{NAMESPACE}.header.{key.name}" if key.kind == "header" else f"{NAMESPACE}.{field(key)}"


def _carried(key: HashKey, route: Route) -> bool:
    """Whether the key has to be put aside before the replica is chosen."""
    if key.kind == "header":
        return key.name.lower() in {*auth.presented(route.auth), *route.request_headers.remove}
    return key.kind in ("json_body", "prompt_prefix")


def _all_carried(view: View, listener: Listener) -> list[HashKey]:
    routes = [view.routes[name] for name in sorted({rule.route for rule in listener.rules})]
    found = {
        key
        for route in routes
        if isinstance(route.action, Forward)
        for key in keys(view, route.action.pools)
        if _carried(key, route)
    }
    return sorted(found, key=_state)
