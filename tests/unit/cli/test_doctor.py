"""`lbctl doctor`: each check with a machine that is right and one that is not; only loopback is asked."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
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
from lbctl.ir.address import Address
from lbctl.serve.state.sqlite import DATABASE, VERSION
from tests.support.kubernetes import ApiServer, serving_api
from tests.support.paths import ROOT
from tests.support.processes.binaries import require
from tests.support.processes.certs import Authority
from tests.support.processes.ports import free_port

Fleet = dict[str, Any]
Rows = dict[str, dict[str, str]]
PAGE = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"


class Answers:
    """What a server says: path → body. `ahead`: seconds of its clock; `hangs`: it never comes to an end."""

    def __init__(self, pages: Mapping[str, str], ahead: float = 0.0, *, hangs: bool = False) -> None:
        self.pages, self.ahead, self.hangs = pages, ahead, hangs
        self.asked: list[str] = []


@contextmanager
def server(answers: Answers) -> Iterator[int]:
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answers.asked.append(self.path)
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
            """Nothing."""

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


def fleet(metrics: int | None = None, **more: Any) -> Fleet:
    pool: Fleet = {"replicas": [{"name": "a", "address": "127.0.0.1:9"}]}
    if metrics is not None:
        pool["telemetry"] = {"sources": [{"kind": "vllm", "url": f"http://127.0.0.1:{metrics}/metrics"}]}
    listener = {"bind": f"127.0.0.1:{free_port()}"}
    return {
        "version": 1,
        "listeners": {"l": listener},
        "routes": {"r": {"match": {"path_prefix": "/"}, "pool": "p"}},
        "pools": {"p": pool},
        **more,
    }


class Doctor:
    """`code` and `rows` of a run on a fleet, by what was looked at."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory, self._capsys = directory, capsys
        self.code, self.said = -1, ""

    def __call__(self, given: Fleet | None, *options: str) -> Rows:
        paths = []
        if given is not None:
            file = self.directory / "fleet.yaml"
            file.write_text(yaml.safe_dump(given))
            paths = [str(file)]
        self.code = run(["doctor", *paths, "--state", str(self.directory / "state"), "-o", "json", *options])
        out, self.said = self._capsys.readouterr()
        return {row["what"]: row for row in json.loads(out)["checks"]}


@pytest.fixture
def doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(tmp_path, capsys)


# ── The whole ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_server_that_is_named_for_all_commands_need_not_run(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("LBCTL_SERVER", url)
    assert doctor(None)[f"serve {url}"]["state"] != "failed"
    assert doctor(None, "--server", url)[f"serve {url}"]["state"] == "failed"


def test_a_machine_that_can_run_the_fleet_is_told_so(doctor: Doctor) -> None:
    for kind in ("nginx", "haproxy", "envoy"):
        require(kind)
    answers = Answers({"/metrics": PAGE})
    with server(answers) as port:
        rows = doctor(fleet(port))
    assert doctor.code == 0
    assert {what: row["state"] for what, row in rows.items() if row["state"] not in ("ok", "skipped")}.keys() <= {
        "clock"
    }
    assert rows["pools.p.telemetry vllm"]["message"] == "1 of 1 give signals"
    assert rows["lbctl"]["message"].startswith(__version__)


def test_the_table_says_what_to_do_below_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = free_port()
    assert run(["doctor", "--server", f"http://127.0.0.1:{port}", "--state", str(tmp_path / "s")]) == 4
    out, err = capsys.readouterr()
    lines = out.splitlines()
    at = next(index for index, line in enumerate(lines) if line.startswith(f"serve http://127.0.0.1:{port}"))
    assert "failed" in lines[at]
    assert lines[at + 1].strip() == "→ start `lbctl serve`, or correct --server"
    assert err.startswith("lbctl: 1 failed")


def test_a_fleet_with_errors_is_1_and_the_machine_is_looked_at_all_the_same(doctor: Doctor) -> None:
    rows = doctor({"version": 1, "pools": {"p": {"replica": []}}})
    assert doctor.code == 1
    assert "LB011" in doctor.said
    assert {"lbctl", "clock", "open files"} <= rows.keys()


