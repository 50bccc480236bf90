"""The OpenAPI document lists every served route, and every field has a description."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import aiohttp
import jsonschema
import pytest
from msgspec.structs import replace

from lbctl.api import schema
from lbctl.api.codec import SchemaError, decode, decode_json, encode, fields, json_text, plain
from lbctl.api.openapi import document
from lbctl.ir.address import Address
from lbctl.serve.api.authorization import ApiAccess
from lbctl.serve.api.server import ApiServer
from tests.support import api
from tests.support.api import Fleet
from tests.support.openapi import validate
from tests.support.paths import ROOT


def test_document_lists_exactly_the_served_routes() -> None:
    async def served() -> set[tuple[str, str]]:
        server = ApiServer(Fleet(), ApiAccess(Address("127.0.0.1", 0)))
        port = await server.start()
        try:
            assert server._runner is not None
            routes = server._runner.app.router.routes()
            served_routes = {(route.method, route.resource.canonical) for route in routes if route.resource}
            url = f"http://127.0.0.1:{port}/api/v1/openapi.json"
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                assert await answer.json() == json.loads(json.dumps(document()))
            return {item for item in served_routes if item[0] != "HEAD"}
        finally:
            await server.stop()

    documented = {(method.upper(), path) for path, methods in document()["paths"].items() for method in methods}
    assert asyncio.run(served()) == documented


def test_fields_have_descriptions_and_references_resolve() -> None:
    types = document()["components"]["schemas"]
    for name, kind in types.items():
        jsonschema.Draft202012Validator.check_schema(kind)
        assert kind["description"], name
        for field, value in kind["properties"].items():
            assert value["description"].endswith((".", ":")), f"{name}.{field}"
    references = {part.partition('"')[0] for part in json.dumps(document()).split('"#/components/schemas/')[1:]}
    assert references <= types.keys()


def test_response_survives_json_with_renamed_field() -> None:
    shown = api.status(snapshot=schema.Snapshot("v1", api.THEN, 1.0, "state", 1, 2))
    assert json.loads(encode(shown))["snapshot"]["from"] == "state"
    validate("Status", json.loads(encode(shown)))
    assert decode(schema.Status, json.loads(encode(shown))) == shown
    both = schema.Proxies((replace(api.ENVOY, types=(api.TYPE,)), api.DRIVEN))
    assert decode(schema.Proxies, json.loads(encode(both))) == both
    assert decode_json(schema.Proxies, encode(both).encode()) == both


def test_numbers_keep_their_form() -> None:
    removal = schema.OverrideRequest("weight", "chat", "a", 2)
    text = encode(removal, indent=1)
    assert json.loads(text)["value"] == 2
    assert "2.0" not in encode(decode_json(schema.OverrideRequest, text.encode()))


def test_text_is_laid_out_as_by_python() -> None:
    shown = api.status(snapshot=schema.Snapshot("v1", api.THEN, 1.0, "state", 1, 2))
    for indent in (None, 1, 2):
        assert encode(shown, indent or 0) == json_text(shown, indent) == json.dumps(plain(shown), indent=indent)
    assert encode({"half": "\ud800", "é": 1e-05}) == '{"half": "\ufffd", "é": 1e-05}'


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
def test_invalid_response_is_rejected_with_its_path(change: dict[str, object], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        decode(schema.Status, json.loads(encode(api.STATUS)) | change)


def test_unknown_fields_of_a_newer_server_are_ignored() -> None:
    newer = json.loads(encode(api.REPLICA)) | {"colour": "blue"}
    assert decode(schema.Replica, newer) == api.REPLICA
    override = {"kind": "boost", "pool": "p", "replica": None}
    assert decode(schema.OverrideRemoval, override).kind == "boost"


def test_schema_does_not_import_the_server() -> None:
    code = "import sys, lbctl.cli.status, lbctl.api.schema; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    modules = set(done.stdout.split())
    assert "lbctl.api.codec" in modules
    assert {"aiohttp", "grpc", "lbctl.serve.api.server", "lbctl.api.openapi"} & modules == set()


def test_document_lists_the_events_of_the_schema() -> None:
    events = document()["paths"]["/api/v1/events"]["get"]["x-events"]
    assert list(events) == list(schema.EVENTS)
    assert all(fields(kind) for kind in schema.EVENTS.values())
