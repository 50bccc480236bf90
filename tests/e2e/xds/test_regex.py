"""Regular expressions larger than the hundred instructions that Envoy allows by default: in a file, and by xDS."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.processes.driven_envoys import DrivenEnvoys
from tests.support.processes.driving import change
from tests.support.processes.fleet import fleet_of, running
from tests.support.processes.replicas import replicas

_LONG = "/v1/[a-z0-9._-]{1,63}/chat/(completions|responses)"
_LARGE_REGEX = "/(" + "|".join(f".{{1,160}}{number}" for number in range(10, 70)) + ")"
"""Close to the largest expression that a fleet may have: about 100,000 instructions."""
_ANSWERS = {
    "/v1/llama-3.1/chat/completions": 299,
    f"/v1/{'a' * 63}/chat/responses": 299,
    f"/v1/{'a' * 64}/chat/responses": 200,
    "/v1/Llama/chat/responses": 200,
    "/abc69": 298,
    "/abc70": 200,
}
_ROUTES: dict[str, Any] = {
    "long": {"match": {"path_regex": _LONG}, "respond": {"status": 299, "body": "long"}},
    "largest": {"match": {"path_regex": _LARGE_REGEX}, "respond": {"status": 298, "body": "largest"}},
}


@pytest.mark.parametrize("limited", [False, True])
def test_rendered_envoy_accepts_large_expressions(limited: bool) -> None:
    with replicas("a") as (a,):
        fleet = fleet_of([a], routes=_ROUTES, listener={"max_connections": 50} if limited else {})
        with running("envoy", fleet) as gateway:
            assert {path: gateway.get(path).status for path in _ANSWERS} == _ANSWERS


def test_bootstrapped_envoy_accepts_large_expressions(driven_envoys: DrivenEnvoys) -> None:
    with replicas("a") as (a,):
        driven_envoys.serve(plain := driven_envoys.fleet_of([a]))
        change(driven_envoys.control, {**plain, "routes": {**plain["routes"], **_ROUTES}})
        for envoy in driven_envoys.envoys:
            client = envoy.client()
            assert {path: client.get(path).status for path in _ANSWERS} == _ANSWERS