def test_a_path_that_is_not_there_is_1(doctor: Doctor) -> None:
    doctor(None, str(doctor.directory / "nowhere.yaml"))
    assert doctor.code == 1
    assert "LB001" in doctor.said


# ── Programs ─────────────────────────────────────────────────────────────────────────────────────────────────────────


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
        ("echo nginx version: nginx/1.22.1 >&2", DRIVEN, 3, "failed", "proxies.edge.version says 1.25"),
        (
            "echo nginx version: nginx/1.22.1 >&2",
            {"edge": {"kind": "nginx", "version": "1.25"}},
            0,
            "warn",
            "says 1.25",
        ),
        ("echo nginx version: nginx/1.18.0 >&2", {}, 0, "warn", "lbctl renders for 1.22 and later"),
        ("echo hello", {}, 0, "warn", "does not tell its version"),
        ("exec sleep 30", {}, 0, "warn", "does not tell its version"),
    ],
)
def test_a_proxys_program_is_held_against_what_the_fleet_says(
    text: str, proxies: Fleet, code: int, state: str, words: str, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lbctl.apply.check._VERSION_TIMEOUT", 0.3)
    monkeypatch.setenv("LBCTL_NGINX", program(doctor.directory, "nginx", text))
    row = doctor(fleet(proxies=proxies))["nginx"]
    assert (doctor.code, row["state"]) == (code, state)
    assert words in row["message"] + row["todo"]


def test_a_program_that_serve_is_to_drive_and_that_is_missing_is_4(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LBCTL_NGINX", "/nowhere/nginx")
    assert doctor(fleet(proxies=DRIVEN))["nginx"]["state"] == "failed"
    assert doctor.code == 4
    assert doctor(fleet())["nginx"]["state"] == "skipped"
    assert doctor.code == 0


# ── Ports ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_port_that_another_program_has_is_named_with_its_holder(doctor: Doctor) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as held:
        given = fleet()
        given["listeners"]["l"]["bind"] = f"127.0.0.1:{held.getsockname()[1]}"
        row = doctor(given)[f"listeners.l.bind 127.0.0.1:{held.getsockname()[1]}"]
    assert (doctor.code, row["state"]) == (3, "failed")
    assert f"(process {os.getpid()})" in row["message"]
    assert row["todo"] == "end it, or change listeners.l.bind"


def test_a_port_that_the_proxy_has_already_is_right(doctor: Doctor) -> None:
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
            given = fleet()
            given["listeners"]["l"]["bind"] = f"127.0.0.1:{port}"
            row = doctor(given)[f"listeners.l.bind 127.0.0.1:{port}"]
        finally:
            proxy.kill()
    assert (doctor.code, row["state"]) == (0, "ok")
    assert row["message"] == f"in use by nginx (process {proxy.pid})"


def test_an_address_of_another_machine_is_said_to_be_one(doctor: Doctor) -> None:
    given = fleet()
    given["listeners"]["l"]["bind"] = "192.0.2.1:8443"
    row = doctor(given)["listeners.l.bind 192.0.2.1:8443"]
    assert (row["state"], row["message"]) == ("warn", "this machine has no such address")


# ── The machine ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize(("hard", "code", "state"), [(8000, 0, "warn"), (2000, 3, "failed"), (1000, 3, "failed")])
def test_more_connections_than_files_may_be_open_are_told_with_the_number(
    hard: int, code: int, state: str, tmp_path: Path
) -> None:
    given = fleet()
    given["listeners"]["l"]["max_connections"] = 2000
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(given))
    line = f"ulimit -Sn 1000; ulimit -Hn {hard}; exec {sys.executable} -m lbctl doctor fleet.yaml --state state -o json"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=env, capture_output=True, timeout=120, check=False)
    row = next(item for item in json.loads(done.stdout)["checks"] if item["what"] == "open files")
    assert (done.returncode, row["state"]) == (code, state)
    assert row["message"] == f"1000, can be raised to {hard}; the fleet's connections need 5536"
    assert row["todo"] == "ulimit -n 5536; for a service LimitNOFILE=5536"


