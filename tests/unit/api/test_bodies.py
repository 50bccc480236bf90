"""Request bodies are parsed by the types of the OpenAPI document; an invalid body is rejected with a message."""

from __future__ import annotations

from typing import Any

import pytest

from lbctl.api import schema
from lbctl.api.codec import SchemaError, parse, plain
from lbctl.api.routes import ROUTES


@pytest.mark.parametrize(
    "request_",
    [
        schema.OverrideRequest("weight", "chat", "a", 2.5, reason="a fan", ttl=60.0),
        schema.OverrideRequest("split", route="chat", shares={"old": 9, "new": 1}),
        schema.OverrideRemoval("freeze", "chat"),
        schema.RolloutRequest("chat", "set", 20),
        schema.RollbackRequest("abcd", allow_shrink=True, reason="why"),
        schema.ReloadRequest(True),
        schema.PickQuestion("chat", "s1", None),
    ],
)
def test_request_body_survives_a_round_trip(request_: object) -> None:
    assert parse(type(request_), plain(request_)) == request_


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (schema.ReloadRequest, {"allow_shrnik": True}, "unknown field 'allow_shrnik'; the valid fields are"),
        (schema.ReloadRequest, {"allow_shrink": "yes"}, "allow_shrink is not true or false"),
        (schema.RollbackRequest, {"digest": 7}, "digest is not a string"),
        (schema.OverrideRequest, {}, "kind must be one of drain, weight, freeze, split"),
        (schema.OverrideRequest, {"kind": ["drain"]}, "kind must be one of drain, weight, freeze, split"),
        (schema.OverrideRequest, {"kind": "drain", "ttl": "soon"}, "ttl is not a number"),
        (schema.OverrideRequest, {"kind": "drain", "pool": 3}, "pool is not a string"),
        (schema.OverrideRequest, {"kind": "weight", "value": True}, "value is not a number"),
        (schema.OverrideRequest, {"kind": "split", "shares": {"a": 0.5}}, "shares[...] is not a whole number"),
        (schema.RolloutRequest, {"action": "abort"}, "route is missing"),
        (schema.RolloutRequest, {"route": "chat", "action": "fly"}, "action must be one of start, promote, pause"),
    ],
)
def test_error_names_the_invalid_field(kind: type, body: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError) as refused:
        parse(kind, body)
    assert str(refused.value).startswith(message)


def test_every_write_route_has_a_body_type() -> None:
    assert [route.operation for route in ROUTES if route.access == "write" and route.body is None] == []
