"""The pages about installation: the commands that need root, with their paths below a temporary directory.

Small programs replace commands that need root or systemd: `systemctl` starts and stops `lbctl serve` by its unit,
`python3 -m venv` and `pip` copy the kit to the place where the wheel has it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from tests.docs.pages import blocks
from tests.support.paths import ROOT
from tests.support.processes.ports import free_port
from tests.support.tools import require_tool

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
_PAGES = (
    "install-in-production",
    "install-nginx-and-haproxy",
    "gpu-agent",
    "run-in-containers",
    "monitor-and-alert",
    "upgrade-and-back-up",
    "uninstall",
)
_BLOCKS = [block for page in _PAGES for block in blocks(f"docs/how-to/{page}.md")]
_MOVED = re.compile(r"(?<![\w.$/}])/(opt|etc|usr|var|run|root)/")
_ADDRESSES = ("127.0.0.1:9001", "127.0.0.1:9002")
"""The addresses of the replicas on the page."""
_SET_UP = "test_documented_setup_works"
_PYTHON3 = """\
#!/bin/sh
case "$1 $2" in
"-m venv")
  mkdir -p "$3/bin" "$3/share/lbctl"
  cp -r {repository}/docs/share/. "$3/share"
  cp -r {repository}/deploy {repository}/contrib "$3/share/lbctl"
  printf '#!/bin/sh\\nexit 0\\n' > "$3/bin/pip" && printf '#!/bin/sh\\nexec {python} -m lbctl "$@"\\n' > "$3/bin/lbctl"
  chmod +x "$3/bin/pip" "$3/bin/lbctl" ;;
