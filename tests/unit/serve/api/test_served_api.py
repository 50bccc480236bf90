"""Every operation of the route table has its function."""

from __future__ import annotations

from lbctl.api.routes import ROUTES
from lbctl.serve.api import served_api
from lbctl.serve.api.served_state import OPERATIONS

SPECIAL = {"healthz", "readyz", "audit", "series"}
"""Operations with a document whose handler reads the request or sets the status."""


def test_every_route_with_a_document_has_a_function() -> None:
    assert served_api.OPERATIONS is OPERATIONS
    documents = {route.operation for route in ROUTES if isinstance(route.answer, type)}
    assert set(OPERATIONS) == documents - SPECIAL
