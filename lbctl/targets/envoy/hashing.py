"""Hash keys, including those that Envoy's hash policies cannot read by themselves.

Hash policies read headers, but only after headers that replicas must not see have been removed. A key from the body or
from a changed header is therefore stored in the request's filter state first, where clients cannot write. A cookie is
copied there from the request's metadata, because only a metadata filter can read a single cookie.
"""

from __future__ import annotations

from collections.abc import Sequence

from envoy.extensions.filters.http.header_to_metadata.v3 import header_to_metadata_pb2
from envoy.extensions.filters.http.set_filter_state.v3 import set_filter_state_pb2

from lbctl.ir.listeners import Listener
from lbctl.ir.pools import HashKey
from lbctl.ir.routes import Forward, Route
from lbctl.ir.snapshot import View
from lbctl.targets.client_identity import credential_headers
from lbctl.targets.envoy.protos import extension
from lbctl.targets.envoy.sources import NAMESPACE

_COOKIES = "lbctl.hashed_cookies"
"""Filter that reads the cookies used as hash keys."""


def policy(key: HashKey, route: Route) -> dict[str, object]:
    """Return the `HashPolicy` for a key."""
    if _needs_filter_state(key, route):
        return {"filter_state": {"key": _filter_state_name(key)}}
    if key.kind == "header":
        return {"header": {"header_name": key.name}}
    if key.kind == "cookie":
        return {"cookie": {"name": key.name}}
    if key.kind == "query":
        return {"query_parameter": {"name": key.name}}
    return {"connection_properties": {"source_ip": True}}


def keys(view: View, pools: Sequence[str]) -> list[HashKey]:
    """Return the hash keys of those `pools` that use hashing, in order and without duplicates."""
    balances = [view.pools[name].balance for name in pools]
    return list(dict.fromkeys(item.key for item in balances if item.algorithm == "hash" and item.key))


def body_fields(view: View, listener: Listener) -> list[HashKey]:
    """Return the hash keys of a listener that are fields of a JSON body."""
    return [key for key in _filter_state_keys(view, listener) if key.kind == "json_body"]


def field(key: HashKey) -> str:
    """Return the metadata key under which a request's hash key from the body or a cookie is stored."""
    if key.kind == "cookie":
        return f"cookie.{key.name}"
    return f"hash.{key.name.removeprefix('$.')}" if key.kind == "json_body" else f"prompt.{key.bytes}"


def http_filters(view: View, listener: Listener) -> list[dict[str, object]]:
    """Return the filters that store hash keys in the request's filter state, if the listener needs them."""
    hash_keys = _filter_state_keys(view, listener)
    if not hash_keys:
        return []
    config = set_filter_state_pb2.Config(on_request_headers=[_value(key) for key in hash_keys])
    return [*_cookie_reader(hash_keys), extension("envoy.filters.http.set_filter_state", config)]


def _cookie_reader(hash_keys: Sequence[HashKey]) -> list[dict[str, object]]:
    rules = [
        {"cookie": key.name, "on_header_present": {"metadata_namespace": NAMESPACE, "key": field(key)}}
        for key in hash_keys
        if key.kind == "cookie"
    ]
    return [extension(_COOKIES, header_to_metadata_pb2.Config(request_rules=rules))] if rules else []


def _value(key: HashKey) -> dict[str, object]:
    source = f"%REQ({key.name})%" if key.kind == "header" else f"%DYNAMIC_METADATA({NAMESPACE}:{field(key)})%"
    return {
        "object_key": _filter_state_name(key),
        "factory_key": "envoy.hashable_string",
        "format_string": {"text_format_source": {"inline_string": source}, "omit_empty_values": True},
        "skip_if_empty": True,
    }


def _filter_state_name(key: HashKey) -> str:
    return f"{NAMESPACE}.header.{key.name}" if key.kind == "header" else f"{NAMESPACE}.{field(key)}"


def _needs_filter_state(key: HashKey, route: Route) -> bool:
    """Return whether the key must be stored before the replica is chosen."""
    if key.kind in ("header", "cookie"):
        rules = route.request_headers
        changed = {*credential_headers(route.auth), *rules.remove, *(name for name, _ in rules.set)}
        return ("cookie" if key.kind == "cookie" else key.name.lower()) in changed
    return key.kind in ("json_body", "prompt_prefix")


def _filter_state_keys(view: View, listener: Listener) -> list[HashKey]:
    routes = [view.routes[name] for name in sorted({rule.route for rule in listener.rules})]
    hash_keys = {
        key
        for route in routes
        if isinstance(route.action, Forward)
        for key in keys(view, route.action.pools)
        if _needs_filter_state(key, route)
    }
    return sorted(hash_keys, key=_filter_state_name)
