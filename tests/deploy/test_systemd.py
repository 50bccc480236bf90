"""deploy/systemd: systemd accepts the units, lbctl accepts their command lines, and the proxies start by them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from string import Template

import pytest
import requests
import yaml

from lbctl.agent.settings import AgentSettings
from lbctl.base.quantities import parse_duration
from lbctl.cli import run
from tests.docs.pages import blocks
from tests.support.command_lines import accept
from tests.support.fleets import write_fleet
from tests.support.paths import ROOT
from tests.support.processes.binaries import require
from tests.support.processes.control import ControlPlane, controlling
from tests.support.processes.fleet import fleet_of, pool_of
from tests.support.processes.ports import free_port, listens
from tests.support.processes.replicas import replicas
from tests.support.processes.waiting import eventually
from tests.support.tools import require_tool

KIT = ROOT / "deploy" / "systemd"
UNITS = ("lbctl-serve", "lbctl-envoy", "lbctl-envoy@2", "lbctl-agent@vllm", "nginx", "haproxy")
AGENT, ENGINE = KIT / "system/lbctl-agent@.service", KIT / "system/vllm.service.d/lbctl-agent.conf"
_PROGRAMS = (
    "opt/lbctl/bin/lbctl",
    "opt/lbctl/bin/envoy",
    "opt/lbctl/bin/python3",
    "bin/kill",
    "bin/bash",
    "usr/sbin/nginx",
    "usr/sbin/haproxy",
)
_MAX_EXPOSURE = 25
"""Upper bound of the exposure by `systemd-analyze security`, in tenths. A level of 2.5 is rated OK."""
_FLEET = """\
version: 1
listeners: {{gateway: {{bind: "127.0.0.1:{port}"}}}}
routes: {{hello: {{match: {{path: /hello}}, respond: {{status: 200, body: hello}}}}}}
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root directory with the units of the distribution and of the kit, and with a stub of every program."""
    root = tmp_path_factory.mktemp("root")
    for kind in ("nginx", "haproxy"):
        require(kind)
    shutil.copytree("/lib/systemd/system", root / "usr/lib/systemd/system", symlinks=True)
    shutil.copytree(KIT / "system", root / "etc/systemd/system")
    shutil.copy(KIT / "system/lbctl-envoy.service", root / "etc/systemd/system/lbctl-envoy@.service")
    (root / "etc/systemd/system/vllm.service").write_text("[Service]\nExecStart=/opt/lbctl/bin/python3\n")
    for name in _PROGRAMS:
        program = root / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    return root


def analyze(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [require_tool("systemd-analyze"), arguments[0], f"--root={root}", *arguments[1:]]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("unit", [*UNITS, "vllm"])
def test_systemd_accepts_a_unit_with_its_drop_ins(installed: Path, unit: str) -> None:
    verdict = analyze(installed, "verify", "--man=no", f"{unit}.service")
    assert (verdict.returncode, verdict.stderr) == (0, "")


@pytest.mark.parametrize("unit", UNITS)
def test_unit_is_hardened(installed: Path, unit: str) -> None:
    verdict = analyze(installed, "security", "--offline=true", f"--threshold={_MAX_EXPOSURE}", f"{unit}.service")
    assert verdict.returncode == 0, verdict.stdout + verdict.stderr


def test_no_service_runs_as_root() -> None:
    for path in (*KIT.glob("system/lbctl-*.service"), *KIT.glob("system/*.d/lbctl.conf")):
        assert [*values(path, "User"), *values(path, "Group")] == ["lbctl", "lbctl"], path


@pytest.mark.parametrize("unit", ["lbctl-serve", "lbctl-envoy"])
def test_lbctl_accepts_the_command_lines(unit: str) -> None:
    path = KIT / "system" / f"{unit}.service"
    lines = [shlex.split(line) for key in ("ExecStart", "ExecStartPre") for line in values(path, key)]
    commands = [words[1:] for words in lines if words[0] == "/opt/lbctl/bin/lbctl"]
    assert commands
    for words in commands:
        accept(words)


def test_lbctl_accepts_the_command_lines_of_an_agent() -> None:
    page = [line for block in blocks("docs/how-to/gpu-agent.md") for line in block.text.splitlines()]
    documented = [line.removeprefix("ARGS=") for line in page if line.startswith("ARGS=")]
    assert documented
    (start,), (drain,) = values(AGENT, "ExecStart"), values(ENGINE, "ExecStop")
    for line in [*(start.replace("$ARGS", arguments) for arguments in documented), drain.removeprefix("-+")]:
        program, *words = shlex.split(line)
        assert program == "/opt/lbctl/bin/lbctl"
        accept(words)


def test_units_of_agent_and_engine_wait_for_the_drain() -> None:
    (deadline,) = [field.default for field in fields(AgentSettings) if field.name == "drain_deadline"]
    (wait,) = re.findall(r"--wait (\S+)", ENGINE.read_text(encoding="utf-8"))
    for path, drain in ((AGENT, deadline), (ENGINE, parse_duration(wait) / 1000)):
        (limit,) = values(path, "TimeoutStopSec")
        assert parse_duration(limit) / 1000 > drain
    (directory,) = values(AGENT, "RuntimeDirectory")
    assert f"--state /run/{directory.replace('%i', '%N')}\n" in ENGINE.read_text(encoding="utf-8")


def test_systemd_creates_the_user_of_the_units(tmp_path: Path) -> None:
    shutil.copytree(KIT / "sysusers.d", tmp_path / "etc" / "sysusers.d")
    command = [require_tool("systemd-sysusers"), f"--root={tmp_path}"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 0, process.stderr
    assert "\nlbctl:" in f"\n{(tmp_path / 'etc/passwd').read_text()}"
    rows = [line.split() for line in (KIT / "tmpfiles.d" / "lbctl.conf").read_text().splitlines()]
    assert {row[4] for row in rows} == {"lbctl"}


def test_kernel_knows_the_settings_of_the_kit() -> None:
    assert [*kernel_settings()]
    assert [key for key, _ in kernel_settings() if not kernel_setting(key).exists()] == []


@pytest.mark.e2e
def test_nginx_logs_to_a_socket_on_standard_output(tmp_path: Path) -> None:
    """The command is that of the drop-in. The log also works after a reload."""
    port = free_port()
    (tmp_path / "fleet.yaml").write_text(_FLEET.format(port=port))
    assert run(["render", "-t", "nginx", "-d", str(tmp_path), str(tmp_path / "fleet.yaml")]) == 0
    command = nginx_command()
    for installed, own in (
        ("/usr/sbin/nginx", f"{require('nginx')} -p {tmp_path}"),
        ("/var/lib/lbctl/nginx", str(tmp_path)),
        ("/run/lbctl-nginx", str(tmp_path)),
    ):
        command = command.replace(installed, own)
    ours, its = socket.socketpair()
    ours.settimeout(30)
    with ours, its, ended(subprocess.Popen(shlex.split(command), stdin=subprocess.DEVNULL, stdout=its)) as nginx:
        eventually(lambda: listens(nginx.pid, port))
        for path in ("/hello", "/other"):
            requests.get(f"http://127.0.0.1:{port}{path}", timeout=30)
            assert f'"path":"{path}"' in ours.recv(65536).decode()
            before = workers(nginx.pid)
            nginx.send_signal(signal.SIGHUP)
            eventually(lambda before=before: workers(nginx.pid) - before and not workers(nginx.pid) & before)


@pytest.mark.e2e
def test_nginx_with_a_config_path_starts_under_systemd(tmp_path: Path) -> None:
    """With the default log for a `config` below /etc nginx starts, without a `config` it does not."""
    fleet, port, texts = tmp_path / "fleet.yaml", free_port(), []
    for proxies in ("", "proxies: {edge: {kind: nginx, config: /etc/nginx/nginx.conf}}"):
        fleet.write_text(_FLEET.format(port=port) + proxies)
        assert run(["render", "-t", "nginx", "-d", str(tmp_path), str(fleet)]) == 0
        texts.append((tmp_path / "nginx.conf").read_text())
    unplaced, placed = (re.findall(r"access_log (\S+) ", text)[0] for text in texts)
    assert (unplaced, placed) == ("/dev/stdout", "/var/log/nginx/access.log")
    command = [require("nginx"), "-p", tmp_path, "-c", "nginx.conf", "-e", "stderr"]
    command += ["-g", f"daemon off; pid {tmp_path}/nginx.pid;"]
    ours, its = socket.socketpair()
    with ours, its:
        (tmp_path / "nginx.conf").write_text(texts[0])
        refused = subprocess.run(command, stdout=its, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        assert refused.returncode == 1
        assert 'open() "/dev/stdout" failed' in refused.stderr
        (tmp_path / "nginx.conf").write_text(texts[0].replace(unplaced, f"{tmp_path}/{Path(placed).name}"))
        with ended(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=its)) as nginx:
            eventually(lambda: listens(nginx.pid, port))


@pytest.mark.e2e
def test_serve_drives_proxies_of_the_documented_setup(tmp_path: Path) -> None:
    """The proxies start with the commands of their units and the files of `serve`, and apply a change."""
    (entries,) = [
        block.text for block in blocks("docs/how-to/install-nginx-and-haproxy.md") if "edge-haproxy" in block.text
    ]
    for name in ("state/nginx", "state/haproxy", "run"):
        (tmp_path / name).mkdir(parents=True)
    with replicas("a", "b") as (a, b), ExitStack() as stack:
        listeners = {f"edge-{kind}": {"bind": f"127.0.0.1:{free_port()}"} for kind in ("nginx", "haproxy")}
        proxies = yaml.safe_load(moved(entries, tmp_path))["proxies"]
        fleet = fleet_of(pool_of([a]), listeners=listeners)
        fleet["proxies"] = {name: {**entry, "listeners": [name]} for name, entry in proxies.items()}
        control = stack.enter_context(controlling(fleet))
        for command, written in ((nginx_command(), "nginx/nginx.conf"), (haproxy_command(), "haproxy/haproxy.cfg")):
            eventually((tmp_path / "state" / written).exists)
            words = shlex.split(moved(command, tmp_path))
            stack.enter_context(ended(subprocess.Popen(words, stdin=subprocess.DEVNULL)))
        eventually(lambda: states(control) == ["SYNCED", "SYNCED"])
        fleet["pools"]["pool"] = pool_of([b])
        control.write(fleet)
        for listener in listeners.values():
            eventually(
                lambda url=f"http://{listener['bind']}/": "b" in requests.get(url, timeout=30).headers["x-replica"]
            )
        eventually(lambda: states(control) == ["SYNCED", "SYNCED"])


@pytest.mark.e2e
def test_stream_survives_a_restart_of_the_envoy_unit() -> None:
    """A second Envoy by the same unit shares the port; the first one ends when its stream has ended."""
    with replicas("a") as members, controlling(fleet := fleet_of(pool_of(members))) as control, ExitStack() as stack:
        place = control.directory
        port = int(fleet["listeners"]["gateway"]["bind"].rpartition(":")[2])
        first, second = EnvoyUnit("lbctl-envoy", place, control), EnvoyUnit("lbctl-envoy@2", place, control)
        process = stack.enter_context(first.started(port))
        stream = requests.get(f"http://127.0.0.1:{port}/sse?n=100&gap=0.1", stream=True, timeout=30)
        events = stream.iter_lines()
        assert b'"n": 0' in next(events)
        stack.enter_context(second.started(port))
        began = time.monotonic()
        stopping = stack.enter_context(ended(subprocess.Popen(first.command("ExecStop"))))
        resets = 0
        while stopping.poll() is None:
            try:
                status = requests.get(f"http://127.0.0.1:{port}/", timeout=30).status_code
                assert status == 200, "the other Envoy answers"
            except requests.ConnectionError:
                resets += 1
        assert resets <= max_resets()
        process.terminate()
        process.wait(30)
        assert stopping.returncode == 0
        assert time.monotonic() - began > 1, "it has waited"
        assert len([line for line in events if line]) == 99, "the stream is whole"
        assert requests.get(f"http://127.0.0.1:{port}/", timeout=30).status_code == 200


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["nginx", "haproxy"])
def test_stop_of_a_unit_waits_for_streams(kind: str, tmp_path: Path) -> None:
    drop_in = KIT / f"system/{kind}.service.d/lbctl.conf"
    assert [*values(drop_in, "KillMode")] == ["mixed"]
    for name in (f"state/{kind}", "run"):
        (tmp_path / name).mkdir(parents=True)
    with replicas("a") as members, ExitStack() as stack:
        fleet = fleet_of(pool_of(members))
        port = int(fleet["listeners"]["gateway"]["bind"].rpartition(":")[2])
        source = write_fleet(tmp_path, fleet)
        assert run(["render", "-t", kind, "-d", str(tmp_path / "state" / kind), str(source)]) == 0
        command = nginx_command() if kind == "nginx" else haproxy_command()
        words = shlex.split(moved(command, tmp_path))
        notices = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        notices.bind(str(tmp_path / "notify"))
        notices.settimeout(30)
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        proxy = stack.enter_context(ended(subprocess.Popen(words, stdin=subprocess.DEVNULL, env=environment)))
        eventually(lambda: listens(proxy.pid, port) or any(listens(int(pid), port) for pid in children(proxy.pid)))
        if kind == "haproxy":  # its unit has Type=notify; a master that is not ready loses a signal
            eventually(lambda: b"READY=1" in notices.recv(1024))
        with requests.Session() as session:
            events = session.get(f"http://127.0.0.1:{port}/sse?n=20&gap=0.1", stream=True, timeout=30).iter_lines()
            next(events)
            (signal_name,) = values(drop_in, "KillSignal")
            proxy.send_signal(signal.Signals[signal_name])
            assert len([line for line in events if line]) == 19, "the stream is whole"
        proxy.wait(30)


def max_resets() -> int:
    """Return how many connections of a client that opens one at a time may be reset while an Envoy ends.

    Without the kernel's setting of the kit, a worker of the Envoy that closes its socket resets the connections that
    wait there. Envoy has a worker per CPU.
    """
    if all(kernel_setting(key).read_text().strip() == value for key, value in kernel_settings()):
        return 0
    return os.cpu_count() or 1


def kernel_settings() -> Iterator[tuple[str, str]]:
    """Yield the kernel's settings of the kit, each with its value."""
    for line in (KIT / "sysctl.d" / "lbctl.conf").read_text().splitlines():
        if not line.startswith("#"):
            key, _, value = line.partition(" = ")
            yield key, value


