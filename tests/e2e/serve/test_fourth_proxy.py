"""A fourth kind of proxy, added by a package and a line in each registry, works with every command.

Each command runs in a separate process, with the kind registered before anything else: code that knows kinds by name
fails here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.fleets import Fleet, write_fleet
from tests.support.fourth_proxy import proxy
from tests.support.paths import ROOT
from tests.support.processes.client import Client
from tests.support.processes.control import controlling
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.ports import HOST, await_listeners, free_port
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually

MODULE = "tests.support.fourth_proxy"


def lbctl(*arguments: str, binary: Path | None = None) -> subprocess.CompletedProcess[str]:
    variables = {"LBCTL_TOYPROXY": str(binary)} if binary else {}
    return subprocess.run(
        [sys.executable, "-m", MODULE, *arguments],
        capture_output=True, text=True, timeout=60, check=False, cwd=ROOT, env={**os.environ, **variables},
    )  # fmt: skip


@pytest.fixture
def binary(tmp_path: Path) -> Path:
    path = tmp_path / "toyproxy"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {proxy.__file__} "$@"\n')
    path.chmod(0o755)
    return path


def toy_fleet(config: Path, port: int, **sections: Any) -> Fleet:
    pool = {"replicas": [{"name": "a", "address": "127.0.0.1:9"}], "health": {"active": {"http": {"path": "/health"}}}}
    fleet = fleet_of(pool, proxies={"edge": {"kind": "toy", "config": str(config)}}, **sections)
    fleet["listeners"]["gateway"]["bind"] = f"{HOST}:{port}"
    return fleet


def test_commands_know_a_registered_kind(tmp_path: Path, binary: Path) -> None:
    file = str(write_fleet(tmp_path, toy_fleet(tmp_path / "toy.json", free_port())))
    assert lbctl("validate", file).returncode == 0
    rendered = lbctl("render", "-t", "toy", "--check", file, binary=binary)
    assert rendered.returncode == 0, rendered.stderr
    assert json.loads(rendered.stdout)["listeners"][0]["replicas"] == [
        {"name": "a", "address": "127.0.0.1:9", "weight": 100}
    ]
    assert "accepted by toy 1.0.0" in rendered.stderr
    assert "edge needs `lbctl serve` for features that this file does not contain" in rendered.stderr
    assert "LB475" in rendered.stderr
    assert "-o applies to Envoy only" in lbctl("render", "-t", "toy", "-o", "json", file).stderr
    other = tmp_path / "other"
    other.mkdir()
    changed = toy_fleet(tmp_path / "toy.json", free_port())
    differs = lbctl("diff", "-t", "toy", "--against", file, str(write_fleet(other, changed)))
    assert differs.returncode == 0, differs.stderr
    assert "+++ new/toy.json" in differs.stdout
    assert "toy does not support" in lbctl("lint", file).stderr
    explained = lbctl("explain", "route", "GET", "/", file)
    assert explained.returncode == 0, explained.stderr
    assert "toy 1.0:" in explained.stdout
    assert '"toy"' in lbctl("schema").stdout
    doctor = json.loads(lbctl("doctor", file, "-o", "json", binary=binary).stdout)["checks"]
    assert [(row["state"], row["message"]) for row in doctor if row["what"] == "toy"] == [("ok", f"1.0.0, {binary}")]


def test_registered_capabilities_decide_about_fragments(tmp_path: Path) -> None:
    fleet = toy_fleet(tmp_path / "toy.json", free_port())
    fleet["pools"]["second"] = fleet["pools"]["pool"]
    (tmp_path / "mine").write_text("mine\n")
    fleet["proxies"] = {
        "one": {"kind": "toy", "config": "etc/one.json", "include": {"http": ["mine"]}},
        "two": {"kind": "toy", "config": "etc/two.json", "include": {"server": {"gateway": ["mine"]}}},
        "three": {
            "kind": "toy", "form": "fragment", "config": "three.json", "include": {"backend": {"pool": ["mine"]}}
        },
        "four": {"kind": "envoy", "form": "fragment"},
    }  # fmt: skip
    done = lbctl("validate", str(write_fleet(tmp_path, fleet)))
    faults = [line.partition(" error ")[2] for line in done.stderr.splitlines()]
    for expected in (
        "LB124 proxies.two.config: the files next to the configuration of two would overwrite the files of one",
        "LB131 proxies.two.include.server: toy does not support own lines at 'server' (toy supports http, backend)",
        "LB131 proxies.three.include.backend: a fragment cannot contain a `backend` section",
        "LB134 proxies.four.form: envoy does not support fragments (set form: whole, or use nginx or haproxy or toy)",
    ):
        assert [line for line in faults if line.startswith(expected)], (expected, done.stderr)
    assert any("(config: /etc/toy/lbctl.json)" in line for line in faults)
    assert "proxies.one." not in done.stderr


def test_unregistered_kind_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    fleet = toy_fleet(tmp_path / "toy.json", free_port())
    fleet["proxies"]["edge"]["kind"] = "toi"
    done = lbctl("validate", str(write_fleet(tmp_path, fleet)))
    assert done.returncode == 1
    assert "LB103" in done.stderr
    assert "toy" in done.stderr


def test_capabilities_have_a_column_for_a_registered_kind() -> None:
    script = (
        "from tests.support.fourth_proxy.__main__ import registered\n"
        "with registered():\n"
        "    from lbctl.targets import capability_page\n"
        "    print(capability_page.page())\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert "| nginx | HAProxy | Envoy | Toy |" in done.stdout, done.stderr
    assert "## Toy" in done.stdout


@contextmanager
def running(config: Path, port: int) -> Iterator[Client]:
    process = subprocess.Popen([sys.executable, proxy.__file__, str(config)])
    try:
        assert not await_listeners([port])
        yield Client(port)
    finally:
        process.kill()
        process.wait(5)


def test_serve_drives_a_registered_kind_and_restarts_its_driver(tmp_path: Path) -> None:
    config, port = tmp_path / "toy.json", free_port()
    fleet = toy_fleet(config, port)
    fleet["proxies"]["spare"] = {"kind": "toy", "config": str(tmp_path / "spare.json")}
    with replicas("a", "b") as members:
        fleet["pools"]["pool"] = pool_of(members, (1, 1))
        with controlling(fleet, module=MODULE) as control:
            eventually(lambda: control.proxies["edge"]["state"] == "SYNCED")
            with running(config, port) as client:
                assert client.load(40, 4, keep_alive=False).shares() == {"a": 0.5, "b": 0.5}
                broken = tmp_path / "toy.json.broken"
                broken.touch()
                fleet["pools"]["pool"] = pool_of(members, (1, 3))
                control.write(fleet)
                failed = "its driver failed (RuntimeError; see the log); a new one starts at 2"

                def has_failed() -> bool:
                    row = control.proxies["edge"]
                    return row["state"] == "FAILING" and failed in row["reason"]

                eventually(has_failed)
                assert control.metrics()['lbctl_task_failures_total{task="driver"}'] >= 1
                version = control.status["snapshot"]["version"]
                eventually(lambda: control.proxies["spare"]["last_good"] == version)
                status = ("status", "proxies", "--server", control.url)  # a new driver may just try
                eventually(lambda: "its driver failed" in lbctl(*status).stdout)
                assert client.load(40, 4, keep_alive=False).shares() == {"a": 0.5, "b": 0.5}
                broken.unlink()
                eventually(lambda: control.proxies["edge"]["state"] == "SYNCED")
                assert control.proxies["edge"]["last_good"] == version
                assert client.load(40, 4, keep_alive=False).shares() == {"a": 0.25, "b": 0.75}
