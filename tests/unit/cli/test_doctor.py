"""`lbctl doctor`: each check passes on one machine and fails on another."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from lbctl import __version__
from lbctl.apply.listening_sockets import bind_error
from lbctl.cli import run
from lbctl.cli.doctor import ports
from lbctl.cli.doctor.check import DoctorResult
from lbctl.ir.address import Address
from lbctl.ir.pools import Pool
from lbctl.serve.picker.ports import PickerPorts
from lbctl.store.sqlite import DATABASE, VERSION
from tests.support.fleet import OLDEST
from tests.support.fleets import Fleet, fleet_of, pool
from tests.support.kubernetes import INFERENCE_POOLS, ApiServer, inference_pool, serving_api
from tests.support.processes.certs import Authority
from tests.support.processes.ports import free_pair, free_port, release

Rows = dict[str, dict[str, str]]
PAGE = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"


class Answers:
    """Bodies of a server by path. Its clock is `ahead` seconds ahead. With `hangs`, it never answers."""

    def __init__(self, pages: Mapping[str, str], ahead: float = 0.0, *, hangs: bool = False) -> None:
        self.pages, self.ahead, self.hangs = pages, ahead, hangs
        self.requested: list[str] = []


@contextmanager
def server(answers: Answers) -> Iterator[int]:
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers.requested.append(self.path)
            if answers.hangs:
                ended.wait(60)
                return
            body = answers.pages.get(self.path)
            self.send_response_only(200 if body is not None else 404)
            self.send_header("Date", formatdate(time.time() + answers.ahead, usegmt=True))
            self.send_header("Content-Length", str(len(body or "")))
            self.end_headers()
            self.wfile.write((body or "").encode())

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    with Server(("127.0.0.1", 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield listening.server_address[1]
        finally:
            ended.set()
            listening.shutdown()
            thread.join()


def local_fleet(metrics: int | None = None, **sections: Any) -> Fleet:
    """Return a fleet that listens on a free port. Its replica has the metrics of vLLM at the port `metrics`."""
    source = {"kind": "vllm", "url": f"http://127.0.0.1:{metrics}/metrics"}
    telemetry = {} if metrics is None else {"telemetry": {"sources": [source]}}
    return fleet_of(pool(**telemetry), listener={"bind": f"127.0.0.1:{free_port()}"}, **sections)


class Doctor:
    """Runs the command. A call returns the rows by their subject; `code` is the exit code, `errors` standard error."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory, self._capsys = directory, capsys
        self.code, self.errors = -1, ""

    def __call__(self, given: Fleet | None, *options: str) -> Rows:
        paths = []
        if given is not None:
            file = self.directory / "fleet.yaml"
            file.write_text(yaml.safe_dump(given))
            paths = [str(file)]
        self.code = run(["doctor", *paths, "--state", str(self.directory / "state"), "-o", "json", *options])
        out, self.errors = self._capsys.readouterr()
        return {row["what"]: row for row in json.loads(out)["checks"]}


@pytest.fixture(autouse=True)
def no_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the proxies of this machine, because `envoy --version` takes 0.2 s."""
    for kind in OLDEST:
        monkeypatch.setenv(f"LBCTL_{kind.upper()}", "/nowhere")


@pytest.fixture(autouse=True)
def no_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide a `serve` that runs on this machine at the default address."""
    monkeypatch.setenv("LBCTL_SERVER", f"http://127.0.0.1:{free_port()}")


@pytest.fixture(autouse=True)
def reachable_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every replica accept connections: most fleets here have addresses without a server."""

    async def connect(pools: Sequence[Pool]) -> dict[str, dict[str, str]]:
        return {pool.name: dict.fromkeys((item.name for item in pool.replicas), "") for pool in pools}

    monkeypatch.setattr("lbctl.cli.doctor.replicas._connect", connect)


@pytest.fixture
def supported_programs(no_programs: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts that print the oldest supported version of each proxy."""
    for kind, version in OLDEST.items():
        script = program(tmp_path, f"{kind}.sh", f"echo {kind} {'.'.join(map(str, version))}.0")
        monkeypatch.setenv(f"LBCTL_{kind.upper()}", script)