@pytest.mark.parametrize(
    ("ahead", "state", "words"), [(-300, "failed", "behind"), (20, "warn", "ahead of"), (0, "", "agrees with 1 other")]
)
def test_the_clock_is_held_against_what_sources_say(
    ahead: float, state: str, words: str, doctor: Doctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LBCTL_SERVER", f"http://127.0.0.1:{free_port()}")  # a serve of this machine has a clock, too
    with server(Answers({"/metrics": PAGE}, ahead)) as port:
        row = doctor(fleet(port))["clock"]
    assert state in (row["state"], "")
    assert words in row["message"]
    assert doctor.code == (3 if state == "failed" else 0)


# ── State and files ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("config", "path", "state", "words"),
    [
        ("/etc/nginx/nginx.conf", "/dev/stdout", "warn", "a service of systemd cannot open it"),
        ("/srv/nginx.conf", "/dev/stdout", "ok", "standard output"),
        ("/etc/nginx/nginx.conf", "/nowhere/at/all/edge.log", "warn", "/nowhere/at/all is not there"),
        ("/etc/nginx/nginx.conf", f"/{300 * 'x'}/edge.log", "warn", "xxx is not there"),
        ("/etc/nginx/nginx.conf", "/tmp/edge.log", "ok", "/tmp is there"),
    ],
)
def test_an_access_log_that_a_proxy_cannot_open_when_it_starts_is_told(
    config: str, path: str, state: str, words: str, doctor: Doctor
) -> None:
    given = fleet(proxies={"edge": {"kind": "nginx", "config": config}})
    given["listeners"]["l"]["access_log"] = {"path": path}
    row = doctor(given)[f"proxies.edge access log {path}"]
    assert row["state"] == state
    assert words in row["message"]


def test_a_state_directory_is_right_when_it_is_its_owners_alone(doctor: Doctor) -> None:
    state = doctor.directory / "state"
    what = f"state {state}"
    assert doctor(None)[what]["message"] == "not there yet; serve makes it"
    assert not state.exists()
    state.mkdir(mode=0o700)
    assert doctor(None)[what]["state"] == "ok"
    state.chmod(0o755)
    assert doctor(None)[what]["todo"] == f"chmod 700 {state}"
    assert doctor.code == 0


@pytest.mark.parametrize("place", ["/proc/nope", "/proc/nope/deeper"])
def test_a_state_where_nobody_can_make_one_is_refused_even_for_root(place: str, doctor: Doctor) -> None:
    row = doctor(None, "--state", place)[f"state {place}"]
    assert (doctor.code, row["state"], row["message"]) == (3, "failed", "not there, and cannot be made in /proc")


def test_looking_at_a_state_leaves_nothing_there(doctor: Doctor) -> None:
    state = doctor.directory / "state"
    state.mkdir(mode=0o700)
    before = state.stat().st_mtime_ns
    assert doctor(None)[f"state {state}"]["message"] == "writable, for its owner alone; nothing is kept yet"
    assert (list(state.iterdir()), state.stat().st_mtime_ns) == ([], before)


def test_a_state_that_a_newer_lbctl_wrote_is_refused(doctor: Doctor) -> None:
    state = doctor.directory / "state"
    state.mkdir(mode=0o700)
    head = b"SQLite format 3\0".ljust(60, b"\0") + (VERSION + 1).to_bytes(4, "big")
    (state / DATABASE).write_bytes(head.ljust(4096, b"\0"))
    row = doctor(None)[f"state {state}"]
    assert (doctor.code, row["state"], row["todo"]) == (3, "failed", "install the lbctl that wrote it")