*) exec {python} "$@" ;;
esac
"""
_INSTALL = """\
#!/bin/bash
words=()
while [ $# -gt 0 ]; do case $1 in -o | -g) shift 2 ;; *) words+=("$1"); shift ;; esac; done
exec /usr/bin/install "${words[@]}"
"""
_SUDO = """\
#!/bin/sh
[ "$1" = -u ] && shift 2
exec "$@"
"""


class Machine:
    """A root directory with the programs and files that the pages need."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.api = free_port()
        self.calls = root / "systemctl.log"
        self.output_of_setup = ""
        self._bin = root / "bin"
        self._bin.mkdir()
        python = shlex.quote(sys.executable)
        for name, text in {
            "install": _INSTALL,
            "lbctl": f'#!/bin/sh\nexec {root}/opt/lbctl/bin/lbctl "$@"\n',
            "python3": _PYTHON3.format(repository=ROOT, python=python),
            "sudo": _SUDO,
            "systemctl": f'#!/bin/sh\nexec {python} {Path(__file__).with_name("systemctl.py")} {root} "$@"\n',
            "sysctl": "#!/bin/sh\n",
            "systemd-sysusers": "#!/bin/sh\n",
            "systemd-tmpfiles": f"#!/bin/sh\nmkdir -p {root}/etc/lbctl/fleet\n",
            "chown": "#!/bin/sh\n",
            "curl": "#!/bin/sh\necho LIVE\n",
        }.items():
            (self._bin / name).write_text(text)
            (self._bin / name).chmod(0o755)
        for name in ("root", "etc/systemd/system", "etc/profile.d"):
            (root / name).mkdir(parents=True)
        (fleet,) = [block.text for block in _BLOCKS if block.words.get("file") == "fleet.yaml"]
        self.replicas = [socket.create_server(("127.0.0.1", 0)) for _ in _ADDRESSES]
        """Replicas that can be connected to, without which `lbctl status --check` fails."""
        for address, replica in zip(_ADDRESSES, self.replicas, strict=True):
            assert address in fleet
            fleet = fleet.replace(address, f"127.0.0.1:{replica.getsockname()[1]}")
        (root / "fleet.yaml").write_text(self.moved(fleet))

    def moved(self, text: str) -> str:
        """Return the text with its paths below the root directory."""
        return _MOVED.sub(rf"{self.root}/\1/", text)

    def run_blocks_of(self, test: str) -> str:
        """Run the blocks that name this test, in their order, and return their output."""
        place = f"tests/deploy/test_install_page.py::{test}"
        texts = [block.text for block in _BLOCKS if block.words.get("by") == place]
        assert texts
        return self.run("\n".join(texts))

    def run(self, commands: str) -> str:
        """Run the commands in one shell, which must succeed, and return their output."""
        process = subprocess.run(
            ["bash", "-euc", self.moved(commands)], cwd=self.root, env=self._environment,
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=240, check=False,
        )  # fmt: skip
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout

    def close(self) -> None:
        """Stop `lbctl serve` and the replicas."""
        self.run("systemctl stop lbctl-serve")
        for replica in self.replicas:
            replica.close()

    def files(self, below: str = "") -> set[str]:
        """Return the relative paths of the files and links below a directory of the machine."""
        top = self.root / below
        return {str(path.relative_to(top)) for path in top.rglob("*") if path.is_file() or path.is_symlink()}

    @property
    def _environment(self) -> dict[str, str]:
        bound = {"LBCTL_SERVE_API_BIND": f"127.0.0.1:{self.api}", "LBCTL_SERVE_XDS_BIND": f"127.0.0.1:{free_port()}"}
        path = f"{self._bin}:{os.environ['PATH']}"
        server = f"http://127.0.0.1:{self.api}"
        return os.environ | bound | {"PATH": path, "PYTHONPATH": str(ROOT), "LBCTL_SERVER": server}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    require_tool("promtool")
    machine = Machine(tmp_path)
    yield machine
    machine.close()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine that is set up as documented."""
    require_tool("promtool")
    machine = Machine(tmp_path_factory.mktemp("machine"))
    machine.output_of_setup = machine.run_blocks_of(_SET_UP)
    yield machine
    machine.close()


def test_documented_setup_works(installed: Machine) -> None:
    machine = installed
    assert "files      " in machine.output_of_setup
    assert "SUCCESS" in machine.output_of_setup
    kit = ROOT / "deploy" / "systemd" / "system"
    units = {str(path.relative_to(kit)) for path in kit.rglob("*") if path.is_file()}
    assert machine.files("etc/systemd/system") == units | {"lbctl-envoy@.service"}
    for name in units:
        assert (machine.root / "etc/systemd/system" / name).read_bytes() == (kit / name).read_bytes()
    token = machine.root / "etc/lbctl/api-token"
    assert [line.split(":")[:2] for line in token.read_text().split()] == [["alice", "operate"], ["prometheus", "read"]]
    assert token.stat().st_mode & 0o777 == 0o600
    assert (machine.root / "usr/share/bash-completion/completions/lbctl").read_text() == (
        ROOT / "docs/share/bash-completion/completions/lbctl"
    ).read_text()
    alice = token.read_text().split()[0].rpartition(":")[2]
    assert drain(machine, alice) == 200
    assert drain(machine, token.read_text().split()[1].rpartition(":")[2]) == 403


def test_documented_backup_is_restored(installed: Machine) -> None:
    machine = installed
    token = (machine.root / "etc/lbctl/api-token").read_text().split()[0].rpartition(":")[2]
    assert drain(machine, token) == 200
    texts = [block.text for block in _BLOCKS if "test_documented_backup_is_restored" in block.words.get("by", "")]
    backup, restore = texts
    machine.run(backup)
    shutil.rmtree(machine.root / "var/lib/lbctl", ignore_errors=True)
    machine.run("systemctl stop lbctl-serve; mkdir -p /var/lib/lbctl")
    machine.run(restore)
    assert "by operator" not in machine.run("lbctl status")
    assert "drain" in machine.run("lbctl status")
    assert "alice" in machine.run("lbctl audit show")


def test_documented_upgrade_and_rollback_work(installed: Machine) -> None:
    machine = installed
    machine.run_blocks_of("test_documented_upgrade_and_rollback_work")
    assert str((machine.root / "opt/lbctl").readlink()) == "lbctl-1.0.0"
    calls = machine.calls.read_text().splitlines()
    assert calls[-5:] == [
        "restart lbctl-serve", "start lbctl-envoy@2", "restart lbctl-envoy", "stop lbctl-envoy@2",
        "restart lbctl-serve",
    ]  # fmt: skip


def test_documented_drain_limit_replaces_the_one_of_the_unit(installed: Machine) -> None:
    machine = installed
    machine.run_blocks_of("test_documented_drain_limit_replaces_the_one_of_the_unit")
    (stop,) = re.findall(r"^ExecStop=.+ 300$", (ROOT / "deploy/systemd/system/lbctl-envoy.service").read_text(), re.M)
    for unit in ("lbctl-envoy", "lbctl-envoy@"):
        lines = (machine.root / f"etc/systemd/system/{unit}.service.d/stop-limit.conf").read_text().splitlines()
        assert lines == ["[Service]", "ExecStop=", machine.moved(stop.replace(" 300", " 1800")), "TimeoutStopSec=1830s"]


def test_documented_removal_leaves_no_files(machine: Machine) -> None:
    before = machine.files()
    machine.run_blocks_of(_SET_UP)
    assert machine.files() > before
    machine.run_blocks_of("test_documented_removal_leaves_no_files")
    gone = {"systemctl.log", "serve.log"}
    credentials = {name for name in machine.files() if name.startswith("run/credentials/")}
    assert machine.files() - before - gone - credentials == set()


def test_documented_secrets_are_created(machine: Machine) -> None:
    machine.run("sudo python3 -m venv /opt/lbctl")
    (machine.root / "deploy/docker").mkdir(parents=True)
    key = machine.run_blocks_of("test_documented_secrets_are_created").strip()
    secrets = machine.root / "deploy/docker/secrets"
    assert (secrets / "api-keys").read_text() == f"{key}: acme\n"
    assert (secrets / "api-token").read_text().startswith("operator:operate:")
    assert {path.stat().st_mode & 0o777 for path in secrets.iterdir()} == {0o600}


def drain(machine: Machine, token: str) -> int:
    """Return the status of a request to drain a replica with this token."""
    with requests.Session() as session:
        session.trust_env = False
        return session.post(
            f"http://127.0.0.1:{machine.api}/api/v1/overrides",
            json={"kind": "drain", "pool": "llama", "replica": "a100-0"},
            headers={"authorization": f"Bearer {token}"},
            timeout=30,
        ).status_code
