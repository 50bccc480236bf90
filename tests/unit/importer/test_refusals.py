"""Values that the model refuses are left out of an import, each with one finding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lbctl.base.diagnostics import Diagnostics
from lbctl.importer.draft import is_closed
from lbctl.model.fleet import parse
from tests.support.importer import imported_text

_PASS = "proxy_pass http://10.0.0.1:8000;"
_SERVED = f"location /served/ {{ {_PASS} }}"
_FILES = "ssl_certificate a/..; ssl_certificate_key ~/k;"
_WHOLE_LISTENER = "the port must be a number from 1 to 65535; the whole listener was left out"
_WHOLE_ROUTE = "is not a path; the whole route was left out, and another route may receive its requests"
_CASES = {
    "replica": (
        "upstream u { server 10.0.0.2:80; server 10.0.0.2:99999; } server { location / { proxy_pass http://u; } }",
        ["pools.u.replicas.1: '10.0.0.2:99999': the port must be a number from 1 to 65535"],
    ),
    "mirror": (
        f"server {{ location / {{ mirror /copy; {_PASS} }} location = /copy {{ proxy_pass http://unix:x; }} }}",
        [
            "pools.copy.replicas.0: 'unix:x' is a unix socket without an absolute path",
            "pools.copy: the pool has no replica",
            "routes.copy.pool: there is no pool 'copy'",
            "routes.default.mirror: there is no pool 'copy'",
        ],
    ),
    "certificate": (
        f"server {{ listen 443 ssl; {_FILES} {_SERVED} }}",
        ["listeners.https.tls: 'a/..' contains .."],
    ),
    "bind": (
        f"server {{ {_SERVED} }} server {{ listen 99999; location /other/ {{ {_PASS} }} }}",
        [
            f"listeners.port-99999.bind: '0.0.0.0:99999': {_WHOLE_LISTENER}",
            "routes.other.listeners.0: there is no listener 'port-99999'; the whole route was left out",
        ],
    ),
    "match": (
        f"server {{ {_SERVED} location /a%b/ {{ {_PASS} }} }}",
        [f"routes.a-b.match.path_prefix: '/a%b/' {_WHOLE_ROUTE}"],
    ),
    "answer": (
        f"server {{ {_SERVED} location /answer/ {{ return 999 text; }} }}",
        ["routes.answer.respond: 999 is out of range"],
    ),
    "header": (
        f"server {{ location / {{ {_PASS} proxy_set_header -x a; }} }}",
        ["routes.default.headers.request.set.-x: '-x' is not a header name"],
    ),
}


def _left_out(diagnostics: Diagnostics) -> list[str]:
    parts = (item.message.partition(" was left out: ") for item in diagnostics)
    return sorted({f"{path}: {why}" for path, separator, why in parts if separator})


@pytest.mark.parametrize(("text", "expected"), _CASES.values(), ids=_CASES)
def test_refused_value_is_one_finding(text: str, expected: list[str], tmp_path: Path) -> None:
    _, diagnostics = imported_text("nginx", text, tmp_path)
    assert _left_out(diagnostics) == expected


def test_comment_has_one_reason_for_a_directive(tmp_path: Path) -> None:
    text = f"server {{ listen 443 ssl; {_FILES} {_SERVED} }}"
    result, _ = imported_text("nginx", text, tmp_path)
    assert [line for line in result.text.splitlines() if "ssl_certificate " in line] == [
        "    #   source.conf:1 ssl_certificate a/.."
    ]
    assert is_closed(result.draft.fleet["routes"]["served"])


def test_refused_value_leaves_room_for_a_valid_one(tmp_path: Path) -> None:
    locations = " ".join(
        f"location /{name}/ {{ proxy_pass http://u; proxy_connect_timeout {time}; }}"
        for name, time in (("a", "99999999s"), ("b", "3s"))
    )
    text = f"upstream u {{ server 10.0.0.1:8000; }} server {{ listen 80; {locations} }}"
    pool = imported_text("nginx", text, tmp_path)[0].draft.fleet["pools"]["u"]
    assert pool["timeouts"] == {"connect": "3s"}


def test_route_goes_with_its_only_listener(tmp_path: Path) -> None:
    routes = imported_text("nginx", _CASES["bind"][0], tmp_path)[0].draft.fleet["routes"]
    assert list(routes) == ["served"]


def test_route_stays_on_its_other_listeners(tmp_path: Path) -> None:
    two = f"server {{ listen 81; listen 99999; location /two/ {{ {_PASS} }} }}"
    routes = imported_text("nginx", f"server {{ {_SERVED} }} {two}", tmp_path)[0].draft.fleet["routes"]
    assert routes["two"]["listeners"] == ["port-81"]


def test_comment_of_a_closed_route_has_only_valid_values(tmp_path: Path) -> None:
    rules = "http-request set-header X-A {HOME}\n http-request deny if { src -f /etc/list }"
    text = (
        f"defaults\n mode http\nfrontend f\n bind :80\n {rules}\n default_backend b\nbackend b\n server s 10.0.0.1:80\n"
    )
    result, _ = imported_text("haproxy", text, tmp_path)
    assert is_closed(result.draft.fleet["routes"]["f"])
    assert result.draft.closed["routes", "f"].removed == {"pool": "b"}


@pytest.mark.parametrize(
    ("name", "passes"), [("replica", 1), ("certificate", 1), ("match", 1), ("answer", 1), ("header", 1), ("mirror", 2)]
)
def test_fleet_is_validated_again_only_after_repair(
    name: str, passes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return parse(*arguments)

    monkeypatch.setattr("lbctl.importer.validate.parse", counted)
    imported_text("nginx", _CASES[name][0], tmp_path)
    assert len(calls) == passes
