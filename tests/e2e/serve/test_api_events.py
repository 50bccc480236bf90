"""The API of a running `serve`: responses match its OpenAPI document, and its events report every change."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import requests

from lbctl.api import schema
from lbctl.api.routes import ROUTES
from lbctl.cli import run
from tests.support.fleets import Fleet
from tests.support.openapi import answer_type, validate
from tests.support.processes.control import ControlPlane, controlling
from tests.support.processes.fleet import fleet_of
from tests.support.processes.ports import HOST, free_port

pytestmark = pytest.mark.e2e
_TIMEOUT = 60.0
"""Seconds."""
LISTENER = {"bind": f"{HOST}:{free_port()}"}


def fleet(*weights: int) -> Fleet:
    replicas = [
        {"name": f"r{index}", "address": f"{HOST}:{9 + index}", "weight": weight}
        for index, weight in enumerate(weights)
    ]
    telemetry = {"interval": "1s", "sources": [{"kind": "vllm", "url": f"http://{HOST}:9/metrics"}]}
    proxies = {"edge": {"kind": "envoy", "nodes": ["edge"]}, "ha": {"kind": "haproxy"}}
    return fleet_of({"replicas": replicas, "telemetry": telemetry}, listener=LISTENER, proxies=proxies)


@dataclass
class Stream:
    """A client of the stream of events, which reads in a separate thread."""

    response: requests.Response
    events: queue.SimpleQueue[tuple[str, str, Any]] = field(default_factory=queue.SimpleQueue)
    ended: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        """Parse the stream; every event must have its type in the document."""
        fields: dict[str, str] = {}
        with suppress(requests.RequestException, OSError, AttributeError):  # urllib3's errors when the test closes it
            for line in self.response.iter_lines(chunk_size=1, decode_unicode=True):
                if line:
                    name, _, value = line.partition(": ")
                    fields[name] = value
                elif "event" in fields:
                    self.events.put((fields.get("id", ""), fields["event"], json.loads(fields["data"])))
                    fields = {}
                else:
                    fields = {}
        self.ended.set()

    def next(self, name: str) -> tuple[str, Any]:
        """Return the id and the data of the next event of this name."""
        end = time.monotonic() + _TIMEOUT
        while True:
            number, event, data = self.events.get(timeout=max(0.001, end - time.monotonic()))
            validate(schema.EVENTS[event].__name__, data)
            if event == name:
                return number, data


@contextmanager
def streaming(control: ControlPlane, last_event_id: str | None = None) -> Iterator[Stream]:
    headers = {"last-event-id": last_event_id} if last_event_id else {}
    with requests.Session() as session:
        session.trust_env = False
        with session.get(f"{control.url}/api/v1/events", headers=headers, stream=True, timeout=30) as response:
            assert response.status_code == 200
            assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
            stream = Stream(response)
            thread = threading.Thread(target=stream.read, daemon=True)
            thread.start()
            yield stream
            with suppress(Exception):
                response.raw._connection.sock.shutdown(2)
            thread.join(5)


def server(control: ControlPlane) -> list[str]:
    return ["--server", control.url, "--token-file", str(control.state / "api-token")]


def test_every_answer_has_its_documented_type() -> None:
    with controlling(fleet(1, 1)) as control:
        assert run(["drain", "pool/r0", "--ttl", "10m", "--reason", "a fan", *server(control)]) == 0
        document = control.get("openapi.json")
        reads = [path for path, methods in document["paths"].items() if "get" in methods]
        typed = [path for path in reads if "application/json" in _answer(document, path) and "openapi" not in path]
        assert len(typed) == sum(route.method == "GET" and isinstance(route.answer, type) for route in ROUTES)
        for path in typed:
            query = {"pool": "pool", "metric": "share"} if path == "/api/v1/series" else {}
            answer = requests.get(control.url + path, params=query, timeout=30)
            validate(answer_type(path), answer.json())
        assert control.get("pools")["pools"][0]["replicas"][0]["drained"]
        assert {item["kind"] for item in control.get("proxies")["proxies"]} == {"haproxy"}
        assert len(control.get("decisions")["decisions"]) == len(control.get("signals")["signals"]) == 2
        validate("ReloadResult", control.reload().json())
        validate("Error", requests.post(f"{control.url}/api/v1/reload", timeout=30).json())


def _answer(document: dict[str, Any], path: str) -> dict[str, Any]:
    content: dict[str, Any] = document["paths"][path]["get"]["responses"]["200"]["content"]
    return content


def test_changes_arrive_as_events_and_a_client_can_resume() -> None:
    with controlling(fleet(1, 1)) as control:
        with streaming(control) as stream:
            assert run(["drain", "pool/r0", "--reason", "a fan", *server(control)]) == 0
            _, change = stream.next("overrides")
            assert [(item["kind"], item["replica"], item["reason"]) for item in change["added"]] == [
                ("drain", "r0", "a fan")
            ]
            first, published = stream.next("published")
            assert (published["cause"], published["version"]) == ("an override", control.status["snapshot"]["version"])
            assert published["changed"]["eds"] == 1
            assert run(["weight", "set", "pool/r1", "3", *server(control)]) == 0
            weighted, published = stream.next("published")
            assert published["weights"] == {"pool": {"r1": 3.0}}
            assert int(weighted) > int(first)
            control.write({**fleet(1, 1, 1), "version": 7})
            _, reload = stream.next("reload")
            assert (reload["result"], reload["errors"] > 0) == ("invalid", True)
        control.write(fleet(1, 1, 2))
        assert control.reload().json()["result"] in ("published", "unchanged")
        with streaming(control, first) as again:
            assert again.next("published")[0] == weighted
            assert again.next("reload")[1]["result"] == "invalid"
            assert again.next("reload")[1]["result"] == "published"
        with streaming(control, "7") as late:
            assert int(late.next("missed")[1]["oldest"]) <= int(first)
            number, published = late.next("published")
            assert (int(number) < int(first), published["cause"]) == (True, "the files")


def test_fifty_clients_get_each_event_and_the_end_of_serve() -> None:
    with controlling(fleet(1, 1)) as control:
        managers = [streaming(control) for _ in range(50)]
        streams = [manager.__enter__() for manager in managers]
        for value in ("2", "3"):
            assert run(["weight", "set", "pool/r0", value, *server(control)]) == 0
        for stream in streams:
            weights = [stream.next("published")[1]["weights"] for _ in range(2)]
            assert weights == [{"pool": {"r0": 2.0}}, {"pool": {"r0": 3.0}}]
        assert control.stop() == 0
        for stream in streams:
            assert stream.next("closed")[1] == {"reason": "shutdown"}
            assert stream.ended.wait(_TIMEOUT)
        for manager in managers:
            manager.__exit__(None, None, None)


def test_other_hosts_and_origins_get_no_events() -> None:
    with controlling(fleet(1)) as control:
        for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
            answer = requests.get(f"{control.url}/api/v1/events", headers=headers, timeout=30)
            assert answer.status_code == 403
            validate("Error", answer.json())
