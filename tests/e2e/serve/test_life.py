"""The life of a `lbctl serve` process: start, log, signals, commands, dry run and end."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lbctl.apply.reserved_ports import reserve
from tests.support.fleets import Fleet
from tests.support.processes.certs import Authority
from tests.support.processes.client import Client
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.fleet import fleet_of
from tests.support.processes.invocation import Invocation, invoke
from tests.support.processes.lbctl_process import forked, short_pauses
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (info|warn|error) \S.*")


def fleet_without_proxies(**sections: Any) -> Fleet:
    return fleet_of({"replicas": [{"name": "a", "address": f"{HOST}:9"}]}, **sections)


def await_log(control: ControlPlane, text: str) -> None:
    """Wait until the log contains the text."""
    eventually(lambda: text in control.log)


def exit_code(control: ControlPlane) -> int:
    """Wait until the process has ended, and return its exit code."""
    assert control.process is not None
    return control.process.wait(60.0)


@pytest.fixture(scope="module")
def running() -> Iterator[ControlPlane]:
    """Yield a control plane for tests that do not end it and tolerate log lines of other tests."""
    with controlling(fleet_without_proxies()) as control:
        yield control


@contextmanager
def second(control: ControlPlane, options: Sequence[str] = ()) -> Iterator[ControlPlane]:
    """Start another process with the same files and state and its own ports."""
    other = ControlPlane(control.directory, options)
    other.log_file = control.directory / "second.log"
    try:
        other.start(ready=False)
        yield other
    finally:
        if other.process is not None and other.process.poll() is None:
            other.kill()


def test_start_fails_if_the_path_does_not_exist(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    process = forked(["serve", str(tmp_path / "nope"), "--state", str(tmp_path / "state")], log)
    assert process.wait(60.0) == 1
    assert "LB001" in log.read_text()
    assert "nope" in log.read_text()
    assert "Traceback" not in log.read_text()


def test_start_logs_its_addresses_and_state_directory() -> None:
    with controlling(fleet_without_proxies()) as control:
        log = control.log
        assert f"xds={HOST}:{control.xds}" in log
        assert f"api=http://{HOST}:{control.api}" in log
        assert f"state={control.state}" in log
        assert all(LINE.fullmatch(line) for line in log.splitlines())
        assert control.status["listens"] == {
            "xds": f"{HOST}:{control.xds}", "xds_socket": f"{control.state}/xds.sock",
            "api": f"{HOST}:{control.api}", "state": str(control.state),
        }  # fmt: skip


def test_state_is_readable_by_its_owner_only(running: ControlPlane) -> None:
    modes = {path.name: oct(path.stat().st_mode & 0o777) for path in running.state.iterdir()}
    assert set(modes.values()) == {"0o600"}
    assert "api-token" in modes
    assert oct(running.state.stat().st_mode & 0o777) == "0o700"
    assert (running.state / "api-token").read_text().strip() not in running.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_in_good_order(number: signal.Signals) -> None:
    with controlling(fleet_without_proxies()) as control:
        control.signal(number)
        assert exit_code(control) == 0
        assert control.log.splitlines()[-1].endswith(" info ended")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_that_the_parent_ignores_ends_it(number: signal.Signals) -> None:
    """`nohup lbctl serve &` starts it with ignored signals, which a new interpreter inherits."""
    with controlling(fleet_without_proxies(), start=False, module="lbctl") as control:
        before = signal.signal(number, signal.SIG_IGN)
        try:
            control.start(ready=False)
        finally:
            signal.signal(number, before)
        control.await_ready()
        control.signal(number)
        assert exit_code(control) == 0


def test_signal_ends_it_while_it_waits_for_the_state() -> None:
    with controlling(fleet_without_proxies()) as control, second(control) as other:
        await_log(other, "is in use by")
        assert other.stop() == 0


def test_frozen_envoy_does_not_delay_the_end() -> None:
    with (
        replicas("one") as (one,),
        short_pauses({"lbctl.serve.api.endpoints._GRACE": 1.0}),
        controlling(fleet_of([one], **driven("quick", "stuck"))) as control,
        control.envoy("quick", ["quick"]) as quick,
        control.envoy("stuck", ["stuck"]) as stuck,
    ):
        stuck.freeze()
        assert control.stop() == 0
        assert quick.client().get("/").status == 200


def test_second_signal_ends_it_at_once() -> None:
    with controlling(fleet_without_proxies()) as control:
        assert control.process is not None
        connections = [socket.create_connection((HOST, control.api)) for _ in range(3)]
        control.signal(signal.SIGTERM)
        await_log(control, "ending signal=SIGTERM")
        control.signal(signal.SIGTERM)
        assert exit_code(control) in (0, -signal.SIGTERM)
        for connection in connections:
            connection.close()


def test_second_process_waits_for_the_state_and_takes_over() -> None:
    with controlling(fleet_without_proxies()) as control, second(control) as other:
        assert control.process is not None
        await_log(other, f"is in use by the process {control.process.pid}")
        assert not other.ready()
        version = control.status["snapshot"]["version"]
        control.kill()
        other.await_ready()
        assert other.status["snapshot"]["version"] == version


def test_restart_serves_the_same_version() -> None:
    with controlling(fleet_without_proxies()) as control:
        version = control.status["snapshot"]["version"]
        control.kill()
        control.start()
        assert control.status["snapshot"]["version"] == version


@pytest.mark.parametrize("door", ["xds", "api"])
def test_start_fails_if_a_port_is_in_use(door: str) -> None:
    with controlling(fleet_without_proxies(), start=False) as control, reserve() as taken:
        taken.close()
        with second(control) as other:
            other.await_ready()
            control.state = control.directory / "other-state"
            setattr(control, door, getattr(other, door))
            control.start(ready=False)
            assert exit_code(control) == 1
            assert f"{HOST}:{getattr(other, door)}" in control.log
            assert "Traceback" not in control.log


def test_sighup_and_reload_command_read_the_files(running: ControlPlane) -> None:
    result = "the files were read result=unchanged"
    before = running.log.count(result)
    running.signal(signal.SIGHUP)
    await_log(running, "reloading the files signal=SIGHUP")
    eventually(lambda: running.log.count(result) > before)
    reload = lbctl(running, "reload", "--token-file", str(running.state / "api-token"))
    assert (reload.code, reload.stdout) == (0, "")
    assert "nothing changed" in reload.stderr


def test_start_with_invalid_fleet_logs_why_it_is_not_served() -> None:
    with controlling(fleet_without_proxies(), start=False) as control:
        control.write_text("version: 1\npools: {a: {}}\n")
        control.start(ready=False)
        await_log(control, "the files are not published reason=")
        assert "stays as it is" not in control.log
        assert " error error " not in control.log


def test_log_names_nodes_that_connect_and_leave() -> None:
    with controlling(fleet_without_proxies()) as control:
        with control.envoy("edge") as envoy:
            assert envoy.node == "edge"
            await_log(control, "xds: a node has connected node=edge proxy=")
            arguments = ["xds", "get", "--timeout", "60", "--xds", f"{HOST}:{control.xds}", "--node", "nobody"]
            assert invoke(arguments).code == 0
            await_log(control, "xds: a reader has disconnected node=nobody")
            eventually(lambda: set(control.proxies) == {"edge"})
            eventually(lambda: "edge is" not in lbctl(control, "status", "--check").stderr)
        await_log(control, "xds: a node has disconnected node=edge")
        assert "no envoy is connected: edge has left" in lbctl(control, "status", "--check").stderr


def test_dry_run_suggests_api_bind_if_the_port_is_in_use() -> None:
    with controlling(fleet_without_proxies()) as control, second(control, ["--dry-run"]) as other:
        other.kill()
        other.api = control.api
        other.start(ready=False)
        assert exit_code(other) == 1
        assert "--api-bind" in other.log


def test_log_names_the_changed_resources() -> None:
    fleet = fleet_without_proxies()
    with controlling(fleet) as control:
        control.write({**fleet, "pools": {"pool": {"replicas": [{"name": "a", "address": f"{HOST}:10"}]}}})
        await_log(control, "eds=1 names=eds/pool")


def test_reload_without_token_exits_4_and_names_the_file(running: ControlPlane) -> None:
    reload = lbctl(running, "reload")
    assert reload.code == 4
    assert str(running.state / "api-token") in reload.stderr


def test_commands_take_server_and_token_from_environment(running: ControlPlane) -> None:
    env = {"LBCTL_SERVER": running.url, "http_proxy": f"http://{HOST}:1", "HTTP_PROXY": f"http://{HOST}:1"}
    status = invoke(["status"], env)
    assert status.code == 0, status.stderr
    assert f"{running.status['snapshot']['version']}, " in status.stdout
    assert "old, 1 pool, 1 replica\n" in status.stdout
    refused = invoke(["drain", "pool/a"], env)
    assert refused.code == 4
    assert f"this operation needs the token in {running.state / 'api-token'}" in refused.stderr
    assert "LBCTL_TOKEN_FILE" in refused.stderr
    env |= {"LBCTL_TOKEN_FILE": str(running.state / "api-token"), "LBCTL_REASON": "too hot"}
    for arguments in (["drain", "pool/a"], ["undrain", "pool/a"], ["reload"], ["weight", "set", "pool/a", "3"]):
        write = invoke(arguments, env)
        assert write.code == 0, write.stderr
    explanation = invoke(["explain", "weight", "pool/a"], env).stdout
    assert "override       weight 3: too hot\n" in explanation
    assert "published      3 by override, " in explanation
    assert invoke(["weight", "unset", "pool/a"], env).code == 0


def test_status_signals_lists_each_unreachable_page_once() -> None:
    page = f"http://{HOST}:{free_port()}/metrics"
    sources = [
        {"kind": "custom", "url": page, "metric": name, "signal": name, "unit": unit}
        for name, unit in (("queue", "requests"), ("gpu", "ratio"))
    ]
    replicas_of = {"replicas": [{"name": "a", "address": f"{HOST}:9"}]}
    telemetry = {"telemetry": {"interval": "500ms", "sources": sources}}
    pools = {"pool": {**replicas_of, **telemetry}, "other": {**replicas_of, **telemetry}, "still": replicas_of}
    with controlling(fleet_without_proxies(pools=pools)) as control:
        eventually(lambda: "Connection refused" in lbctl(control, "status", "signals").stdout)
        rows = lbctl(control, "status", "signals", "--pool", "pool").stdout.splitlines()[1:]
        assert [row.split()[:2] for row in rows] == [["pool", "a"]]
        assert rows[0].count(page) == 1
        assert "still has no telemetry" in lbctl(control, "status", "signals", "--pool", "still").stderr
        assert [row.split()[0] for row in lbctl(control, "status", "pools", "--pool", "still").stdout.splitlines()] == [
            "POOL",
            "still",
        ]
        wrong = lbctl(control, "status", "signals", "--pool", "oter")
        assert (wrong.code, "did you mean 'other'?" in wrong.stderr) == (1, True)
        assert lbctl(control, "status", "--pool", "pool").code == 64


# ── Where it may listen ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("option", "code"), [("--xds-bind", "LB510"), ("--api-bind", "LB511")])
def test_start_beyond_loopback_requires_protection(option: str, code: str) -> None:
    with controlling(fleet_without_proxies(), options=[option, f"0.0.0.0:{free_port()}"], start=False) as control:
        control.start(ready=False)
        assert exit_code(control) == 1
        assert code in control.log
        assert "listening for proxies" not in control.log


def test_insecure_opens_xds_but_not_the_api() -> None:
    with controlling(fleet_without_proxies(), start=False) as control:
        control.options = ("--insecure", "--xds-bind", f"0.0.0.0:{control.xds}")
        control.start()
        assert control.stop() == 0
        control.options = ("--insecure", "--api-bind", f"0.0.0.0:{control.api}")
        control.start(ready=False)
        assert exit_code(control) == 1
        assert "LB511" in control.log


def test_api_beyond_loopback_uses_tls_and_renewed_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first, later = authority.issue("first", [HOST]), authority.issue("later", [HOST])
    files = {
        "api.crt": first.certificate.read_bytes(), "api.key": first.key.read_bytes(), "token": "a-token-for-the-test\n",
    }  # fmt: skip
    api = {"tls": {"certificate": "api.crt", "key": "api.key"}, "token_file": "token"}
    with controlling(fleet_without_proxies(control={"api": api}), files=files, start=False) as control:
        control.options = ("--api-bind", f"0.0.0.0:{control.api}")
        control.start(ready=False)
        await_log(control, "listening for proxies")
        trust = ["--server", f"https://{HOST}:{control.api}", "--tls-ca", str(authority.ca)]
        refused = invoke(["status", *trust])
        assert refused.code == 4
        assert "token" in refused.stderr
        status = invoke(["status", *trust, "--token-file", str(control.files / "token")])
        assert status.code == 0, status.stderr

        assert "first" in served_certificate(control)
        for name, file in (("api.key", later.key), ("api.crt", later.certificate)):
            temporary = control.files / f".{name}"
            temporary.write_bytes(file.read_bytes())
            temporary.replace(control.files / name)
        eventually(lambda: "later" in served_certificate(control))


def served_certificate(control: ControlPlane) -> str:
    shown = subprocess.run(
        ["openssl", "s_client", "-connect", f"{HOST}:{control.api}"],
        input="", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return next((line for line in shown.stdout.splitlines() if line.startswith("subject")), "")


def test_requests_with_a_foreign_host_name_are_rejected(running: ControlPlane) -> None:
    answer = Client(running.api).get("/api/v1/status", headers={"host": "evil.example"})
    assert answer.status == 403


# ── A dry run ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_dry_run_only_logs_its_decisions() -> None:
    with controlling(fleet_without_proxies(), options=["--dry-run"]) as control:
        assert control.status["dry_run"] is True
        assert control.status["listens"]["xds"] is None
        await_log(control, "would be published")
        assert not control.state.exists()
        two_replicas = {"replicas": [{"address": f"{HOST}:9"}, {"address": f"{HOST}:10"}]}
        control.write(fleet_without_proxies(pools={"pool": two_replicas}))
        eventually(lambda: control.status["snapshot"]["replicas"] == 2)
        eventually(lambda: control.log.count("would be published") == 2)


def test_dry_run_runs_next_to_a_serving_process() -> None:
    with controlling(fleet_without_proxies()) as control, second(control, ["--dry-run"]) as other:
        other.await_ready()
        assert other.status["snapshot"]["version"] == control.status["snapshot"]["version"]


def lbctl(control: ControlPlane, *arguments: str) -> Invocation:
    return invoke([*arguments, "--server", control.url])
