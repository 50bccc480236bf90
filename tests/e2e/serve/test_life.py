"""`lbctl serve` from start to end: what it needs to begin, what it says, how it stops."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from lbctl.apply.reserved_ports import reserve
from tests.support.fleets import Fleet
from tests.support.processes.certs import Authority
from tests.support.processes.client import Client
from tests.support.processes.control import ControlPlane, controlling, driven
from tests.support.processes.fleet import fleet_of
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (info|warn|error) \S.*")


def fleet(**sections: object) -> Fleet:
    return fleet_of({"replicas": [{"name": "a", "address": f"{HOST}:9"}]}, **sections)  # type: ignore[arg-type]


def said(control: ControlPlane, words: str, timeout: float = 60.0) -> None:
    """Waits until the log holds the words."""
    eventually(lambda: words in control.log, timeout)


def ended(control: ControlPlane, timeout: float = 60.0) -> int:
    assert control.process is not None
    return control.process.wait(timeout)


@contextmanager
def second(control: ControlPlane, options: Sequence[str] = ()) -> Iterator[ControlPlane]:
    """Another process on the same files and the same state, with ports of its own."""
    other = ControlPlane(control.directory, options)
    other.log_file = control.directory / "second.log"
    try:
        other.start(ready=False)
        yield other
    finally:
        if other.process is not None and other.process.poll() is None:
            other.kill()


def test_a_path_that_does_not_exist_ends_the_start_where_nothing_is_served_without_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "lbctl", "serve", str(tmp_path / "nope"), "--state", str(tmp_path / "state")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "LB001" in done.stderr
    assert "nope" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_start_says_where_it_listens_and_where_its_state_is() -> None:
    with controlling(fleet()) as control:
        log = control.log
        assert f"xds={HOST}:{control.xds}" in log
        assert f"api=http://{HOST}:{control.api}" in log
        assert f"state={control.state}" in log
        assert all(LINE.fullmatch(line) for line in log.splitlines())
        assert control.status["listens"] == {
            "xds": f"{HOST}:{control.xds}", "xds_socket": f"{control.state}/xds.sock",
            "api": f"{HOST}:{control.api}", "state": str(control.state),
        }  # fmt: skip
        assert control.stop() == 0


def test_what_it_keeps_is_for_its_owner_alone() -> None:
    with controlling(fleet()) as control:
        modes = {path.name: oct(path.stat().st_mode & 0o777) for path in control.state.iterdir()}
        assert set(modes.values()) == {"0o600"}
        assert "api-token" in modes
        assert oct(control.state.stat().st_mode & 0o777) == "0o700"
        assert (control.state / "api-token").read_text().strip() not in control.log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_good_order(number: signal.Signals) -> None:
    with controlling(fleet()) as control:
        control.signal(number)
        assert ended(control) == 0
        assert control.log.splitlines()[-1].endswith(" info ended")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_a_script_ignores_for_its_jobs_ends_it_too(number: signal.Signals) -> None:
    """As after `nohup lbctl serve &`: what is started inherits what is ignored."""
    with controlling(fleet(), start=False) as control:
        before = signal.signal(number, signal.SIG_IGN)
        try:
            control.start(ready=False)
        finally:
            signal.signal(number, before)
        control.await_ready()
        control.signal(number)
        assert ended(control) == 0


def test_a_signal_while_it_waits_for_the_state_ends_it_too() -> None:
    with controlling(fleet()) as control, second(control) as other:
        said(other, "is in use by")
        assert other.stop() == 0


def test_it_ends_in_time_though_an_envoy_does_not_listen_and_the_others_go_on_serving() -> None:
    with (
        replicas("one") as (one,),
        controlling(fleet_of([one], **driven("quick", "stuck"))) as control,
        control.envoy("quick", ["quick"]) as quick,
        control.envoy("stuck", ["stuck"]) as stuck,
    ):
        stuck.freeze()
        assert control.stop() == 0
        assert quick.client().get("/").status == 200


def test_a_second_signal_ends_it_at_once() -> None:
    with controlling(fleet()) as control:
        assert control.process is not None
        held = [socket.create_connection((HOST, control.api)) for _ in range(3)]
        control.signal(signal.SIGTERM)
        said(control, "ending signal=SIGTERM")
        control.signal(signal.SIGTERM)
        assert ended(control) in (0, -signal.SIGTERM)
        for connection in held:
            connection.close()


def test_one_process_at_a_time_has_the_state_and_the_next_takes_over() -> None:
    with controlling(fleet()) as control, second(control) as other:
        assert control.process is not None
        said(other, f"is in use by the process {control.process.pid}")
        assert not other.ready()
        version = control.status["snapshot"]["version"]
        control.kill()
        other.await_ready()
        assert other.status["snapshot"]["version"] == version


def test_a_restart_serves_the_same_version() -> None:
    with controlling(fleet()) as control:
        version = control.status["snapshot"]["version"]
        control.kill()
        control.start()
        assert control.status["snapshot"]["version"] == version


@pytest.mark.parametrize("door", ["xds", "api"])
def test_a_port_that_somebody_else_has_is_named_and_ends_it(door: str) -> None:
    with controlling(fleet(), start=False) as control, reserve() as taken:
        taken.close()
        with second(control) as other:
            other.await_ready()
            control.state = control.directory / "other-state"
            setattr(control, door, getattr(other, door))
            control.start(ready=False)
            assert ended(control) == 1
            assert f"{HOST}:{getattr(other, door)}" in control.log
            assert "Traceback" not in control.log


def test_sighup_and_the_command_read_the_files_again() -> None:
    with controlling(fleet()) as control:
        control.signal(signal.SIGHUP)
        said(control, "reading the files again signal=SIGHUP")
        done = lbctl(control, "reload", "--token-file", str(control.state / "api-token"))
        assert (done.returncode, done.stdout) == (0, "")
        assert "nothing has changed" in done.stderr


def test_sighup_says_what_came_of_it_though_nothing_has_changed() -> None:
    with controlling(fleet()) as control:
        control.signal(signal.SIGHUP)
        said(control, "the files were read result=unchanged")


def test_a_start_without_a_fleet_does_not_speak_of_what_is_served() -> None:
    with controlling(fleet(), start=False) as control:
        control.write_text("version: 1\npools: {a: {}}\n")
        control.start(ready=False)
        said(control, "the files are not served reason=")
        assert "stays as it is" not in control.log
        assert " error error " not in control.log


def test_who_comes_and_goes_is_in_the_log_and_a_reader_does_not_count() -> None:
    with controlling(fleet()) as control:
        with control.envoy("edge") as envoy:
            assert envoy.node == "edge"
            said(control, "xds: a node has connected node=edge proxy=")
            look = ["xds", "get", "--timeout", "60", "--xds", f"{HOST}:{control.xds}", "--node", "nobody"]
            assert command(look).returncode == 0
            said(control, "xds: a reader has left node=nobody")
            eventually(lambda: set(control.proxies) == {"edge"})
            eventually(lambda: lbctl(control, "status", "--check").returncode == 0)
        said(control, "xds: a node has left node=edge")
        assert lbctl(control, "status", "--check").returncode == 0


def test_a_dry_run_where_the_api_is_already_says_what_to_give_it() -> None:
    with controlling(fleet()) as control, second(control, ["--dry-run"]) as other:
        other.kill()
        other.api = control.api
        other.start(ready=False)
        assert ended(other) == 1
        assert "--api-bind" in other.log


def test_few_changed_resources_are_named_in_the_log() -> None:
    here = fleet()
    with controlling(here) as control:
        control.write({**here, "pools": {"pool": {"replicas": [{"name": "a", "address": f"{HOST}:10"}]}}})
        said(control, "eds=1 names=eds/pool")


def test_a_reload_without_the_token_is_4_and_says_where_it_is() -> None:
    with controlling(fleet()) as control:
        done = lbctl(control, "reload")
        assert done.returncode == 4
        assert str(control.state / "api-token") in done.stderr


def test_the_commands_take_their_server_from_the_environment_and_no_proxy() -> None:
    with controlling(fleet()) as control:
        env = {"LBCTL_SERVER": control.url, "http_proxy": f"http://{HOST}:1", "HTTP_PROXY": f"http://{HOST}:1"}
        done = command(["status"], env)
        assert done.returncode == 0, done.stderr
        assert f"{control.status['snapshot']['version']}, " in done.stdout
        assert "old, 1 pool, 1 replica\n" in done.stdout
        refused = command(["drain", "pool/a"], env)
        assert refused.returncode == 4
        assert f"it is in {control.state / 'api-token'}" in refused.stderr
        assert "LBCTL_TOKEN_FILE" in refused.stderr
        env |= {"LBCTL_TOKEN_FILE": str(control.state / "api-token"), "LBCTL_REASON": "too hot"}
        for words in (["drain", "pool/a"], ["undrain", "pool/a"], ["reload"], ["weight", "set", "pool/a", "3"]):
            done = command(words, env)
            assert done.returncode == 0, done.stderr
        told = command(["explain", "weight", "pool/a"], env).stdout
        assert "by hand        weight 3: too hot\n" in told
        assert "sent           3 by hand, " in told


def test_signals_are_shown_by_pool_and_a_page_that_does_not_answer_once() -> None:
    page = f"http://{HOST}:{free_port()}/metrics"
    sources = [
        {"kind": "custom", "url": page, "metric": name, "signal": name, "unit": unit}
        for name, unit in (("queue", "requests"), ("gpu", "ratio"))
    ]
    replicas_of = {"replicas": [{"name": "a", "address": f"{HOST}:9"}]}
    telemetry = {"telemetry": {"interval": "500ms", "sources": sources}}
    pools = {"pool": {**replicas_of, **telemetry}, "other": {**replicas_of, **telemetry}, "still": replicas_of}
    with controlling(fleet(pools=pools)) as control:
        eventually(lambda: "Connection refused" in lbctl(control, "status", "signals").stdout)
        rows = lbctl(control, "status", "signals", "--pool", "pool").stdout.splitlines()[1:]
        assert [row.split()[:2] for row in rows] == [["pool", "a"]]
        assert rows[0].count(page) == 1
        assert "it has no telemetry" in lbctl(control, "status", "signals", "--pool", "still").stderr
        assert [row.split()[0] for row in lbctl(control, "status", "pools", "--pool", "still").stdout.splitlines()] == [
            "POOL",
            "still",
        ]
        wrong = lbctl(control, "status", "signals", "--pool", "oter")
        assert (wrong.returncode, "did you mean 'other'?" in wrong.stderr) == (1, True)
        assert lbctl(control, "status", "--pool", "pool").returncode == 64


# ── Where it may listen ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("option", "code"), [("--xds-bind", "LB510"), ("--api-bind", "LB511")])
def test_beyond_loopback_it_does_not_start_without_what_keeps_strangers_out(option: str, code: str) -> None:
    with controlling(fleet(), options=[option, f"0.0.0.0:{free_port()}"], start=False) as control:
        control.start(ready=False)
        assert ended(control) == 1
        assert code in control.log
        assert "proxies are served" not in control.log


def test_insecure_opens_xds_and_not_the_api(tmp_path: Path) -> None:
    with controlling(fleet(), start=False) as control:
        control.options = ("--insecure", "--xds-bind", f"0.0.0.0:{control.xds}")
        control.start()
        assert control.stop() == 0
        control.options = ("--insecure", "--api-bind", f"0.0.0.0:{control.api}")
        control.start(ready=False)
        assert ended(control) == 1
        assert "LB511" in control.log


def test_the_api_beyond_loopback_speaks_tls_and_takes_new_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    first, later = authority.issue("first", [HOST]), authority.issue("later", [HOST])
    files = {
        "api.crt": first.certificate.read_bytes(), "api.key": first.key.read_bytes(), "token": "a-token-for-the-test\n",
    }  # fmt: skip
    api = {"tls": {"certificate": "api.crt", "key": "api.key"}, "token_file": "token"}
    with controlling(fleet(control={"api": api}), files=files, start=False) as control:
        control.options = ("--api-bind", f"0.0.0.0:{control.api}")
        control.start(ready=False)
        said(control, "proxies are served")
        trust = ["--server", f"https://{HOST}:{control.api}", "--tls-ca", str(authority.ca)]
        refused = command(["status", *trust])
        assert refused.returncode == 4
        assert "token" in refused.stderr
        done = command(["status", *trust, "--token-file", str(control.files / "token")])
        assert done.returncode == 0, done.stderr

        assert "first" in served_certificate(control)
        for name, file in (("api.key", later.key), ("api.crt", later.certificate)):
            beside = control.files / f".{name}"
            beside.write_bytes(file.read_bytes())
            beside.replace(control.files / name)
        eventually(lambda: "later" in served_certificate(control))


def served_certificate(control: ControlPlane) -> str:
    shown = subprocess.run(
        ["openssl", "s_client", "-connect", f"{HOST}:{control.api}"],
        input="", capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return next((line for line in shown.stdout.splitlines() if line.startswith("subject")), "")


def test_a_page_in_a_browser_cannot_reach_it_by_a_name_that_points_here() -> None:
    with controlling(fleet()) as control:
        answer = Client(control.api).get("/api/v1/status", headers={"host": "evil.example"})
        assert answer.status == 403


# ── A dry run ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_dry_run_decides_and_logs_and_neither_listens_for_proxies_nor_keeps_anything() -> None:
    with controlling(fleet(), options=["--dry-run"]) as control:
        assert control.status["dry_run"] is True
        assert control.status["listens"]["xds"] is None
        said(control, "would be published")
        assert not control.state.exists()
        control.write(fleet(pools={"pool": {"replicas": [{"address": f"{HOST}:9"}, {"address": f"{HOST}:10"}]}}))
        eventually(lambda: control.status["snapshot"]["replicas"] == 2)
        eventually(lambda: control.log.count("would be published") == 2)


def test_a_dry_run_runs_beside_the_one_that_serves() -> None:
    with controlling(fleet()) as control, second(control, ["--dry-run"]) as other:
        other.await_ready()
        assert other.status["snapshot"]["version"] == control.status["snapshot"]["version"]


def lbctl(control: ControlPlane, *arguments: str) -> subprocess.CompletedProcess[str]:
    return command([*arguments, "--server", control.url])


def command(arguments: Sequence[str], env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lbctl", *arguments],
        env=os.environ | (env or {}), capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
