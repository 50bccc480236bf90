"""`lbctl agent`: its settings from options and from a fleet, and its errors."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lbctl.agent.settings import AgentSettings, EngineRequest
from lbctl.agent.settings_json import decoded, encoded
from lbctl.cli import agent_control, agent_fleet, run
from lbctl.ir.address import Address

ENGINE = ("agent", "--engine", "http://127.0.0.1:8000")
FLEET = """\
version: 1
listeners: {gateway: {bind: "127.0.0.1:8080"}}
routes: {all: {pool: llama}}
pools:
  llama:
    health:
      active: {http: {path: /ready, statuses: [200, 204]}}
      agent: {port: 9500}
      deep: {min_free_memory: 2GiB, fatal_xids: [79], stalled_after: 30s}
    telemetry:
      sources:
        - {kind: dcgm, url: "http://{host}:9400/metrics"}
        - {kind: vllm, url: "http://{host}:{port}/metrics"}
    replicas:
      - {name: here, address: "127.0.0.1:8000", devices: ["0", "1"]}
      - {name: afar, address: "192.0.2.7:8000"}
  other:
    replicas: [{address: "127.0.0.1:7000"}]
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LBCTL_AGENT_STATE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[AgentSettings]:
    """The settings of the agents that commands have started."""
    found: list[AgentSettings] = []
    monkeypatch.setattr(os, "execv", lambda _program, words: found.append(decoded(words[-1])))
    return found


def test_options_become_settings(started: list[AgentSettings], state: Path) -> None:
    Path("body.json").write_text('{"messages": []}')
    Path("key").write_text("secret")
    options = [
        "--kind", "vllm", "--devices", "0,1:3", "--warmup", "3", "--probe", "--request", "body.json",
        "--key-file", "key",
        "--fatal-xids", "79,48", "--min-free-memory", "2GiB", "--max-slowdown", "40%", "--stalled-after", "20s",
        "--drain-deadline", "2m", "--health-path", "/ready",
    ]  # fmt: skip
    assert run([*ENGINE, *options]) == 0
    assert started == [
        AgentSettings(
            engine="http://127.0.0.1:8000", kind="vllm", bind=Address("127.0.0.1", 9500),
            check_bind=Address("127.0.0.1", 9501), state=str(state), devices=("0", "1:3"), health_path="/ready",
            key_prefix="Bearer ", key_file="key", warmup=3, probe=True,
            request=EngineRequest("/v1/chat/completions", '{"messages": []}'), drain_deadline=120.0,
            fatal_xids=(48, 79), min_free_memory=2 << 30, max_slowdown=0.4, stalled_after=20.0,
        )
    ]  # fmt: skip


@pytest.mark.slow
def test_process_does_not_import_from_the_working_directory(state: Path) -> None:
    (state / "aiohttp.py").write_text("raise SystemExit(77)")
    (state / "file").touch()
    command = (sys.executable, "-P", "-m", "lbctl", "agent", "--engine", "http://127.0.0.1:1", "--state", "file")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "the state directory file cannot be created" in ended.stderr


def test_large_request_fits_into_the_command_line(started: list[AgentSettings]) -> None:
    body = json.dumps({"prompt": "\u8a9e" * 21_000}, ensure_ascii=False)
    Path("request.json").write_text(body, encoding="utf-8")
    assert run([*ENGINE, "--request", "request.json"]) == 0
    assert started[0].request.body == body
    assert len(os.fsencode(encoded(started[0]))) < 128 << 10


