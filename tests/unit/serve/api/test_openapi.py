"""The OpenAPI document: it has every route that is served, and every field has a description."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from dataclasses import fields, replace

import aiohttp
import jsonschema
import pytest

from lbctl.ir.address import Address
from lbctl.serve.api import schema
from lbctl.serve.api.authorization import ApiAccess
from lbctl.serve.api.json_codec import SchemaError, decode, encode
from lbctl.serve.api.openapi import document
from lbctl.serve.api.server import ApiServer
from tests.support import api
from tests.support.api import Fleet
from tests.support.openapi import validate
from tests.support.paths import ROOT


def test_every_route_that_is_served_is_in_the_document_and_no_other() -> None:
    async def served() -> set[tuple[str, str]]:
        server = ApiServer(Fleet(), ApiAccess(Address("127.0.0.1", 0)))
        port = await server.start()
        try:
            assert server._runner is not None
            routes = server._runner.app.router.routes()
            found = {(route.method, route.resource.canonical) for route in routes if route.resource}
            url = f"http://127.0.0.1:{port}/api/v1/openapi.json"
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                assert await answer.json() == json.loads(json.dumps(document()))
            return {item for item in found if item[0] != "HEAD"}
        finally:
            await server.stop()

    written = {(method.upper(), path) for path, methods in document()["paths"].items() for method in methods}
    assert asyncio.run(served()) == written


def test_every_field_of_every_type_has_a_description_and_every_reference_leads_somewhere() -> None:
    types = document()["components"]["schemas"]
    for name, kind in types.items():
        jsonschema.Draft202012Validator.check_schema(kind)
        assert kind["description"], name
        for field, value in kind["properties"].items():
            assert value["description"].endswith((".", ":")), f"{name}.{field}"
    references = {part.partition('"')[0] for part in json.dumps(document()).split('"#/components/schemas/')[1:]}
    assert references <= types.keys()


def test_a_document_survives_json_and_a_field_may_have_another_name_there() -> None:
    shown = api.status(snapshot=schema.Snapshot("v1", api.THEN, 1.0, "state", 1, 2))
    assert json.loads(encode(shown))["snapshot"]["from"] == "state"
    validate("Status", json.loads(encode(shown)))
    assert decode(schema.Status, json.loads(encode(shown))) == shown
    both = schema.Proxies((replace(api.ENVOY, types=(api.TYPE,)), api.DRIVEN))
    assert decode(schema.Proxies, json.loads(encode(both))) == both


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"since": 1}, "since is not a string"),
        ({"ready": None}, "ready is not true or false"),
        ({"restart": [1]}, r"restart\[0\] is not a string"),
        ({"fleet": {}}, "fleet.paths is missing"),
        ({"sources": {"total": True, "failing": 0, "pools": {}}}, "sources.total is not a whole number"),
    ],
)
def test_an_answer_of_another_form_is_refused_with_its_path(change: dict[str, object], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        decode(schema.Status, json.loads(encode(api.STATUS)) | change)


def test_what_a_newer_server_adds_is_ignored() -> None:
    newer = json.loads(encode(api.REPLICA)) | {"colour": "blue"}
    assert decode(schema.Replica, newer) == api.REPLICA
    override = {"kind": "boost", "pool": "p", "replica": None}
    assert decode(schema.OverrideRemoval, override).kind == "boost"


def test_the_schema_imports_no_server() -> None:
    code = "import sys, lbctl.cli.status, lbctl.serve.api.schema; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    modules = set(done.stdout.split())
    assert "lbctl.serve.api.json_codec" in modules
    assert {"aiohttp", "grpc", "lbctl.serve.api.server", "lbctl.serve.api.openapi"} & modules == set()


def test_the_events_of_the_document_are_those_of_the_schema() -> None:
    events = document()["paths"]["/api/v1/events"]["get"]["x-events"]
    assert list(events) == list(schema.EVENTS)
    assert all(fields(kind) for kind in schema.EVENTS.values())