@pytest.fixture
def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(tmp_path, capsys)


# ── All checks ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_server_of_the_environment_need_not_run(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("LBCTL_SERVER", url)
    assert doctor(None)[f"serve {url}"]["state"] != "failed"
    assert doctor(None, "--server", url)[f"serve {url}"]["state"] == "failed"


@pytest.mark.usefixtures("supported_programs")
def test_suitable_machine_passes_all_checks(doctor: Doctor) -> None:
    answers = Answers({"/metrics": PAGE})
    with server(answers) as port:
        rows = doctor(local_fleet(port))
    assert doctor.code == 0
    assert {what: row["state"] for what, row in rows.items() if row["state"] not in ("ok", "skipped")}.keys() <= {
        "clock"
    }
    assert rows["pools.pool.telemetry vllm"]["message"] == "1 of 1 provide signals"
    assert rows["lbctl"]["message"].startswith(__version__)


def test_table_has_the_fix_below_the_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    assert run(["doctor", "--server", f"http://127.0.0.1:{port}", "--state", str(tmp_path / "s")]) == 4
    out, err = capsys.readouterr()
    lines = out.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith(f"serve http://127.0.0.1:{port}"))
    assert "failed" in lines[at]
    assert lines[at + 1].strip() == "→ start `lbctl serve`, or correct --server"
    assert err.startswith("lbctl: 1 failed")


def test_machine_is_checked_even_if_the_fleet_has_errors(doctor: Doctor) -> None:
    rows = doctor({"version": 1, "pools": {"p": {"replica": []}}})
    assert doctor.code == 1
    assert "LB011" in doctor.errors
    assert {"lbctl", "clock", "open files"} <= rows.keys()


def test_control_of_a_broken_fleet_is_checked(doctor: Doctor, capsys: pytest.CaptureFixture[str]) -> None:
    file = doctor.directory / "broken.yaml"
    file.write_text(f"version: 1\ncontrol: {{state: {doctor.directory}/kept}}\npools: [\n")
    assert run(["doctor", str(file), "-o", "json"]) == 1
    assert f"state {doctor.directory}/kept" in {row["what"] for row in json.loads(capsys.readouterr().out)["checks"]}


def test_missing_path_has_exit_code_1(doctor: Doctor) -> None:
    doctor(None, str(doctor.directory / "nowhere.yaml"))
    assert doctor.code == 1
    assert "LB001" in doctor.errors


# ── Programs ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def program(directory: Path, name: str, text: str) -> str:
    file = directory / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


DRIVEN = {
    "edge": {"kind": "nginx", "version": "1.25", "config": "/etc/nginx/nginx.conf", "reload": {"command": ["true"]}}
}