def test_failed_start_is_explained(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def execv(_program: str, _words: list[str]) -> None:
        raise OSError(errno.E2BIG, "Argument list too long")

    monkeypatch.setattr(os, "execv", execv)
    assert run([*ENGINE]) == 1
    assert "the agent cannot be started: Argument list too long" in capsys.readouterr().err


def test_engine_alone_gets_the_defaults(started: list[AgentSettings], state: Path) -> None:
    assert run([*ENGINE]) == 0
    bind, checks = Address("127.0.0.1", 9500), Address("127.0.0.1", 9501)
    assert started == [AgentSettings("http://127.0.0.1:8000", "", bind, checks, str(state))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "set --engine to the URL of the engine, or --fleet to its fleet"),
        (("--engine", "127.0.0.1:8000"), "--engine: '127.0.0.1:8000' is not the URL of an engine"),
        (("--engine", "http://h:8000/v1"), "--engine: the URL must consist of scheme, host and port"),
        ((*ENGINE[1:], "--kind", "dcgm"), "'dcgm' is not one of"),
        ((*ENGINE[1:], "--devices", "0;1"), "--devices: '0;1' is not a list of GPUs"),
        ((*ENGINE[1:], "--bind", "0.0.0.0:9500"), "--bind: any client could connect to 0.0.0.0:9500 (set --allow"),
        ((*ENGINE[1:], "--bind", "127.0.0.1:65535"), "--bind: the port must be from 1 to 65534"),
        ((*ENGINE[1:], "--allow", "10.0.0.1/24"), "--allow: '10.0.0.1/24' is not a network"),
        ((*ENGINE[1:], "--tls-cert", "here"), "set both --tls-cert and --tls-key"),
        ((*ENGINE[1:], "--max-slowdown", "150%"), "--max-slowdown: 150% is out of range"),
        ((*ENGINE[1:], "--stalled-after", "15"), "--stalled-after: '15' has no unit"),
        ((*ENGINE[1:], "--request", "here"), "--request: here:1:1: not JSON"),
        ((*ENGINE[1:], "--token-file", "here"), "--token-file: here contains no token (write one token per line)"),
        ((*ENGINE[1:], "--replica", "llama/here"), "--replica requires --fleet"),
        (("--state", "here", "drain"), "--state must come after the subcommand drain"),
    ],
)
def test_wrong_options_are_explained(
    options: tuple[str, ...], message: str, started: list[AgentSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("here").touch()
    assert run(["agent", *options]) == 64
    assert message in capsys.readouterr().err
    assert started == []


@pytest.mark.parametrize("option", ["--key-file", "--token-file", "--tls-cert", "--request"])
def test_missing_file_is_explained(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ENGINE, option, "missing"]) == 1
    assert f"{option}: missing: No such file or directory" in capsys.readouterr().err


def test_address_for_a_network_opens_agent_checks(started: list[AgentSettings]) -> None:
    assert run([*ENGINE, "--bind", "10.0.0.1:9500", "--allow", "10.0.0.0/24"]) == 0
    assert str(started[0].check_bind) == "10.0.0.1:9501"


def test_fleet_defines_the_settings_of_this_machine(started: list[AgentSettings], state: Path) -> None:
    Path("fleet.yaml").write_text(FLEET)
    assert run(["agent", "--fleet", "fleet.yaml"]) == 0
    assert started == [
        AgentSettings(
            engine="http://127.0.0.1:8000", kind="vllm", bind=Address("127.0.0.1", 9500),
            check_bind=Address("127.0.0.1", 9501), state=str(state), devices=("0", "1"), health_path="/ready",
            health_statuses=(200, 204), fatal_xids=(79,), stalled_after=30.0,
        )
    ]  # fmt: skip


def test_options_take_precedence_over_the_fleet(started: list[AgentSettings]) -> None:
    Path("fleet.yaml").write_text(FLEET)
    options = (
        "--engine",
        "http://127.0.0.1:9",
        "--fatal-xids",
        "none",
        "--devices",
        "none",
        "--min-free-memory",
        "1GiB",
    )
    assert run(["agent", "--fleet", "fleet.yaml", *options]) == 0
    (found,) = started
    assert (found.engine, found.fatal_xids, found.devices) == ("http://127.0.0.1:9", (), ())
    assert found.metrics_path == "http://127.0.0.1:8000/metrics"
    assert found.min_free_memory == 1 << 30


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "192.0.2.7:8000", "127.0.0.1:8001",
            "2 replicas have an address on this machine: llama/afar, llama/here (set --replica)",
        ),
        (
            "127.0.0.1:8000", "192.0.2.8:8000",
            "no replica with health.agent has an address on this machine; compared: 192.0.2.7, 192.0.2.8",
        ),
        ("      agent: {port: 9500}\n", "", "no pool with listed replicas has health.agent (set it, or use --engine)"),
        ("version: 1", "version: 2", "the fleet has errors"),
        (
            "active: {http: {path: /ready, statuses: [200, 204]}}", "active: {tcp: {}}",
            "the health check of llama/here does not use HTTP (set --health-path)",
        ),
    ],
)  # fmt: skip
def test_fleet_without_one_usable_replica_is_explained(
    old: str, new: str, message: str, started: list[AgentSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert old in FLEET
    Path("fleet.yaml").write_text(FLEET.replace(old, new))
    assert run(["agent", "--fleet", "fleet.yaml"]) == 1
    assert f"--fleet: {message}" in capsys.readouterr().err
    assert started == []


def test_replica_is_named_where_no_address_matches(
    started: list[AgentSettings], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("fleet.yaml").write_text(FLEET)
    options = ["agent", "--fleet", "fleet.yaml", "--replica", "llama/afar"]
    assert run(options) == 1
    assert "no address of llama/afar is on this machine (set --bind)" in capsys.readouterr().err
    assert run([*options, "--bind", "127.0.0.1:9500"]) == 0
    assert started[0].engine == "http://192.0.2.7:8000"
    assert run(["agent", "--fleet", "fleet.yaml", "--replica", "llama/hear"]) == 64
    assert "'llama/hear' is not a listed replica with health.agent (did you mean" in capsys.readouterr().err


def test_host_names_are_resolved(
    started: list[AgentSettings], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = {"gpu-1.example": "127.0.0.5", "gpu-2.example": "192.0.2.9"}

    def resolve(host: str, _port: None, **_settings: Any) -> list[tuple[Any, ...]]:
        if host not in answers:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers[host], 0))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    text = FLEET.replace("127.0.0.1:8000", "gpu-1.example:8000").replace("192.0.2.7:8000", "gpu-2.example:8000")
    Path("fleet.yaml").write_text(text)
    assert run(["agent", "--fleet", "fleet.yaml"]) == 0
    assert (started[0].engine, str(started[0].bind)) == ("http://gpu-1.example:8000", "127.0.0.5:9500")
    Path("fleet.yaml").write_text(text.replace("gpu-1", "gpu-3"))
    assert run(["agent", "--fleet", "fleet.yaml"]) == 1
    assert "compared: gpu-2.example (192.0.2.9), gpu-3.example (no address)" in capsys.readouterr().err


def test_only_addresses_of_this_machine_are_own() -> None:
    assert agent_fleet.is_own("127.0.0.1")
    assert agent_fleet.is_own("127.8.8.8")
    assert not agent_fleet.is_own("192.0.2.7")
    assert not agent_fleet.is_own("2001:db8::7")


@pytest.mark.parametrize("name", ["drain", "readmit"])
def test_command_without_an_agent_is_explained(name: str, state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["agent", name]) == 1
    hint = "(start it, or set --state to its state directory)"
    assert f"no agent is listening at {state}/agent.sock {hint}" in capsys.readouterr().err


def test_command_of_another_user_is_explained(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_connection: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(agent_control._Connection, "connect", refuse)
    assert run(["agent", "drain"]) == 1
    assert "agent.sock: permission denied (run the command as the agent's user)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"drained": True, "waited_s": 12.3, "in_flight": 0}, "drained after 12.3 s: no request is in flight"),
        ({"drained": False, "waited_s": 300.0, "in_flight": 1}, "not drained after 300.0 s: 1 request is in flight"),
        ({"drained": False, "waited_s": 300.0, "in_flight": 3}, "not drained after 300.0 s: 3 requests are in flight"),
        (
            {"drained": False, "waited_s": 1.0, "in_flight": 0},
            "not drained after 1.0 s: no request is in flight, but not all proxies have noticed the drain yet",
        ),
        (
            {"drained": True, "waited_s": 6.0, "in_flight": None},
            "drained after 6.0 s: the number of requests in flight is unknown, because the engine has no metrics page",
        ),
        (
            {"drained": False, "waited_s": 6.0, "in_flight": 0, "ended": True},
            "the drain was ended by `lbctl agent readmit`, or by a restart of the engine",
        ),
    ],
)
def test_drain_prints_its_result(
    answer: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agent_control, "ask", lambda *_arguments: answer)
    assert run(["agent", "drain", "--wait", "1m"]) == 0
    assert capsys.readouterr().err == f"lbctl: {message}\n"


def test_interrupted_drain_lasts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_arguments: object) -> dict[str, Any]:
        raise KeyboardInterrupt

    monkeypatch.setattr(agent_control, "ask", interrupted)
    assert run(["agent", "drain"]) == 1
    assert "the replica is still draining" in capsys.readouterr().err


