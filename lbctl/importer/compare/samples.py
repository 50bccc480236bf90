"""Requests that test a fleet's routes, with one request per route and one without a matching route."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_BODY = {"model": "sample", "messages": [{"role": "user", "content": "hello"}]}


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A request to a listener."""

    route: str
    """Route under test, or an empty string for a request without a route."""
    listener: str
    method: str
    host: str
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    """Additional headers."""
    body: str = ""

    @property
    def label(self) -> str:
        """Short description of the request."""
        extra = "".join(f" {name}={value}" for name, value in self.headers.items() if name != "content-type")
        return f"{self.method} {self.host}{self.path}{extra}"


def samples(fleet: dict[str, Any], longer_paths: Mapping[str, str] | None = None) -> Iterator[SampleRequest]:
    """Yield the requests for a fleet, in the order of its routes.

    `longer_paths` are paths that start with a route's prefix but belong to another route.
    """
    for name, route in fleet["routes"].items():
        for listener in route.get("listeners") or list(fleet["listeners"]):
            method = "GET" if "redirect" in route.get("respond", {}) else "POST"
            match = route.get("match", {})
            yield from _of_route(name, listener, match, method)
            if path := (longer_paths or {}).get(name):
                others = {key: value for key, value in match.items() if key != "path_prefix"}
                yield from list(_of_route(name, listener, others | {"path": path}, method))[:1]
    for listener in fleet["listeners"]:
        yield SampleRequest("", listener, "GET", "unknown.example", "/no/route/was/written/for/this")


def _of_route(name: str, listener: str, match: dict[str, Any], method: str) -> Iterator[SampleRequest]:
    hosts = [host.replace("*.", "some.") for host in match.get("hosts", [])][:2] or ["sample.example"]
    methods = match.get("methods", [])[:2] or [method]
    headers, body = dict(match.get("headers", {})), dict(_BODY)
    if match.get("model"):
        body["model"] = match["model"][0].replace("*", "-sample")
    for path in _paths(match):
        for host in hosts:
            for each in methods:
                has_body = each in {"POST", "PUT", "PATCH"}
                extra = {"content-type": "application/json"} if has_body else {}
                content = json.dumps(body) if has_body else ""
                yield SampleRequest(name, listener, each, host, path, headers | extra, content)


def _paths(match: dict[str, Any]) -> list[str]:
    if "path" in match:
        return [match["path"]]
    if "path_regex" in match:
        return [example(match["path_regex"])]
    prefix = match.get("path_prefix", "/")
    return [f"{prefix.rstrip('/')}/sample?n=1"]


def example(pattern: str) -> str:
    """Return a string that matches the regular expression."""
    from re import _parser  # type: ignore[attr-defined]

    return "".join(_generated(_parser.parse(pattern)))


def _generated(parsed: Iterable[Any]) -> Iterator[str]:
    for operation, argument in parsed:
        name = str(operation)
        if name == "LITERAL":
            yield chr(argument)
        elif name in {"ANY", "NOT_LITERAL"}:
            yield "y" if argument == ord("x") else "x"
        elif name == "IN":
            yield from _one_of(argument)
        elif name in {"MAX_REPEAT", "MIN_REPEAT"}:
            yield from "".join(_generated(argument[2])) * max(
                1 if argument[0] == 0 and argument[1] > 1 else 0, argument[0]
            )
        elif name == "BRANCH":
            yield from _generated(argument[1][0])
        elif name == "SUBPATTERN":
            yield from _generated(argument[3])


def _one_of(members: list[Any]) -> Iterator[str]:
    kind, value = str(members[0][0]), members[0][1]
    if kind == "NEGATE":
        yield "x"
    elif kind == "LITERAL":
        yield chr(value)
    elif kind == "RANGE":
        yield chr(value[0])
    else:
        yield "1" if "DIGIT" in str(value) else "a"