def kernel_setting(key: str) -> Path:
    """Return the file of a kernel's setting."""
    return Path("/proc/sys", key.replace(".", "/"))


class EnvoyUnit:
    """The unit of the Envoy under a name, with the paths of an installed machine below a directory."""

    def __init__(self, name: str, place: Path, control: ControlPlane) -> None:
        self.name = name
        self.run = place / "run" / name.replace("@", "")
        self._moved = (
            ("%p%i", name.replace("@", "")),
            ("%H", "edge"),
            ("/opt/lbctl/bin/lbctl", f"{sys.executable} -m lbctl"),
            ("/opt/lbctl/bin/python3", sys.executable),
            ("/opt/lbctl/bin/envoy", str(require("envoy"))),
            ("/opt/lbctl/share/lbctl/deploy", str(ROOT / "deploy")),
            ("unix:/var/lib/lbctl/xds.sock", control.socket),
            ("/run/", f"{place}/run/"),
        )

    def command(self, key: str) -> list[str]:
        (text,) = values(KIT / "system/lbctl-envoy.service", key)
        for installed, own in self._moved:
            text = text.replace(installed, own)
        return shlex.split(text)

    @contextmanager
    def started(self, port: int) -> Iterator[subprocess.Popen[bytes]]:
        self.run.mkdir(parents=True)
        subprocess.run(self.command("ExecStartPre"), check=True, timeout=60, cwd=ROOT)
        with ended(subprocess.Popen(self.command("ExecStart"), stdin=subprocess.DEVNULL)) as process:
            eventually(lambda: listens(process.pid, port))
            yield process