def test_a_file_in_the_place_of_the_state_is_no_state(doctor: Doctor) -> None:
    (doctor.directory / "state").write_text("")
    assert doctor(None)[f"state {doctor.directory / 'state'}"]["message"] == "it is no directory"
    assert doctor.code == 3


def test_certificates_and_keys_are_read_and_held_against_each_other(doctor: Doctor) -> None:
    authority = Authority(doctor.directory)
    one, other = authority.issue("one"), authority.issue("other")
    other.key.chmod(0o600)
    given = fleet()
    tls = {"certificate": one.certificate.name, "key": other.key.name}
    given["listeners"]["l"]["tls"] = {"certificates": [tls], "client_ca": "nowhere.crt"}
    rows = doctor(given)
    assert doctor.code == 3
    assert rows["listeners.l.tls.client_ca"]["state"] == "failed"
    pair = rows["listeners.l.tls.certificates[0].certificate"]
    assert pair["message"] == "the certificate and the key do not belong together"
    tls["key"] = one.key.name
    del given["listeners"]["l"]["tls"]["client_ca"]
    one.key.chmod(0o644)
    rows = doctor(given)
    assert doctor.code == 0
    assert f"chmod 600 {one.key}" in rows["listeners.l.tls.certificates[0].key"]["todo"]
    assert rows["files"]["message"] == "1 can be used"


# ── Sources and serve ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("pages", "words"),
    [
        ({}, "status 404"),
        ({"/metrics": "<html>"}, "an HTML page"),
        ({"/metrics": "up 1\n"}, "no metric of vLLM"),
    ],
)
def test_a_source_that_gives_nothing_is_4_with_the_reason(pages: Fleet, words: str, doctor: Doctor) -> None:
    with server(Answers(pages)) as port:
        row = doctor(fleet(port))["pools.p.telemetry vllm"]
    assert (doctor.code, row["state"]) == (4, "failed")
    assert words in row["message"]


def test_sources_that_hang_are_waited_for_together_and_not_for_long(doctor: Doctor) -> None:
    answers = Answers({}, hangs=True)
    with server(answers) as port:
        given = fleet(port)
        pool = given["pools"]["p"]
        pool["telemetry"]["sources"][0]["url"] += "/{name}"
        pool["replicas"] = [{"name": f"r{n}", "address": f"127.0.0.1:{n + 1}"} for n in range(40)]
        began = time.monotonic()
        row = doctor(given)["pools.p.telemetry vllm"]
        took = time.monotonic() - began
    assert len(set(answers.asked)) == 40
    assert took < 40, "one after the other they would take 80 s"
    assert doctor.code == 4
    assert row["message"].startswith("0 of 40 give signals")
    assert "no whole answer within 2 s" in row["message"]


def test_a_page_that_many_replicas_share_is_asked_for_once(doctor: Doctor) -> None:
    answers = Answers({"/metrics": PAGE})
    with server(answers) as port:
        given = fleet(port)
        given["pools"]["p"]["replicas"] = [{"name": f"r{n}", "address": f"127.0.0.1:{n + 1}"} for n in range(5)]
        assert doctor(given)["pools.p.telemetry vllm"]["message"] == "5 of 5 give signals"
    assert answers.asked == ["/metrics"]


def status(version: str = __version__, *, ready: bool = True) -> dict[str, str]:
    told = {"version": version, "ready": ready, "waiting": None if ready else "no fleet yet"}
    return {"/healthz": "{}", "/api/v1/status": json.dumps(told)}


@pytest.mark.parametrize(
    ("pages", "code", "state", "words"),
    [
        (status(), 0, "ok", f"lbctl {__version__} answers"),
        (status("0.0.1"), 0, "warn", f"lbctl 0.0.1 runs there, this is {__version__}"),
        (status(ready=False), 0, "warn", "not ready: no fleet yet"),
        ({"/healthz": "", "/api/v1/status": "<html>"}, 4, "failed", "is not an lbctl serve"),
    ],
)
def test_a_running_serve_says_which_lbctl_it_is(
    pages: dict[str, str], code: int, state: str, words: str, doctor: Doctor
) -> None:
    with server(Answers(pages)) as port:
        url = f"http://127.0.0.1:{port}"
        row = doctor(None, "--server", url)[f"serve {url}"]
    assert (doctor.code, row["state"]) == (code, state)
    assert words in row["message"]


