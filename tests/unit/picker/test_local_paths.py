"""Requests of a local `serve` to `lbctl picker`, and the rejection of web pages and invalid questions."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from lbctl.ir.address import Address
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker import wire
from lbctl.picker.http_api import HttpApi
from lbctl.picker.http_protocol import HttpRequest
from lbctl.picker.process import local_paths
from lbctl.picker.service import PickService
from tests.unit.picker.test_service import POLICY

PATHS = [wire.REPORT_PATH, wire.EXPLAIN_PATH]
QUESTION: dict[str, Any] = {
    "kind": "explain", "pool": "chat", "place": [None, None], "headers": {"a": ["b"]}, "body": "{}", "length": 2,
}  # fmt: skip


def _service() -> PickService:
    service = PickService()
    service.set_table("chat", PoolTable("chat", POLICY, (Candidate("a", "10.0.0.1:80"),)))
    HttpApi(service, bytes).handle(HttpRequest("POST", "/pick/chat", {}, b"{}"))
    return service


def _post(service: PickService, path: str, body: bytes = b"") -> Any:
    answer = HttpApi(service, bytes, local_paths(service)).handle(HttpRequest("POST", path, {}, body))
    assert answer.status == 200
    return json.loads(answer.body)


def test_reading_a_report_changes_nothing() -> None:
    service = _service()
    first, second = (_post(service, wire.REPORT_PATH) for _ in range(2))
    assert (len(first["samples"]), first["sampled"]) == (1, 1)
    assert first == second


@pytest.mark.parametrize("path", PATHS)
def test_web_pages_and_other_methods_are_refused(path: str) -> None:
    service = _service()
    api = HttpApi(service, bytes, local_paths(service), Address("127.0.0.1", 18002))
    statuses = [
        api.handle(HttpRequest(method, path, headers, json.dumps(QUESTION).encode())).status
        for method, headers in (("POST", {}), ("GET", {}), ("HEAD", {}), ("POST", {"origin": ["null"]}))
    ]
    assert statuses == [200, 405, 405, 403]


@pytest.mark.parametrize("path", PATHS)
def test_child_of_serve_does_not_answer(path: str) -> None:
    answers = [HttpApi(_service(), bytes).handle(HttpRequest(method, path, {}, b"")) for method in ("GET", "POST")]
    assert [answer.status for answer in answers] == [404, 405]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"pool": None}, "pool: not a text"),
        ({"pool": "\ud800"}, "pool: not a text"),
        ({"body": "\udfff"}, "body: not a text"),
        ({"place": [1, None]}, "place: not a list that consists of a region and a zone"),
        ({"place": "eu"}, "place: not a list that consists of a region and a zone"),
        ({"headers": {"a": "b"}}, "headers: not an object of lists of strings"),
        ({"headers": [["a", "b"]]}, "headers: not an object of lists of strings"),
        ({"length": True}, "length: not an integer from 0 to 9007199254740992"),
        ({"length": 10**400}, "length: not an integer from 0 to 9007199254740992"),
        ({"kind": 1}, "a line is not an object with a kind"),
    ],
)
def test_invalid_question_fails_with_its_reason(
    change: dict[str, Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        answer = _post(_service(), wire.EXPLAIN_PATH, json.dumps({**QUESTION, **change}).encode())
    assert (answer, caplog.records) == ({"kind": "failed", "why": why}, [])


def test_valid_question_is_explained() -> None:
    answer = _post(_service(), wire.EXPLAIN_PATH, json.dumps(QUESTION).encode())
    assert answer["kind"] == "explained"
    assert answer["explanation"] is not None
