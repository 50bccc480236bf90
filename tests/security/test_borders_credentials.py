"""A credential in a fleet is treated the same wherever it is written: matched, pinned or set."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from lbctl.apply.files import write_bundle
from lbctl.cli import run
from lbctl.ir import settings
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import Snapshot, view
from lbctl.ir.written_credentials import of_topology
from lbctl.targets import KINDS, target
from lbctl.xds.build.snapshot_cache import Builder, CachedSnapshot
from lbctl.xds.resource import CDS, LDS, RDS
from tests.support.fleet import OLDEST, compiled, reading
from tests.support.fleets import fleet_of, fleet_text, pool, write_fleet
from tests.support.xds import load_text

_SECRET = "Zq7f3a9c2b5d1e8f60"
_PLACES: dict[str, dict[str, Any]] = {
    "matched header": {"match": {"path_prefix": "/", "headers": {"x-api-key": _SECRET}}},
    "matched cookie header": {"match": {"path_prefix": "/", "headers": {"cookie": f"a={_SECRET}"}}},
    "pinned header": {"pin": [{"header": "x-api-key", "equals": _SECRET, "pool": "other"}]},
    "pinned header of another name": {"pin": [{"header": "x-team-token", "equals": _SECRET, "pool": "other"}]},
    "matched header, by the form of the value": {
        "match": {"path_prefix": "/", "headers": {"x-customer": f"sk-{_SECRET}"}}
    },
    "pinned header, by the form of the value": {
        "pin": [{"header": "x-customer", "equals": f"sk-{_SECRET}", "pool": "other"}]
    },
    "pinned cookie, by the form of the value": {
        "pin": [{"cookie": "shard", "equals": f"sk-{_SECRET}", "pool": "other"}]
    },
    "matched header x-admin-pw": {"match": {"path_prefix": "/", "headers": {"x-admin-pw": _SECRET}}},
    "pinned cookie": {"pin": [{"cookie": "session", "equals": _SECRET, "pool": "other"}]},
    "health check": {},
    "set header": {"headers": {"request": {"set": {"authorization": f"Bearer {_SECRET}"}}}},
}
place = pytest.mark.parametrize("name", _PLACES)


def _fleet(name: str = "") -> dict[str, Any]:
    another = {"match": {"path_prefix": "/"}, "pool": "other"}
    path = f"/health?ready=1&key={_SECRET}" if name == "health check" else "/health"
    checked = pool(health={"active": {"http": {"path": path}}})
    return fleet_of(checked, route=_PLACES.get(name, {}), routes={"another": another}, pools={"other": pool()})


def _text(name: str = "") -> str:
    return yaml.safe_dump(_fleet(name))


def _built(name: str) -> CachedSnapshot:
    loaded = load_text(_text(name))
    edge = Proxy("edge", "envoy", OLDEST["envoy"])
    return Builder().build(loaded, Snapshot(loaded.compiled.topology), [edge])


@place
@pytest.mark.parametrize("kind", KINDS)
def test_rendered_file_is_private(kind: str, name: str, tmp_path: Path) -> None:
    topology = compiled(_text(name)).topology
    bundle = target(kind).render(view(Snapshot(topology), Proxy("edge", kind, OLDEST[kind])))
    write_bundle(bundle, str(tmp_path))
    modes = {item.stat().st_mode for item in tmp_path.iterdir() if _SECRET in item.read_text().replace("\\", "")}
    in_no_file = name == "health check" and kind == "nginx"  # nginx has no active checks
    assert {stat.S_IMODE(mode) for mode in modes} == (set() if in_no_file else {0o600})


@place
def test_xds_resources_are_secret(name: str) -> None:
    resources = _built(name).resources(Proxy("edge", "envoy", OLDEST["envoy"]))
    holding = [
        item for kind in (CDS, LDS, RDS) for item in resources.of(kind).values() if _SECRET.encode() in item.body
    ]
    assert holding
    assert all(item.secret for item in holding)


@place
def test_rejection_does_not_repeat_the_value(name: str) -> None:
    built = _built(name)
    (value,) = of_topology(built.snapshot.topology)
    assert built.redacted(f"cannot parse '{value}'") == "cannot parse '…'"


@place
def test_settings_show_a_digest(name: str) -> None:
    topology = compiled(_text(name)).topology
    rules = settings.rules_by_route(topology)["everything"]
    (route,) = (item for item in topology.routes if item.name == "everything")
    shown = settings.of_route(route, rules), [settings.of_pool(item) for item in topology.pools]
    assert _SECRET not in str(shown)


@place
@pytest.mark.parametrize("form", ["table", "markdown", "json"])
def test_diff_shows_a_digest(name: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    old = write_fleet(tmp_path / "old", _fleet())
    new = write_fleet(tmp_path / "new", _fleet(name))
    run(["diff", "-o", form, str(new), "--against", str(old)])
    run(["diff", "-o", form, str(old), "--against", str(new)])
    printed = capsys.readouterr()
    assert "setting" in printed.out
    assert _SECRET not in printed.out + printed.err


@place
@pytest.mark.parametrize("form", ["table", "json"])
def test_explained_route_shows_a_digest(
    name: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_fleet(tmp_path, _fleet(name))
    run(["explain", "route", "GET", "http://x/", "-o", form, str(file)])
    assert _SECRET not in capsys.readouterr().out


@pytest.mark.parametrize(
    "route",
    [
        {"match": {"path_prefix": "/", "headers": {"x-api-key": f"{_SECRET}\n"}}},
        {"pin": [{"header": "x-api-key", "equals": f"{_SECRET} ", "pool": "other"}]},
        {"pin": [{"cookie": "session", "equals": f"{_SECRET};", "pool": "other"}]},
        {"headers": {"request": {"set": {"authorization": f"{_SECRET}\t"}}}},
    ],
)
def test_error_does_not_repeat_the_value(route: dict[str, Any]) -> None:
    _, diagnostics = reading(fleet_text(route=route, pools={"other": pool()}))
    assert [item.code for item in diagnostics] == ["LB013"]
    assert "the value" in str(diagnostics[0])
    assert _SECRET not in str(diagnostics[0])


def test_pin_on_a_plain_cookie_is_readable(tmp_path: Path) -> None:
    route = {"pin": [{"cookie": "variant", "equals": "canary", "pool": "other"}]}
    topology = compiled(fleet_text(route=route, pools={"other": pool()})).topology
    assert of_topology(topology) == frozenset()


@pytest.mark.parametrize(
    ("key", "url"),
    [
        ("auth: {external: {url: ▶}}", "http://ann:Zq7f3a9c@127.0.0.1:9191/check"),
        ("auth: {external: {url: ▶}}", "http://ann:Zq7f/3a9c@127.0.0.1/"),
        (
            "rollout: {to: pool, steps: [{percent: 5}], analysis: {metrics: [{name: m, query: q, source: ▶}]}}",
            "ftp://ann:Zq7f3a9c@prometheus:9090",
        ),
    ],
)
def test_error_does_not_repeat_a_password_in_a_url(key: str, url: str) -> None:
    _, diagnostics = reading(f"version: 1\nroutes: {{r: {{pool: pool, {key.replace('▶', url)}}}}}\n")
    assert diagnostics
    assert "3a9c" not in " ".join(map(str, diagnostics))