def test_a_serve_that_hangs_is_given_up(doctor: Doctor) -> None:
    with server(Answers({}, hangs=True)) as port:
        url = f"http://127.0.0.1:{port}"
        began = time.monotonic()
        row = doctor(None, "--server", url)[f"serve {url}"]
    assert time.monotonic() - began < 30
    assert (doctor.code, row["state"], row["message"]) == (4, "failed", "no answer within 2 s")


def test_no_serve_is_no_failure_where_nobody_asked_for_one(doctor: Doctor) -> None:
    control = {"api": {"bind": f"127.0.0.1:{free_port()}"}, "xds": {"bind": f"127.0.0.1:{free_port()}"}}
    rows = doctor(fleet(control=control))
    row = rows[f"serve http://{control['api']['bind']}"]
    assert (doctor.code, row["state"]) == (0, "skipped")
    assert rows[f"control.xds.bind {control['xds']['bind']}"]["message"] == "free"


def test_a_token_file_that_is_not_there_is_said(doctor: Doctor) -> None:
    with server(Answers(status())) as port:
        url = f"http://127.0.0.1:{port}"
        row = doctor(None, "--server", url, "--token-file", "/nowhere/token")[f"serve {url}"]
    assert (doctor.code, row["state"]) == (4, "failed")
    assert "/nowhere/token cannot be read" in row["message"]


def test_an_agent_check_at_ports_that_the_machine_lends_is_a_warning() -> None:
    low, _ = map(int, ports._RANGE.read_text().split())

    def judged(port: int) -> tuple[str, str]:
        found = ports.port(ports.BoundAddress("proxies.ha.agent_check.bind", Address("127.0.0.1", port), ports.SERVE))
        return found.state, found.todo

    assert judged(free_port()) == ("warn", f"choose ports below {low}: it needs one for each replica, counting up")
    below = next(port for port in range(low - 1, 1024, -1) if not bind_error(Address("127.0.0.1", port)))
    assert judged(below)[0] == "ok"


# ── Kubernetes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def kubernetes(server: ApiServer | None, directory: Path, **keys: Any) -> Fleet:
    """A fleet with a service of this API server."""
    if server is not None:
        server.kubeconfig(directory / "kubeconfig")
    section = {"namespace": "ml", "service": "vllm", "kubeconfig": "kubeconfig", **keys}
    return fleet() | {"pools": {"p": {"discovery": {"kubernetes": section}}}}


def test_an_api_server_that_permits_what_discovery_needs_is_right(doctor: Doctor, tmp_path: Path) -> None:
    with serving_api() as server:
        rows = doctor(kubernetes(server, tmp_path, gpu_from={"node_label": "gpu"}))
        row = rows["pools.p.discovery.kubernetes ml/vllm"]
        assert (row["state"], row["message"]) == ("ok", "the API server answers and permits list and watch")
        assert not server.asked("GET")


def test_what_an_account_may_not_do_is_named(doctor: Doctor, tmp_path: Path) -> None:
    with serving_api() as server:
        server.forbidden = {"nodes"}
        rows = doctor(kubernetes(server, tmp_path, gpu_from={"node_label": "gpu"}))
        assert rows["pools.p.discovery.kubernetes ml/vllm"]["message"] == "the account may not list nodes, watch nodes"
        assert doctor.code == 3


def test_an_api_server_that_is_away_or_refuses_the_token_is_4(doctor: Doctor, tmp_path: Path) -> None:
    with serving_api() as server:
        server.tokens = {"another"}
        row = doctor(kubernetes(server, tmp_path))["pools.p.discovery.kubernetes ml/vllm"]
        assert (doctor.code, row["message"]) == (4, "401 Unauthorized: Unauthorized")
        server.away()
        row = doctor(kubernetes(server, tmp_path))["pools.p.discovery.kubernetes ml/vllm"]
        assert (doctor.code, row["message"]) == (4, f"{server.url}: Connection refused")


