"""Every operation of the route table has its function."""

from __future__ import annotations

from lbctl.api.routes import ROUTES
from lbctl.serve.api import served_api, server
from lbctl.serve.api.handlers import HANDLERS, OPERATIONS, handler_of
from tests.support.api import Fleet


def test_every_route_has_one_function() -> None:
    assert served_api.OPERATIONS is OPERATIONS
    assert server.handler_of is handler_of
    assert OPERATIONS.keys() & HANDLERS.keys() == set()
    assert OPERATIONS.keys() | HANDLERS.keys() == {route.operation for route in ROUTES}


def test_every_route_with_a_body_answers_with_a_document() -> None:
    assert {route.operation for route in ROUTES if route.body is not None} <= OPERATIONS.keys()
    assert all(callable(handler_of(route, Fleet())) for route in ROUTES)