def children(pid: int) -> list[str]:
    """Return the process ids of the children of a process."""
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def moved(text: str, place: Path) -> str:
    """Return the text with the paths of an installed machine below `place`."""
    for installed, own in (
        ("/usr/sbin/nginx", str(require("nginx"))),
        ("/usr/sbin/haproxy", str(require("haproxy"))),
        ("/var/lib/lbctl", f"{place}/state"),
        ("/run/lbctl-nginx", f"{place}/run"),
        ("/run/lbctl-haproxy", f"{place}/run"),
    ):
        text = text.replace(installed, own)
    return text


def nginx_command() -> str:
    """Return the command by which the drop-in starts nginx."""
    (command,) = [line for line in values(KIT / "system/nginx.service.d/lbctl.conf", "ExecStart") if line]
    return command


def haproxy_command() -> str:
    """Return the command by which the unit of the distribution starts HAProxy, with the variables of the drop-in."""
    assignments = " ".join(values(KIT / "system/haproxy.service.d/lbctl.conf", "Environment"))
    variables = dict(item.partition("=")[::2] for item in shlex.split(assignments))
    (command,) = values(Path("/lib/systemd/system/haproxy.service"), "ExecStart")
    return Template(command).substitute(variables)


def states(control: ControlPlane) -> list[str]:
    """Return the states of the two proxies."""
    return [control.proxies.get(name, {}).get("state", "") for name in ("edge-nginx", "edge-haproxy")]


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Terminate the process at the end of the block."""
    try:
        yield process
    finally:
        process.terminate()
        process.wait(30)


def workers(master: int) -> set[str]:
    """Return the process ids of the workers of an nginx that do not shut down."""
    children = Path(f"/proc/{master}/task/{master}/children").read_text().split()
    titles: dict[str, bytes] = {}
    for pid in children:
        with suppress(OSError):  # it has ended since the children were listed
            titles[pid] = Path(f"/proc/{pid}/cmdline").read_bytes()
    return {
        pid for pid, title in titles.items() if title.startswith(b"nginx: worker process") and b"shutting" not in title
    }


def values(path: Path, key: str) -> Iterator[str]:
    """Yield the values of a key of a unit file."""
    yield from re.findall(rf"^{key}=(.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