@pytest.mark.parametrize(
    ("text", "proxies", "code", "state", "words"),
    [
        ("echo nginx version: nginx/1.25.3 >&2", DRIVEN, 0, "ok", "1.25.3"),
        ("echo nginx version: nginx/1.22.1 >&2", DRIVEN, 3, "failed", "proxies.edge.version is 1.25"),
        (
            "echo nginx version: nginx/1.22.1 >&2",
            {"edge": {"kind": "nginx", "version": "1.25"}},
            0,
            "warn",
            "is 1.25",
        ),
        ("echo nginx version: nginx/1.18.0 >&2", {}, 0, "warn", "lbctl supports 1.22 and later"),
        ("echo hello", {}, 0, "warn", "does not report its version"),
        ("exec sleep 30", {}, 0, "warn", "does not report its version"),
    ],
)
def test_proxy_version_is_compared_with_the_fleet(
    text: str, proxies: Fleet, code: int, state: str, words: str, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbctl.apply.check._VERSION_TIMEOUT", 0.3)
    monkeypatch.setenv("LBCTL_NGINX", program(doctor.directory, "nginx", text))
    row = doctor(local_fleet(proxies=proxies))["nginx"]
    assert (doctor.code, row["state"]) == (code, state)
    assert words in row["message"] + row["todo"]


def test_known_faults_of_an_installed_proxy_are_named(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LBCTL_NGINX", program(doctor.directory, "nginx", "echo nginx version: nginx/1.30.5 >&2"))
    rows = doctor(local_fleet(proxies={"edge": {"kind": "nginx"}}))
    assert (doctor.code, rows["nginx"]["state"], rows["nginx 1.30.5"]["state"]) == (0, "ok", "warn")
    assert "CVE-2026-93479" in rows["nginx 1.30.5"]["message"]
    assert "unless your distribution has patched this version" in rows["nginx 1.30.5"]["todo"]
    assert "nginx 1.30.5" not in doctor(local_fleet()), "no proxy of the fleet is an nginx"


def test_missing_program_of_a_driven_proxy_has_exit_code_4(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LBCTL_NGINX", "/nowhere/nginx")
    assert doctor(local_fleet(proxies=DRIVEN))["nginx"]["state"] == "failed"
    assert doctor.code == 4
    assert doctor(local_fleet())["nginx"]["state"] == "skipped"
    assert doctor.code == 0


# ── Ports ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_port_in_use_is_reported_with_its_process(doctor: Doctor) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as held:
        given = local_fleet()
        given["listeners"]["gateway"]["bind"] = f"127.0.0.1:{held.getsockname()[1]}"
        row = doctor(given)[f"listeners.gateway.bind 127.0.0.1:{held.getsockname()[1]}"]
    assert (doctor.code, row["state"]) == (3, "failed")
    assert f"(process {os.getpid()})" in row["message"]
    assert row["todo"] == "stop it, or change listeners.gateway.bind"


def test_ports_that_serve_reserves_for_its_picker_are_explained() -> None:
    bind = Address("127.0.0.1", free_pair())
    release()
    with closing(PickerPorts(bind)):
        row = ports.port(ports.BoundAddress(ports.PICKER, bind, ports.SERVE))
    assert (row.state, row.message) == ("warn", "in use by a program that does not listen")
    assert row.todo == "`serve` reserves it while its picker restarts: see `lbctl status`"


def test_reserved_port_names_the_key_to_change() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        bind = Address("127.0.0.1", reserved.getsockname()[1])
        row = ports.port(ports.BoundAddress("listeners.gateway.bind", bind, frozenset({"nginx"})))
    assert (row.state, row.todo) == ("warn", "stop the program, or change listeners.gateway.bind")


def test_port_in_use_by_the_proxy_itself_is_ok(doctor: Doctor) -> None:
    code = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    )
    fake = doctor.directory / "nginx"
    fake.symlink_to(Path(sys.executable).resolve())
    pipe = subprocess.PIPE
    with subprocess.Popen([str(fake), "-c", code], stdin=pipe, stdout=pipe, text=True) as proxy:
        try:
            assert proxy.stdout is not None
            port = int(proxy.stdout.readline())
            given = local_fleet()
            given["listeners"]["gateway"]["bind"] = f"127.0.0.1:{port}"
            row = doctor(given)[f"listeners.gateway.bind 127.0.0.1:{port}"]
        finally:
            proxy.kill()
    assert (doctor.code, row["state"]) == (0, "ok")
    assert row["message"] == f"in use by nginx (process {proxy.pid})"


def test_default_ports_of_serve_are_checked(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(bound: ports.BoundAddress) -> DoctorResult:
        return DoctorResult(f"{bound.path} {bound.address}", "failed", "in use by another program")

    monkeypatch.setattr(ports, "port", taken)
    given = local_fleet()
    given.pop("control", None)
    names = ("control.xds.bind 127.0.0.1:18000", "control.api.bind 127.0.0.1:18080")
    assert [doctor(given)[name]["state"] for name in names] == ["warn", "warn"], "it may be for render alone"
    assert [doctor(given | {"control": {"state": "x"}})[name]["state"] for name in names] == ["failed", "failed"]


def test_address_of_another_machine_is_a_warning(doctor: Doctor) -> None:
    given = local_fleet()
    given["listeners"]["gateway"]["bind"] = "192.0.2.1:8443"
    row = doctor(given)["listeners.gateway.bind 192.0.2.1:8443"]
    assert (row["state"], row["message"]) == ("warn", "this address does not belong to this machine")


# ── The machine ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("hard", "code", "state"), [(8000, 0, "warn"), (2000, 3, "failed"), (1000, 3, "failed")])
@pytest.mark.slow
def test_limit_of_open_files_is_compared_with_connections(
    hard: int, code: int, state: str, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {resource.RLIMIT_NOFILE: (1000, hard)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    given = local_fleet()
    given["listeners"]["gateway"]["max_connections"] = 2000
    row = doctor(given)["open files"]
    assert (doctor.code, row["state"]) == (code, state)
    assert row["message"] == f"1000, can be raised to {hard}; the fleet's connections need 5536"
    assert row["todo"] == "run `ulimit -n 5536`, or set LimitNOFILE=5536 for a service"


@pytest.mark.parametrize(
    ("ahead", "state", "words"), [(-300, "failed", "behind"), (20, "warn", "ahead of"), (0, "", "agrees with 1 other")]
)
def test_clock_is_compared_with_telemetry_sources(
    ahead: float, state: str, words: str, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LBCTL_SERVER", f"http://127.0.0.1:{free_port()}")  # a serve of this machine has a clock, too
    with server(Answers({"/metrics": PAGE}, ahead)) as port:
        row = doctor(local_fleet(port))["clock"]
    assert state in (row["state"], "")
    assert words in row["message"]
    assert doctor.code == (3 if state == "failed" else 0)


# ── State and files ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("config", "path", "state", "words"),
    [
        ("/etc/nginx/nginx.conf", "/dev/stdout", "warn", "in a systemd service, this is a socket"),
        ("/srv/nginx.conf", "/dev/stdout", "ok", "standard output"),
        ("/etc/nginx/nginx.conf", "/nowhere/at/all/edge.log", "warn", "/nowhere/at/all does not exist"),
        ("/etc/nginx/nginx.conf", f"/{300 * 'x'}/edge.log", "warn", "xxx does not exist"),
        ("/etc/nginx/nginx.conf", "/tmp/edge.log", "ok", "/tmp exists"),
    ],
)
def test_access_log_that_cannot_be_opened_is_reported(
    config: str, path: str, state: str, words: str, doctor: Doctor
) -> None:
    given = local_fleet(proxies={"edge": {"kind": "nginx", "config": config}})
    given["listeners"]["gateway"]["access_log"] = {"path": path}
    row = doctor(given)[f"proxies.edge access log {path}"]
    assert row["state"] == state
    assert words in row["message"]


def test_state_directory_must_be_private_to_its_owner(doctor: Doctor) -> None:
    state = doctor.directory / "state"
    what = f"state {state}"
    assert doctor(None)[what]["message"] == "does not exist yet; serve creates it"
    assert not state.exists()
    state.mkdir(mode=0o700)
    assert doctor(None)[what]["state"] == "ok"
    state.chmod(0o755)
    assert doctor(None)[what]["todo"] == f"chmod 700 {state}"
    assert doctor.code == 0


@pytest.mark.parametrize("place", ["/proc/nope", "/proc/nope/deeper"])
def test_state_that_even_root_cannot_create_is_an_error(place: str, doctor: Doctor) -> None:
    row = doctor(None, "--state", place)[f"state {place}"]
    assert (doctor.code, row["state"], row["message"]) == (3, "failed", "does not exist and cannot be created in /proc")


def test_check_of_the_state_leaves_it_unchanged(doctor: Doctor) -> None:
    state = doctor.directory / "state"
    state.mkdir(mode=0o700)
    before = state.stat().st_mtime_ns
    assert doctor(None)[f"state {state}"]["message"] == "writable and private; still empty"
    assert (list(state.iterdir()), state.stat().st_mtime_ns) == ([], before)


def test_state_of_a_newer_lbctl_is_an_error(doctor: Doctor) -> None:
    state = doctor.directory / "state"
    state.mkdir(mode=0o700)
    head = b"SQLite format 3\0".ljust(60, b"\0") + (VERSION + 1).to_bytes(4, "big")
    (state / DATABASE).write_bytes(head.ljust(4096, b"\0"))
    row = doctor(None)[f"state {state}"]
    assert (doctor.code, row["state"], row["todo"]) == (3, "failed", "install the lbctl that wrote it")


def test_file_in_place_of_the_state_directory_is_an_error(doctor: Doctor) -> None:
    (doctor.directory / "state").write_text("")
    assert doctor(None)[f"state {doctor.directory / 'state'}"]["message"] == "not a directory"
    assert doctor.code == 3


def test_certificate_must_match_its_key(doctor: Doctor) -> None:
    authority = Authority(doctor.directory)
    one, other = authority.issue("one"), authority.issue("other")
    other.key.chmod(0o600)
    given = local_fleet()
    tls = {"certificate": one.certificate.name, "key": other.key.name}
    given["listeners"]["gateway"]["tls"] = {"certificates": [tls], "client_ca": "nowhere.crt"}
    rows = doctor(given)
    assert doctor.code == 3
    assert rows["listeners.gateway.tls.client_ca"]["state"] == "failed"
    pair = rows["listeners.gateway.tls.certificates[0].certificate"]
    assert pair["message"] == "the certificate and the key do not match"
    tls["key"] = one.key.name
    del given["listeners"]["gateway"]["tls"]["client_ca"]
    one.key.chmod(0o644)
    rows = doctor(given)
    assert doctor.code == 0
    assert f"chmod 600 {one.key}" in rows["listeners.gateway.tls.certificates[0].key"]["todo"]
    assert rows["files"]["message"] == "1 usable"


# ── Sources and serve ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("pages", "words"),
    [
        ({}, "status 404"),
        ({"/metrics": "<html>"}, "an HTML page"),
        ({"/metrics": "up 1\n"}, "no vLLM metric"),
    ],
)
def test_source_without_metrics_is_reported_with_the_reason(pages: Fleet, words: str, doctor: Doctor) -> None:
    with server(Answers(pages)) as port:
        row = doctor(local_fleet(port))["pools.pool.telemetry vllm"]
    assert (doctor.code, row["state"]) == (4, "failed")
    assert words in row["message"]


def test_one_source_of_several_without_metrics_is_a_warning(doctor: Doctor) -> None:
    with server(Answers({"/r0": PAGE})) as port:
        given = local_fleet(port)
        given["pools"]["pool"]["telemetry"]["sources"][0]["url"] = f"http://127.0.0.1:{port}/{{name}}"
        given["pools"]["pool"]["replicas"] = [{"name": f"r{n}", "address": f"127.0.0.1:{n + 1}"} for n in range(2)]
        row = doctor(given)["pools.pool.telemetry vllm"]
    assert (doctor.code, row["state"]) == (0, "warn")
    assert row["message"].startswith("1 of 2 provide signals; ")


@pytest.mark.slow
def test_hanging_sources_time_out_in_parallel(doctor: Doctor) -> None:
    answers = Answers({}, hangs=True)
    with server(answers) as port:
        given = local_fleet(port)
        pool_section = given["pools"]["pool"]
        pool_section["telemetry"]["sources"][0]["url"] += "/{name}"
        pool_section["replicas"] = [{"name": f"r{n}", "address": f"127.0.0.1:{n + 1}"} for n in range(40)]
        began = time.monotonic()
        row = doctor(given)["pools.pool.telemetry vllm"]
        seconds = time.monotonic() - began
    assert len(set(answers.requested)) == 40
    assert seconds < 40, "one after the other they would take 80 s"
    assert doctor.code == 4
    assert row["message"].startswith("0 of 40 provide signals")
    assert "no complete response within 2 s" in row["message"]


def test_page_shared_by_replicas_is_requested_once(doctor: Doctor) -> None:
    answers = Answers({"/metrics": PAGE})
    with server(answers) as port:
        given = local_fleet(port)
        given["pools"]["pool"]["replicas"] = [{"name": f"r{n}", "address": f"127.0.0.1:{n + 1}"} for n in range(5)]
        assert doctor(given)["pools.pool.telemetry vllm"]["message"] == "5 of 5 provide signals"
    assert answers.requested == ["/metrics"]


def status(version: str = __version__, *, ready: bool = True) -> dict[str, str]:
    document = {"version": version, "ready": ready, "waiting": None if ready else "no fleet yet"}
    return {"/healthz": "{}", "/api/v1/status": json.dumps(document)}


@pytest.mark.parametrize(
    ("pages", "code", "state", "words"),
    [
        (status(), 0, "ok", f"lbctl {__version__} answers"),
        (status("0.0.1"), 0, "warn", f"lbctl 0.0.1 runs there, but this is lbctl {__version__}"),
        (status(ready=False), 0, "warn", "not ready: no fleet yet"),
        ({"/healthz": "", "/api/v1/status": "<html>"}, 4, "failed", "is not an lbctl serve"),
    ],
)
def test_running_serve_reports_its_version_and_readiness(
    pages: dict[str, str], code: int, state: str, words: str, doctor: Doctor
) -> None:
    with server(Answers(pages)) as port:
        url = f"http://127.0.0.1:{port}"
        row = doctor(None, "--server", url)[f"serve {url}"]
    assert (doctor.code, row["state"]) == (code, state)
    assert words in row["message"]


def test_hanging_serve_times_out(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lbctl.cli.doctor.api.ANSWER_TIMEOUT", 0.2)
    with server(Answers({}, hangs=True)) as port:
        url = f"http://127.0.0.1:{port}"
        began = time.monotonic()
        row = doctor(None, "--server", url)[f"serve {url}"]
    assert time.monotonic() - began < 30
    assert (doctor.code, row["state"], row["message"]) == (4, "failed", "no answer within 0.2 s")


def test_missing_serve_is_skipped_by_default(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LBCTL_SERVER")
    control = {"api": {"bind": f"127.0.0.1:{free_port()}"}, "xds": {"bind": f"127.0.0.1:{free_port()}"}}
    rows = doctor(local_fleet(control=control))
    row = rows[f"serve http://{control['api']['bind']}"]
    assert (doctor.code, row["state"]) == (0, "skipped")
    assert rows[f"control.xds.bind {control['xds']['bind']}"]["message"] == "free"


def test_missing_token_file_is_reported(doctor: Doctor) -> None:
    with server(Answers(status())) as port:
        url = f"http://127.0.0.1:{port}"
        row = doctor(None, "--server", url, "--token-file", "/nowhere/token")[f"serve {url}"]
    assert (doctor.code, row["state"]) == (4, "failed")
    assert "/nowhere/token cannot be read" in row["message"]


def test_agent_check_on_ephemeral_ports_is_a_warning() -> None:
    low, _ = map(int, ports._RANGE.read_text().split())

    def state_and_fix(port: int) -> tuple[str, str]:
        check = ports.port(ports.BoundAddress("proxies.ha.agent_check.bind", Address("127.0.0.1", port), ports.SERVE))
        return check.state, check.todo

    assert state_and_fix(free_port()) == (
        "warn",
        f"choose ports below {low}: the agent check needs one port for each replica",
    )
    below = next(port for port in range(low - 1, 1024, -1) if not bind_error(Address("127.0.0.1", port)))
    assert state_and_fix(below)[0] == "ok"


# ── Kubernetes ────────────────────────────────────────────────────────────────────────────────────────────────────────


def fleet_from_kubernetes(server: ApiServer | None, directory: Path, **keys: Any) -> Fleet:
    """Return a fleet with a service of this API server."""
    if server is not None:
        server.kubeconfig(directory / "kubeconfig")
    source = {} if "inference_pool" in keys else {"service": "vllm"}
    section = {"namespace": "ml", "kubeconfig": "kubeconfig", **source, **keys}
    return local_fleet() | {"pools": {"pool": {"discovery": {"kubernetes": section}}}}


def test_api_server_that_permits_discovery_is_ok(doctor: Doctor, tmp_path: Path) -> None:
    with serving_api() as server:
        rows = doctor(fleet_from_kubernetes(server, tmp_path, gpu_from={"node_label": "gpu"}))
        row = rows["pools.pool.discovery.kubernetes ml/vllm"]
        assert (row["state"], row["message"]) == ("ok", "the API server answers and permits list and watch")
        assert not server.asked("GET")


def test_missing_rights_of_the_account_are_listed(doctor: Doctor, tmp_path: Path) -> None:
    with serving_api() as server:
        server.forbidden = {"nodes"}
        rows = doctor(fleet_from_kubernetes(server, tmp_path, gpu_from={"node_label": "gpu"}))
        assert (
            rows["pools.pool.discovery.kubernetes ml/vllm"]["message"]
            == "the account lacks permission to list nodes, watch nodes"
        )
        assert doctor.code == 3


def test_missing_rights_for_an_inference_pool_are_listed(doctor: Doctor, tmp_path: Path) -> None:
    with serving_api() as server:
        server.forbidden = {"inferencepools", "pods"}
        rows = doctor(fleet_from_kubernetes(server, tmp_path, inference_pool="llama"))
        assert (
            rows["pools.pool.discovery.kubernetes ml/inferencepool/llama"]["message"]
            == "the account lacks permission to list inferencepools, watch inferencepools, list pods, watch pods"
        )


def test_missing_inference_pool_is_reported(doctor: Doctor, tmp_path: Path) -> None:
    with serving_api() as server:
        row = "pools.pool.discovery.kubernetes ml/inferencepool/llama"
        fleet = fleet_from_kubernetes(server, tmp_path, inference_pool="llama")
        assert doctor(fleet)[row]["message"] == "the InferencePool does not exist"
        server.put(INFERENCE_POOLS.format("ml"), "llama", inference_pool(8000))
        assert doctor(fleet)[row]["state"] == "ok"
        server.unknown = {"inferencepools"}
        problem = "the cluster does not have inferencepools of the API inference.networking.k8s.io/v1"
        assert doctor(fleet)[row]["message"] == problem
        assert doctor.code == 3


def test_unusable_api_server_has_exit_code_4(doctor: Doctor, tmp_path: Path) -> None:
    with serving_api() as server:
        server.tokens = {"another"}
        row = doctor(fleet_from_kubernetes(server, tmp_path))["pools.pool.discovery.kubernetes ml/vllm"]
        assert (doctor.code, row["message"]) == (4, "401 Unauthorized: Unauthorized")
        server.away()
        row = doctor(fleet_from_kubernetes(server, tmp_path))["pools.pool.discovery.kubernetes ml/vllm"]
        assert (doctor.code, row["message"]) == (4, f"{server.url}: Connection refused")


# ── The picker ────────────────────────────────────────────────────────────────────────────────────────────────────────

OWN = {"version": __version__, "ready": True, "dry_run": False}


def fleet_with_picker(port: int) -> Fleet:
    """Return a fleet whose picker has HTTP at this port."""
    given = local_fleet(control={"picker": {"bind": f"127.0.0.1:{port - 1}"}})
    given["pools"]["pool"]["balance"] = {"algorithm": "pick"}
    return given


def serve_with_picker(port: int, *, running: bool = True, unsaved: str | None = None, **more: Any) -> Answers:
    """Return the answers of a serve that reports this state of its picker."""
    row: dict[str, Any] = {"listens": f"127.0.0.1:{port - 1}", "running": running, "unsaved": unsaved}
    row["reason"] = None if running else "it is tired"
    row["since"] = "2026-11-27T10:00:00Z" if running else None
    return Answers({"/api/v1/status": json.dumps({**OWN, "picker": row, **more})})


def test_answering_picker_is_ok_if_serve_reports_it(doctor: Doctor) -> None:
    with server(Answers({"/health": "ok\n"})) as port:
        what = f"picker 127.0.0.1:{port - 1}"
        row = doctor(fleet_with_picker(port))[what]
        assert row["state"] == "warn"
        assert "the picker may belong to another fleet" in row["message"]
        with server(serve_with_picker(port)) as api:
            row = doctor(None, "--server", f"http://127.0.0.1:{api}")[what]
            assert (doctor.code, row["state"], row["message"]) == (0, "ok", "answers")


def test_unreachable_picker_that_serve_reports_is_a_warning(doctor: Doctor) -> None:
    port = free_port()
    with server(serve_with_picker(port)) as api:
        row = doctor(fleet_with_picker(port), "--server", f"http://127.0.0.1:{api}")[f"picker 127.0.0.1:{port - 1}"]
    message = f"serve reports that the picker is running, but 127.0.0.1:{port}: connection refused"
    assert (doctor.code, row["state"], row["message"]) == (0, "warn", message)
    assert "is on another machine" in row["todo"]


def test_picker_that_cannot_save_its_memory_is_a_warning(doctor: Doctor) -> None:
    with server(serve_with_picker(18002, unsaved="No space left on device")) as api:
        row = doctor(None, "--server", f"http://127.0.0.1:{api}")["picker 127.0.0.1:18001"]
    assert (doctor.code, row["state"]) == (0, "warn")
    assert "No space left on device" in row["message"]


@pytest.mark.slow
def test_stopped_picker_is_reported_with_the_reason(doctor: Doctor) -> None:
    port = free_port()
    what = f"picker 127.0.0.1:{port - 1}"
    with server(serve_with_picker(port, running=False)) as api:
        row = doctor(fleet_with_picker(port), "--server", f"http://127.0.0.1:{api}")[what]
    assert (doctor.code, row["state"], row["message"]) == (4, "failed", "not running: it is tired")
    with server(serve_with_picker(port, running=False, dry_run=True)) as api:
        assert doctor(fleet_with_picker(port), "--server", f"http://127.0.0.1:{api}")[what]["state"] == "skipped"
    with server(Answers({"/api/v1/status": json.dumps(OWN)})) as api:
        row = doctor(fleet_with_picker(port), "--server", f"http://127.0.0.1:{api}")[what]
    assert (doctor.code, row["state"]) == (0, "warn")
    assert "it uses different files" in row["message"]


def test_missing_picker_is_skipped_without_serve(doctor: Doctor) -> None:
    port = free_port()
    row = doctor(fleet_with_picker(port))[f"picker 127.0.0.1:{port - 1}"]
    assert (doctor.code, row["state"]) == (0, "skipped")
    assert not any(what.startswith("picker") for what in doctor(local_fleet()))


def test_wrong_or_hanging_server_at_the_picker_is_reported(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    for answers, message in (
        (Answers({}), "the process at 127.0.0.1:PORT is not a picker"),
        (Answers({}, hangs=True), "nothing answers at 127.0.0.1:PORT within 0.2 s"),
    ):
        if answers.hangs:
            monkeypatch.setattr("lbctl.cli.doctor.picker.ANSWER_TIMEOUT", 0.2)
        with server(answers) as port, server(serve_with_picker(port)) as api:
            row = doctor(fleet_with_picker(port), "--server", f"http://127.0.0.1:{api}")[f"picker 127.0.0.1:{port - 1}"]
        expected = f"serve reports that the picker is running, but {message.replace('PORT', str(port))}"
        assert (row["state"], row["message"]) == ("warn", expected)


def test_state_and_addresses_of_a_running_serve_are_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet, state = tmp_path / "fleet.yaml", tmp_path / "own-state"
    fleet.write_text(yaml.safe_dump(local_fleet()))
    state.mkdir(mode=0o700)
    files = {"paths": ["fleet.yaml", "/tmp/up.yaml"], "directory": str(tmp_path)}
    listens = {"state": str(state), "api": f"127.0.0.1:{free_port()}", "xds": f"unix:{tmp_path}/xds.sock"}
    with server(Answers({"/api/v1/status": json.dumps({**OWN, "fleet": files, "listens": listens})})) as api:
        run(["doctor", str(fleet), "-o", "json", "--server", f"http://127.0.0.1:{api}"])
        rows = {row["what"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
        fleet.write_text(yaml.safe_dump({**local_fleet(), "control": {"api": {"bind": f"127.0.0.1:{api}"}}}))
        run(["doctor", "-o", "json", "--fleet", str(fleet)])
        by_fleet = {row["what"] for row in json.loads(capsys.readouterr().out)["checks"]}
    assert rows[f"state {state}"]["message"] == "writable and private; still empty"
    assert {what for what in rows if what.startswith(("state", "control"))} == {
        f"state {state}", f"control.xds.bind unix:{tmp_path}/xds.sock", f"control.api.bind {listens['api']}"
    }  # fmt: skip
    assert [what for what in by_fleet if what.startswith("state")] == [f"state {state}"]