# ── The picker ───────────────────────────────────────────────────────────────────────────────────────────────────────

OWN = {"version": __version__, "ready": True, "dry_run": False}


def picked(port: int) -> Fleet:
    """A fleet whose picker has HTTP at this port."""
    given = fleet(control={"picker": {"bind": f"127.0.0.1:{port - 1}"}})
    given["pools"]["p"]["balance"] = {"algorithm": "pick"}
    return given


def reported(port: int, *, running: bool = True, **more: Any) -> Answers:
    """A serve that says this of its picker."""
    row = {"listens": f"127.0.0.1:{port - 1}", "running": running, "reason": None if running else "it is tired"}
    row["since"] = "2026-11-27T10:00:00Z" if running else None
    return Answers({"/api/v1/status": json.dumps({**OWN, "picker": row, **more})})


def test_a_picker_that_answers_is_right_where_serve_knows_it(doctor: Doctor) -> None:
    with server(Answers({"/health": "ok\n"})) as port:
        what = f"picker 127.0.0.1:{port - 1}"
        row = doctor(picked(port))[what]
        assert row["state"] == "warn"
        assert "it may be the picker of another fleet" in row["message"]
        with server(reported(port)) as api:
            row = doctor(None, "--server", f"http://127.0.0.1:{api}")[what]
            assert (doctor.code, row["state"], row["message"]) == (0, "ok", "answers")


def test_a_picker_that_serve_says_runs_may_be_on_another_machine(doctor: Doctor) -> None:
    port = free_port()
    with server(reported(port)) as api:
        row = doctor(picked(port), "--server", f"http://127.0.0.1:{api}")[f"picker 127.0.0.1:{port - 1}"]
    message = f"serve says that it runs, but 127.0.0.1:{port}: connection refused"
    assert (doctor.code, row["state"], row["message"]) == (0, "warn", message)
    assert "leads to another machine" in row["todo"]


def test_why_serve_has_no_picker_is_said(doctor: Doctor) -> None:
    port = free_port()
    what = f"picker 127.0.0.1:{port - 1}"
    with server(reported(port, running=False)) as api:
        row = doctor(picked(port), "--server", f"http://127.0.0.1:{api}")[what]
    assert (doctor.code, row["state"], row["message"]) == (4, "failed", "it does not run: it is tired")
    with server(reported(port, running=False, dry_run=True)) as api:
        assert doctor(picked(port), "--server", f"http://127.0.0.1:{api}")[what]["state"] == "skipped"
    with server(Answers({"/api/v1/status": json.dumps(OWN)})) as api:
        row = doctor(picked(port), "--server", f"http://127.0.0.1:{api}")[what]
    assert (doctor.code, row["state"]) == (0, "warn")
    assert "it does not serve these files" in row["message"]


def test_before_serve_is_started_there_is_no_picker_and_nothing_is_wrong(doctor: Doctor) -> None:
    port = free_port()
    row = doctor(picked(port))[f"picker 127.0.0.1:{port - 1}"]
    assert (doctor.code, row["state"]) == (0, "skipped")
    assert not any(what.startswith("picker") for what in doctor(fleet()))


def test_what_is_no_picker_and_what_hangs_are_named(doctor: Doctor) -> None:
    for answers, message in (
        (Answers({}), "what answers at 127.0.0.1:PORT is no picker"),
        (Answers({}, hangs=True), "nothing answers at 127.0.0.1:PORT within 2 s"),
    ):
        with server(answers) as port, server(reported(port)) as api:
            row = doctor(picked(port), "--server", f"http://127.0.0.1:{api}")[f"picker 127.0.0.1:{port - 1}"]
        said = f"serve says that it runs, but {message.replace('PORT', str(port))}"
        assert (row["state"], row["message"]) == ("warn", said)
