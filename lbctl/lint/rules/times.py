"""Rules about timeouts of requests and connections."""

from __future__ import annotations

from collections.abc import Iterator

from lbctl.lint.fleet_view import GENERATIVE_KINDS, FleetView, sources_of
from lbctl.lint.rule import Edit, RuleFinding, rule
from lbctl.lint.sample import LLM, sample

_MIN_IDLE = 120_000
_KEEP_ALIVE = 5_000
"""Milliseconds after which uvicorn closes an idle connection; vLLM, SGLang and most Python servers use it."""
_NOT_UVICORN = frozenset({"tgi", "triton", "tfserving", "torchserve", "llamacpp"})
"""Servers that do not use uvicorn."""


def _chat(timeouts: str) -> str:
    return f"chat: {{match: {{path_prefix: /v1/chat}}, pool: llama, timeouts: {timeouts}}}\n"


@rule(
    "LB310",
    "warning",
    "a total timeout before a model that generates",
    what="A route to a generative model ends requests after a total time.",
    why="A long answer is no error. Cut after 30 s it has burned 30 s of a GPU for nothing, the client asks again, and "
    "the next try is cut at the same place.",
    before=sample(routes=_chat("{request: 30s}")),
    after=sample(routes=_chat("{request: unlimited, idle: 5m}")),
    ignore="Answers have a bounded length (`max_tokens`) and the timeout is far above what that takes.",
)
def total_timeout_on_generation(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB310: a total timeout on a generative model."""
    for route, _ in fleet.forwards:
        if route.request_timeout is not None and fleet.streams(route):
            path = ("routes", route.name, "timeouts", "request")
            message = f"every answer that takes longer than {route.request_timeout / 1000:g} s is cut"
            yield RuleFinding(path, message, "request: unlimited; `idle` ends what is stuck", Edit(path, "unlimited"))


@rule(
    "LB311",
    "warning",
    "an idle timeout under two minutes before a model that generates",
    what="A route to a generative model gives up when no byte comes for less than 120 s.",
    why="Before the first token there is silence: a long prompt behind a queue may wait a minute and more. The proxy "
    "gives up just when the fleet is busy, and the retry makes it busier.",
    before=sample(routes=_chat("{idle: 60s}")),
    after=sample(routes=_chat("{idle: 5m}")),
    ignore="Prompts are short and queues are bounded well below it.",
)
def short_idle_timeout(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB311: an idle timeout under two minutes on a generative model."""
    for route, _ in fleet.forwards:
        if route.idle_timeout is not None and route.idle_timeout < _MIN_IDLE and fleet.streams(route):
            path = ("routes", route.name, "timeouts", "idle")
            message = f"{route.idle_timeout / 1000:g} s of silence are usual before the first token of a long prompt"
            yield RuleFinding(path, message, "idle: 5m", Edit(path, "5m"))


@rule(
    "LB312",
    "warning",
    "idle connections kept longer than the server keeps them",
    what="A pool's proxies keep idle HTTP/1 connections for 5 s or longer, and its servers use uvicorn, which "
    "closes them after 5 s. Most servers of models that generate do, so they are taken for it unless telemetry names "
    "another.",
    why="The side that sends must close first. Else now and then a POST meets a connection that the server is just "
    "closing: it is not known whether the model has seen it, so it cannot be repeated and fails.",
    before=sample(LLM + "connections: {idle: 60s}\n"),
    after=sample(LLM + "connections: {idle: 4s}\n"),
    ignore="The servers were started with a longer keep-alive (`--timeout-keep-alive`).",
)
def keep_alive_longer_than_server(fleet: FleetView) -> Iterator[RuleFinding]:
    """LB312: idle connections that outlive the server's keep-alive."""
    for pool in fleet.pools:
        kinds = {source.kind for source in sources_of(pool)}
        idle = pool.connections.idle
        if pool.protocol != "http1" or (idle is not None and idle < _KEEP_ALIVE) or kinds & _NOT_UVICORN:
            continue
        if not (kinds & GENERATIVE_KINDS or fleet.generates(pool.name)):
            continue
        path = ("pools", pool.name, "connections", "idle")
        kept = "for ever" if idle is None else f"for {idle / 1000:g} s"
        message = f"kept {kept}, but uvicorn closes after 5 s: a POST may meet the end"
        yield RuleFinding(path, message, "idle: 4s, or shorter than the server's own keep-alive", Edit(path, "4s"))
