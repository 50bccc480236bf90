"""A protected model cannot be reached by a body that the proxy and the replica read differently.

The route `secret` protects the model of that name, next to an open one. The possible readings of a request are all
readings that some server is known to have. If one of them is `secret`, the request must not have been accepted.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.targets import target
from lbctl.targets.load import load
from lbctl.targets.reading import Message
from lbctl.targets.route_trace import explain
from tests.support.fleets import Fleet
from tests.support.processes.binaries import Kind
from tests.support.processes.fleet import Gateway, bind, fleet_of, pool_of
from tests.support.processes.replicas import Replica, Seen
from tests.support.processes.shared import shared, shared_replicas

_READS_BODIES = pytest.mark.parametrize("kind", ["haproxy", "envoy"])
_FILES = {"keys": "sk-1: acme\n"}
_AUTH = {"api_keys": {"file": "keys"}}
_KEY = {"authorization": "Bearer sk-1"}
_JSON = {"content-type": "application/json"}
_FORM = {"content-type": "application/x-www-form-urlencoded"}
_MULTIPART = {"content-type": "multipart/form-data; boundary=b"}
_SECRET = b'{"model": "secret"}'
_BOTH = b'{"model": "secret", "model": "open"}'
_PART = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nsecret\r\n--b--\r\n'


def _secret(**keys: Any) -> dict[str, Any]:
    return {"match": {"path_prefix": "/v1", "model": ["secret"]}, "pool": "secret", **keys}


def _by_regex(route: dict[str, Any]) -> dict[str, Any]:
    return {**route, "match": {"path_regex": "/v1/(chat|text)/.*", "model": route["match"]["model"]}}


def _open(**match: Any) -> dict[str, Any]:
    return {"match": {"path_prefix": "/v1", **match}, "pool": "open"}


def _two_pool_fleet(secret: Replica, other: Replica, routes: Mapping[str, Any], **listener: Any) -> Fleet:
    fleet = fleet_of([other], listener=listener, pools={"secret": pool_of([secret]), "open": pool_of([other])})
    return {**fleet, "routes": dict(routes)}


@contextmanager
def _protected(
    kind: Kind, routes: Mapping[str, Any] | None = None, **listener: Any
) -> Iterator[tuple[Gateway, Replica, Replica]]:
    """Return the gateway, the replica of the protected model and the open one."""
    routes = routes or {"secret": _secret(auth=_AUTH), "open": _open()}
    with (
        shared_replicas("secret", "open") as (secret, other),
        shared(kind, _two_pool_fleet(secret, other, routes, **listener), files=_FILES) as gateway,
    ):
        yield gateway, secret, other


# ── Readings of replicas ─────────────────────────────────────────────────────────────────────────────────────────────


def _readings(seen: Seen) -> Iterator[str]:
    """Yield every model that some server might read in this request."""
    kind = next((value for name, value in seen.headers if name.lower() == "content-type"), "")
    bodies = [seen.body]
    if seen.body[:2] == b"\x1f\x8b":
        bodies.append(gzip.decompress(seen.body))
    for body in bodies:
        for text in _texts(body, kind):
            yield from _json_models(text)
        yield from parse_qs(body.decode("latin-1")).get("model", ())
        if b'name="model"' in body and "multipart" in kind:
            yield body.split(b'name="model"', 1)[1].split(b"\r\n")[2].decode()


def _texts(body: bytes, kind: str) -> Iterator[str]:
    named = [kind.rpartition("charset=")[2].strip('"')] if "charset=" in kind else []
    for encoding in (*named, json.detect_encoding(body), "utf-8-sig", "latin-1"):
        try:
            yield body.decode(encoding)
        except (UnicodeDecodeError, LookupError):
            continue


def _json_models(text: str) -> Iterator[str]:
    """Yield the models by the first and the last of two keys, in any case, with or without text after the object."""
    for pick in (dict, lambda items: dict(reversed(items))):
        decoder = json.JSONDecoder(object_pairs_hook=lambda items, pick=pick: _folded(pick, items), strict=False)
        start = text.find("{")
        try:
            value = decoder.raw_decode(text, start)[0] if start >= 0 else None
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and isinstance(value.get("model"), str):
            yield value["model"]


def _folded(pick: Any, items: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    return dict(pick([(name.lower().replace("\0", ""), value) for name, value in items]))


_ATTACKS: list[tuple[str, Mapping[str, str] | list[tuple[str, str]], bytes]] = [
    ("plain", _JSON, _SECRET),
    ("the header", {**_JSON, "x-model": "open"}, _SECRET),
    ("an empty header", {**_JSON, "x-model": ""}, _SECRET),
    ("two headers", [*_JSON.items(), ("x-model", "secret"), ("x-model", "open")], _SECRET),
    ("two headers turned", [*_JSON.items(), ("x-model", "open"), ("x-model", "secret")], _SECRET),
    ("twice", _JSON, _BOTH),
    ("twice turned", _JSON, b'{"model": "open", "model": "secret"}'),
    ("twice and a header", {**_JSON, "x-model": "open"}, _BOTH),
    ("far apart", _JSON, b'{"model": "open", "x": [' + b'{"a": "b"},' * 2000 + b'1], "model": "secret"}'),
    ("escaped key", _JSON, rb'{"mode\u006c": "secret"}'),
    ("escaped key beside", _JSON, rb'{"model": "open", "\u006dodel": "secret"}'),
    ("escaped model", _JSON, rb'{"model": "secr\u0065t"}'),
    ("another case", _JSON, b'{"Model": "secret"}'),
    ("another case beside", _JSON, b'{"model": "open", "MODEL": "secret"}'),
    ("NaN", _JSON, b'{"x": NaN, "model": "secret"}'),
    ("infinite", _JSON, b'{"x": -Infinity, "model": "secret"}'),
    ("mark", _JSON, b"\xef\xbb\xbf" + _SECRET),
    ("utf-16", _JSON, _SECRET.decode().encode("utf-16")),
    ("utf-16 unmarked", _JSON, _SECRET.decode().encode("utf-16-le")),
    ("utf-32", _JSON, _SECRET.decode().encode("utf-32")),
    ("utf-7", {"content-type": "application/json; charset=utf-7"}, b'{"a": "+ACIALAAi-model+ACIAOgAi-secret"}'),
    ("trailing", _JSON, _SECRET + b"x"),
    ("trailing nul", _JSON, _SECRET + b"\0"),
    ("two objects and a nul", _JSON, b'{"model": "open"}\0' + _SECRET),
    ("two objects", _JSON, _SECRET + b'{"model": "open"}'),
    ("leading", _JSON, b"\0" + _SECRET),
    ("nul in between", _JSON, b'{"x": "\0", "model": "secret"}'),
    ("nul in the key", _JSON, b'{"model\0": "secret"}'),
    ("raw control", _JSON, b'{"x": "a\nb", "model": "secret"}'),
    ("leading zero", _JSON, b'{"x": 01, "model": "secret"}'),
    ("trailing comma", _JSON, b'{"model": "secret",}'),
    ("comment", _JSON, b'{/**/"model": "secret"}'),
    ("deep", _JSON, b'{"x": ' + b'{"a":' * 30 + b"1" + b"}" * 30 + b', "model": "secret"}'),
    ("deeper", _JSON, b'{"x": ' + b"[" * 900 + b"]" * 900 + b', "model": "secret"}'),
    ("invalid escape", _JSON, rb'{"x": "\q", "model": "secret"}'),
    ("not utf-8", _JSON, b'{"x": "\xff", "model": "secret"}'),
    ("gzip", {**_JSON, "content-encoding": "gzip"}, gzip.compress(_SECRET)),
    ("gzip untold", _JSON, gzip.compress(_SECRET)),
    ("encoded by name", {**_JSON, "content-encoding": "br"}, b'{"model": "open"}'),
    ("encoded twice", [*_JSON.items(), ("content-encoding", "gzip"), ("content-encoding", "identity")], _SECRET),
    ("form", _FORM, b"model=secret"),
    ("form in JSON", _FORM, b'{"a": "&model=secret&"}'),
    ("JSON as form", _FORM, _SECRET),
    ("JSON as text", {"content-type": "text/plain"}, _SECRET),
    ("JSON as bytes", {"content-type": "application/octet-stream"}, _SECRET),
    ("two types", [("content-type", "multipart/form-data; boundary=b"), *_JSON.items()], _PART),
    ("multipart", _MULTIPART, _PART),
    ("multipart and a header", {**_MULTIPART, "x-model": "open"}, _PART),
    ("multipart after JSON", _MULTIPART, b'{"model": "open"}\r\n' + _PART),
    ("no type", {}, _SECRET),
    ("no type, header", {"x-model": "open"}, _SECRET),
    ("large", {**_JSON, "x-model": "open"}, b'{"x": "' + b"x" * 400_000 + b'", "model": "secret"}'),
    ("large, twice", _JSON, b'{"model": "open", "x": "' + b"x" * 400_000 + b'", "model": "secret"}'),
    ("large headers", {**_JSON, "a": "x" * 6000, "b": "x" * 6000}, _BOTH.replace(b",", b"," + b" " * 258_000)),
]  # fmt: skip
_FLEETS: dict[str, dict[str, Any]] = {
    "an open route for the rest": {"secret": _secret(auth=_AUTH), "open": _open()},
    "an open model": {"secret": _secret(auth=_AUTH), "open": _open(model=["open"])},
    "a protected rest": {"secret": {**_open(), "pool": "secret", "auth": _AUTH}, "open": _open(model=["open"])},
    "an expression": {"secret": _by_regex(_secret(auth=_AUTH)), "open": _open()},
    "a refused model": {"secret": {"match": _secret()["match"], "respond": {"status": 403}}, "open": _open()},
}  # fmt: skip


@pytest.mark.parametrize("routes", _FLEETS.values(), ids=_FLEETS.keys())
def test_no_body_reaches_a_protected_model_without_a_key(kind: Kind, routes: dict[str, Any]) -> None:
    through = []
    with _protected(kind, routes) as (gateway, secret, other):
        for name, headers, body in _ATTACKS:
            for method in ("POST", "GET"):
                for chunked in (False, True):
                    gateway.request(method, "/v1/chat/completions", headers, body, chunked=chunked)
                    through += [(name, method, chunked) for seen in other.seen if "secret" in _readings(seen)]
                    other.seen.clear()
        assert secret.requests == 0
    assert through == []


def test_no_body_bypasses_haproxy_with_the_old_pcre() -> None:
    routes = {"secret": _secret(auth=_AUTH), "open": _open()}
    with shared_replicas("secret", "open") as (secret, other):
        fleet = _two_pool_fleet(secret, other, routes)
        fleet["proxies"] = {"edge": {"kind": "haproxy", "version": "2.8"}}
        with shared("haproxy-2.8", fleet, files=_FILES) as gateway:
            for _, headers, body in _ATTACKS:
                gateway.post("/v1/chat/completions", body, headers)
            assert [seen for seen in other.seen if "secret" in _readings(seen)] == []
            assert gateway.post("/v1", _SECRET, {**_JSON, **_KEY}).replica == "secret"
            assert gateway.post("/v1", b'{"x": [{}], "model": "open"}', _JSON).replica == "open"


@_READS_BODIES
def test_ambiguous_model_is_a_400(kind: Kind) -> None:
    with _protected(kind) as (gateway, _secret_replica, other):
        twice = gateway.post("/v1/x", _BOTH, _JSON)
        for answer in (twice, gateway.post("/v1/x", _SECRET, {**_JSON, "x-model": "open", **_KEY})):
            assert (answer.status, answer.header("content-type")) == (400, "application/json")
            assert answer.json["error"]["type"] == "bad_request"
            assert "one model" in answer.json["error"]["message"]
        assert other.requests == 0


def test_nginx_closes_only_routes_that_bypass_the_key() -> None:
    """nginx reads no body: a header does not bypass the key, and clients with the key are served."""
    routes = {
        "secret": _secret(auth=_AUTH),
        "open": _open(),
        "alike": {"match": {"path_prefix": "/v1", "model": ["alike"]}, "pool": "open", "auth": _AUTH},
        "page": {"match": {"path": "/page"}, "pool": "open"},
    }
    with _protected("nginx", routes) as (gateway, secret, other):
        closed = [gateway.post("/v1", body, {**_JSON, **_KEY}) for body in (b"{}", _SECRET)]
        closed.append(gateway.get("/v1/models"))
        assert [(answer.status, answer.json["error"]["type"]) for answer in closed] == [(503, "closed")] * 3
        assert gateway.post("/v1", _SECRET, {**_JSON, **_KEY, "x-model": "secret"}).replica == "secret"
        assert gateway.post("/v1", _SECRET, {**_JSON, "x-model": "secret"}).status == 401
        assert gateway.post("/v1", _SECRET, {**_JSON, **_KEY, "x-model": "alike"}).replica == "open"
        assert gateway.post("/page", b"{}", _JSON).replica == "open"
        assert "LB421 routes.open: nginx does not read request bodies" in gateway.messages
        assert "routes.alike: nginx does not read" not in gateway.messages
        assert (secret.requests, other.requests) == (1, 2)


def test_nginx_closes_a_route_on_one_listener_only() -> None:
    with shared_replicas("secret", "open") as (secret, other):
        fleet = _two_pool_fleet(secret, other, {"secret": _secret(auth=_AUTH, listeners=["gateway"]), "open": _open()})
        fleet["listeners"]["inner"] = {"bind": bind()}
        with shared("nginx", fleet, files=_FILES) as gateway:
            assert gateway.post("/v1", _SECRET, _JSON).status == 503
            assert gateway.connect("inner").post("/v1", b"{}", _JSON).replica == "open"


# ── Requests that pass ───────────────────────────────────────────────────────────────────────────────────────────────

_TOOL = {
    "type": "function",
    "function": {
        "name": "rent",
        "description": 'a car; "model": "secret" is one',
        "parameters": {
            "type": "object",
            "properties": {"model": {"type": "string", "enum": ["secret", "T"]}, "model_": {"type": "null"}},
            "required": ["model"],
        },
    },
}
_CHATS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "hi"}], "stream": True, "temperature": 0.7, "top_p": 1e-2, "n": -1},
    {"messages": [{"role": "user", "content": 'say {"model": "secret"} and \\"model\\": 1'}], "user": None},
    {"messages": [{"role": "user", "content": json.dumps({"model": "secret", "x": [{}]})}], "tools": [_TOOL] * 8},
    {"messages": [{"role": "tool", "content": "ж" * 2000 + "\U0001f600\n\t\u0001\x7f"}], "data": {"model": "secret"}},
    {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": '{"model":"secret"}'}}]}]},
    {"prompt": list(range(5000)), "logit_bias": {"50256": -100}, "stop": ["\n", '"}'], "extra": {}, "empty": []},
    {"input": ["x" * 100] * 1500, "encoding_format": "float", "modelx": "secret", "my model": "secret", "": "model"},
    {"messages": [{"content": [{"type": "image_url", "image_url": {"url": "data:," + "QUJD/+=" * 20_000}}]}]},
    {"response_format": {"schema": json.loads('{"properties": {"a": ' * 40 + "1" + "}}" * 40)}},
]  # fmt: skip


def _spellings(chat: Mapping[str, Any], model: str) -> list[bytes]:
    """Return bodies with the model first and last, as clients in several languages write JSON."""
    first, last = {"model": model, **chat}, {**chat, "model": model}
    texts = [json.dumps(first), json.dumps(last), json.dumps(first, indent=2), json.dumps(last, separators=(",", ":"))]
    texts += [json.dumps(last, ensure_ascii=False) + "\r\n", json.dumps(first).replace("/", "\\/")]
    return [text.encode() for text in texts]


@_READS_BODIES
def test_ordinary_requests_pass(kind: Kind) -> None:
    """A model in the text of a chat, or deeper in the body, is not the model of the request."""
    routes = {"secret": _secret(auth=_AUTH), "open": _open()}
    routes["secret"]["match"]["model"] = ["secret", "acme/Llama-3.1-8B"]
    answered, expected = [], []
    with _protected(kind, routes) as (gateway, _one, _other):
        for model, where in (("acme/Llama-3.1-8B", "secret"), ("open", "open"), ("größer/x:y@1", "open")):
            for number, chat in enumerate(_CHATS):
                bodies = [item for item in _spellings(chat, model) if b"\\u00f6" not in item]
                answers = [gateway.post("/v1/chat", body, {**_JSON, **_KEY}) for body in bodies]
                answered += [(model, number, answer.replica or answer.status) for answer in answers]
                expected += [(model, number, where)] * len(bodies)
    assert answered == expected


@_READS_BODIES
def test_requests_with_at_most_one_model_pass(kind: Kind) -> None:
    cases: list[tuple[str, Mapping[str, str], bytes, str]] = [
        ("the same in header and body", {**_JSON, **_KEY, "x-model": "secret"}, _SECRET, "secret"),
        ("header alone", {**_JSON, **_KEY, "x-model": "secret"}, b"{}", "secret"),
        ("an empty model", _JSON, b'{"model": ""}', "open"),
        ("neither", _JSON, b'{"messages": []}', "open"),
        ("space", _JSON, b" \r\n\t{ } \n", "open"),
        ("no body", {}, b"", "open"),
        ("no body, header", {**_KEY, "x-model": "secret"}, b"", "secret"),
        ("no type", _KEY, _SECRET, "secret"),
        ("a charset", {**_KEY, "content-type": "Application/JSON; charset=UTF-8"}, _SECRET, "secret"),
        ("another JSON", {**_KEY, "content-type": "application/vnd.api+json"}, _SECRET, "secret"),
        ("identity", {**_KEY, **_JSON, "content-encoding": "identity"}, _SECRET, "secret"),
        ("without a key", _JSON, _SECRET, "401"),
    ]
    with _protected(kind) as (gateway, _one, _other):
        sent = [
            (name, gateway.post("/v1", body, headers, chunked=chunked))
            for name, headers, body, _ in cases
            for chunked in (False, True)
        ]
        assert gateway.get("/v1/models").replica == "open"
    answered = [(name, answer.replica or str(answer.status)) for name, answer in sent]
    assert answered == [(name, where) for name, _, _, where in cases for _ in range(2)]


@_READS_BODIES
def test_requests_for_unprotected_models_pass(kind: Kind) -> None:
    """Other paths of the listener, routes that are protected alike, and fleets that protect no model."""
    alike = {"match": {"path_prefix": "/alike", "model": ["x"]}, "pool": "open", "auth": _AUTH}
    files = {"match": {"path_prefix": "/files"}, "pool": "open"}
    rest = {"match": {"path_prefix": "/alike"}, "pool": "open", "auth": _AUTH}
    routes = {"secret": _secret(auth=_AUTH), "open": _open(), "alike": alike, "rest": rest, "files": files}
    with _protected(kind, routes) as (gateway, _one, other):
        for path in ("/files", "/alike"):
            for headers, body in (
                (_MULTIPART, _PART),
                (_FORM, b"a=b"),
                (_JSON, _BOTH),
                ({**_JSON, "x-model": "y"}, _SECRET),
            ):
                assert gateway.post(path, body, {**headers, **_KEY}).replica == "open", (path, body)
        long = {"content-type": "application/octet-stream", "x-model": "y"}
        assert gateway.post("/files", b"x" * (2 << 20), long).replica == "open"
        assert other.requests == 9


@pytest.mark.parametrize("limit", [{"rate_limit": [{"by": "all", "rate": "1/s", "burst": 1}]}, {"regions": ["eu"]}])
@_READS_BODIES
def test_limits_and_residency_are_not_bypassed(kind: Kind, limit: dict[str, Any]) -> None:
    with shared_replicas("secret", "open") as (secret, other):
        fleet = _two_pool_fleet(secret, other, {"secret": _secret(**limit), "open": _open()})
        fleet["pools"]["secret"]["replicas"][0]["region"] = "eu"
        with shared(kind, fleet) as gateway:
            assert gateway.post("/v1", _SECRET, {**_JSON, "x-model": "open"}).status == 400
            assert gateway.post("/v1", _BOTH, _JSON).status == 400
            assert gateway.post("/v1", _SECRET, _JSON).replica == "secret"
            assert other.requests == 0


@_READS_BODIES
def test_websocket_of_a_protected_route_is_refused(kind: Kind) -> None:
    """The proxy does not read the messages of a websocket."""
    routes: dict[str, Any] = {"secret": _secret(auth=_AUTH), "open": {**_open(), "websocket": True}}
    routes["talk"] = {"match": {"path": "/ws"}, "pool": "open", "websocket": True}
    with _protected(kind, routes) as (gateway, _one, _other):
        assert gateway.websocket("/v1/ws", ["x"]).status in (400, 403)
        assert gateway.websocket("/ws", ["x"]).replies == ("x",)


@_READS_BODIES
def test_body_beyond_the_inspected_size_is_a_413(kind: Kind) -> None:
    limit = {"haproxy": {"inspect": "64KiB"}, "envoy": {"max_body": "64KiB"}}[kind]
    early = json.dumps({"model": "open", "messages": "x" * 70_000}).encode()
    with _protected(kind, **limit) as (gateway, _one, other):
        answers = [
            gateway.post("/v1", early, {**_JSON, **header}, chunked=chunked)
            for header in ({}, {"x-model": "open"})
            for chunked in (False, True)
        ]
        assert [answer.status for answer in answers] == [413] * 4
        assert other.requests == 0


@_READS_BODIES
def test_explain_agrees_with_the_proxy(kind: Kind) -> None:
    with shared_replicas("secret", "open") as (secret, other):
        fleet = _two_pool_fleet(secret, other, {"secret": _secret(auth=_AUTH), "open": _open()})
        with shared(kind, fleet, files=_FILES) as gateway:
            loaded = load([str(gateway.proxy.directory / "fleet.yaml")], Diagnostics())
            assert loaded is not None
            listener = loaded.compiled.topology.listeners[0]
            explained, answered = [], []
            for name, headers, body in (item for item in _ATTACKS if item[0] != "deeper"):
                pairs = [*(headers.items() if isinstance(headers, Mapping) else headers), *_KEY.items()]
                message = Message("POST", "a.net", "/v1", tuple((key.lower(), value) for key, value in pairs), body)
                trace = explain(listener, message, kind, target(kind).versions[0])
                explained.append((name, trace.winner.route if trace.winner else trace.refusal and trace.refusal.status))
                answer = gateway.post("/v1", body, [("host", "a.net"), *pairs])
                answered.append((name, answer.replica or answer.status))
    assert explained == answered