@pytest.mark.parametrize(("missing", "code"), [(2, 0), (99, 1)])
def test_drain_continues_after_a_restart_of_the_agent(
    missing: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    errors = iter(
        [agent_control.AgentEndedError("the agent has exited"), *missing * [agent_control.NoAgentError("no")]]
    )

    def ask(*_arguments: object) -> dict[str, Any]:
        if (error := next(errors, None)) is not None:
            raise error
        return {"drained": True, "waited_s": 2.0, "in_flight": 0}

    monkeypatch.setattr(agent_control, "ask", ask)
    monkeypatch.setattr(agent_control, "_RESTART_TIMEOUT", 0.3)
    monkeypatch.setattr(agent_control, "_RESTART_POLL", 0.01)
    assert run(["agent", "drain"]) == code
    written = capsys.readouterr().err
    assert written.startswith("lbctl: the agent has exited; waiting for its restart\n")
    assert ("drained after 2.0 s" in written) == (not code)


def test_readmit_prints_the_state(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answer = {"state": "warming_up", "reasons": [{"message": "1 of 3 requests"}]}
    monkeypatch.setattr(agent_control, "ask", lambda *_arguments: answer)
    assert run(["agent", "readmit"]) == 0
    assert capsys.readouterr().err == "lbctl: the replica is warming up: 1 of 3 requests\n"


@pytest.mark.parametrize(
    ("environment", "directory"),
    [
        (
            {"RUNTIME_DIRECTORY": "/run/lbctl-agent/vllm:/run/x", "XDG_RUNTIME_DIR": "/run/user/1"},
            "/run/lbctl-agent/vllm",
        ),
        ({"XDG_RUNTIME_DIR": "/run/user/1"}, "/run/user/1/lbctl-agent"),
    ],
)
def test_state_directory_of_systemd_or_the_user(
    environment: dict[str, str], directory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_control, "_RUN", tmp_path / "missing")
    assert agent_control.state_directory(None, environment) == Path(directory)


def test_state_directory_below_run_if_it_is_writable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_control, "_RUN", tmp_path)
    assert agent_control.state_directory(None, {"XDG_RUNTIME_DIR": "/run/user/1"}) == tmp_path / "lbctl-agent"
