"""Regular expressions of more than the hundred instructions that Envoy takes by itself: in a file, and by xDS."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.processes.control import controlling, driven
from tests.support.processes.driving import BOTH, both, change
from tests.support.processes.fleet import fleet_of, running
from tests.support.processes.replicas import replicas

_LONG = "/v1/[a-z0-9._-]{1,63}/chat/(completions|responses)"
_LARGEST = "/(" + "|".join(f".{{1,160}}{number}" for number in range(10, 70)) + ")"
"""About as large as a fleet may have it: some 100,000 instructions."""
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
    "largest": {"match": {"path_regex": _LARGEST}, "respond": {"status": 298, "body": "largest"}},
}


@pytest.mark.parametrize("limited", [False, True])
def test_a_rendered_envoy_takes_them_beside_a_limit_of_connections(limited: bool) -> None:
    with replicas("a") as (a,):
        fleet = fleet_of([a], routes=_ROUTES, listener={"max_connections": 50} if limited else {})
        with running("envoy", fleet) as gateway:
            assert {path: gateway.get(path).status for path in _ANSWERS} == _ANSWERS


def test_an_envoy_with_the_bootstrap_of_the_command_takes_them_and_what_comes_with_them() -> None:
    with (
        replicas("a") as (a,),
        controlling(plain := fleet_of([a], **driven(*BOTH))) as control,
        both(control) as envoys,
    ):
        change(control, {**plain, "routes": {**plain["routes"], **_ROUTES}})
        for envoy in envoys:
            client = envoy.client()
            assert {path: client.get(path).status for path in _ANSWERS} == _ANSWERS
