"""The banner of `lbctl up`: a request that a replica of the fleet answers, and a key that `up` has just created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lbctl.ir.routes import ApiKeys, Auth
from lbctl.ir.topology import Topology
from lbctl.serve.settings import Options, settings
from lbctl.targets.load import Loaded
from lbctl.up.console import banner
from lbctl.up.fleet_additions import KeyFiles, guard_message
from lbctl.up.prepare import PreparedRun
from tests.support.fleets import fleet_of, load_fleet, pool

CHAT = """curl http://127.0.0.1:8080/v1/chat/completions -H 'content-type: application/json' \
-d '{"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20}'"""
MODEL = {"model": {"name": "m"}}


def banner_for(
    tmp_path: Path,
    match: Mapping[str, Any],
    model: Mapping[str, Any] | None = None,
    *,
    bind: str = "127.0.0.1:8080",
    auth: Mapping[str, Any] | None = None,
    keys: KeyFiles | None = None,
) -> str:
    """Return the banner for a fleet whose one route has this match."""
    route = {"match": match, **({"auth": auth} if auth else {})}
    loaded = load_fleet(tmp_path, fleet_of(pool(**(model or {})), route=route, listener={"bind": bind}))
    paths = (str(tmp_path / "fleet.yaml"),)
    prepared = PreparedRun([], paths, loaded, keys or KeyFiles({}, {}), None)
    return banner(prepared, settings(Options(paths, str(tmp_path)), loaded.source), Path("/tmp/up/envoy.log"))


@pytest.mark.parametrize(
    ("match", "model", "request_shown"),
    [
        ({"path_prefix": "/v1/"}, MODEL, CHAT),
        ({"path_prefix": "/", "model": ["m"]}, {}, CHAT),
        ({"path": "/v1/chat/completions"}, MODEL, CHAT),
        ({"path_prefix": "/v1/"}, {}, "curl http://127.0.0.1:8080/v1/models"),
        ({"path_prefix": "/v2/models/a"}, MODEL, "curl http://127.0.0.1:8080/v2/models/a"),
        ({"path": "/predict", "hosts": ["a.example"]}, {}, "curl -H 'host: a.example' http://127.0.0.1:8080/predict"),
    ],
)
def test_request_fits_the_route(
    tmp_path: Path, match: Mapping[str, Any], model: Mapping[str, Any], request_shown: str
) -> None:
    assert f"  try        {request_shown}\n" in banner_for(tmp_path, match, model)


def test_request_has_an_address_of_this_machine(tmp_path: Path) -> None:
    v1 = {"path_prefix": "/v1/"}
    assert "curl http://127.0.0.1:8080/v1/models" in banner_for(tmp_path, v1, bind="0.0.0.0:8080")
    by_socket = "curl --unix-socket /run/in.sock http://localhost/v1/models"
    assert by_socket in banner_for(tmp_path, v1, bind="unix:/run/in.sock")


def test_access_log_is_named(tmp_path: Path) -> None:
    assert "  requests   tail -f /tmp/up/envoy.log   (one line" in banner_for(tmp_path, {"path_prefix": "/v1/"})


def test_only_a_new_key_is_shown(tmp_path: Path) -> None:
    auth, file = {"api_keys": {"file": "keys"}}, tmp_path / "keys"
    file.write_text("")
    v1 = {"path_prefix": "/v1/"}
    new = banner_for(tmp_path, v1, auth=auth, keys=KeyFiles({file: "sk-new"}, {"everything": file}))
    assert '/v1/models -H "authorization: Bearer sk-new"\n' in new
    assert f"  key        sk-new   (shown only once; its entry is in {file})\n" in new
    existing = banner_for(tmp_path, v1, auth=auth, keys=KeyFiles({}, {"everything": file}))
    assert '/v1/models -H "authorization: Bearer $KEY"\n' in existing
    make = f"KEY=$(lbctl key new local --plain -f {file})"
    assert f"  key        unknown, because {file} contains only hashes; create a key: {make}\n" in existing
    file.write_text(f"# ours\nsk-known: local\nsha256:{'0' * 64}: local\n")
    existing = banner_for(tmp_path, v1, auth=auth, keys=KeyFiles({}, {"everything": file}))
    assert f"  key        use a key from {file}, or create one: {make}\n" in existing


def guarded(loaded: Loaded) -> Topology:
    """Return the topology as with the key check of `up`."""
    whole = loaded.compiled.topology
    return replace(whole, routes=tuple(replace(item, auth=Auth(ApiKeys("keys"))) for item in whole.routes))


def test_key_check_names_the_routes_that_it_does_not_reach(tmp_path: Path) -> None:
    fleet = fleet_of(pool())
    sentence = "no route in this fleet requires an API key, so `up` adds this requirement to all routes"
    assert guard_message(guarded(load_fleet(tmp_path, fleet))) == sentence
    fleet["routes"]["models"] = {"match": {"path": "/v1/models"}, "respond": {"models": True}}
    assert guard_message(guarded(load_fleet(tmp_path, fleet))) == sentence, "the list of models needs the key too"
    fleet["routes"]["ready"] = {"match": {"path": "/ready"}, "respond": {"status": 200}}
    message = guard_message(guarded(load_fleet(tmp_path, fleet)))
    assert message == f"{sentence}, except routes that the proxy answers itself: ready"
