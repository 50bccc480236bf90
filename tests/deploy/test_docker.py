"""deploy/docker: the image and the composition. Their commands run here without containers."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from lbctl.cli import run
from tests.docs.pages import blocks
from tests.support.command_lines import accept
from tests.support.paths import ROOT
from tests.support.processes.binaries import require
from tests.support.processes.ports import free_port
from tests.support.processes.waiting import eventually
from tests.support.tools import require_tool

KIT = ROOT / "deploy" / "docker"
_PORTS = ("8080", "9001", "9002", "9090", "18080")


def test_composition_is_valid_by_its_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml"]
    process = subprocess.run(command, cwd=KIT, capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


def test_every_container_is_locked_down() -> None:
    for name, service in services().items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not {"privileged", "cap_add", "devices", "pid", "ipc"} & service.keys(), name


def test_mounted_files_exist() -> None:
    composition = yaml.safe_load((KIT / "compose.yaml").read_text(encoding="utf-8"))
    mounts = [mount for service in services().values() for mount in service.get("volumes", ())]
    for source, _, options in (mount.partition(":") for mount in mounts):
        assert (KIT / source).exists() if source.startswith(".") else source in composition["volumes"], source
        assert not source.startswith(".") or options.endswith(":ro")
    assert {name for service in services().values() for name in service.get("secrets", ())} == set(
        composition["secrets"]
    )
    assert {Path(secret["file"]).parent.name for secret in composition["secrets"].values()} == {"secrets"}
    assert "deploy/docker/secrets/" in (ROOT / ".gitignore").read_text()


def test_copied_files_exist_and_are_in_the_build_context() -> None:
    context = re.findall(r"^!(.+)$", (KIT / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    copied = [words[:-1] for words in instructions("COPY") if not words[0].startswith("--from")]
    assert sorted(source for sources in copied for source in sources) == sorted(context)
    assert [source for source in context if not (ROOT / source).exists()] == []


def test_image_runs_as_a_numeric_user_without_package_manager() -> None:
    assert [*instructions("USER")] == [["10001:10001"]]
    assert [*instructions("ADD")] == []
    text = (KIT / "Dockerfile").read_text(encoding="utf-8")
    assert {words[0] for words in instructions("FROM")} == {"${BASE}"}
    assert "apt-get" not in text
    assert "curl" not in text


@pytest.mark.parametrize("source", ["CMD", "HEALTHCHECK", "compose"])
def test_lbctl_accepts_the_command_lines(source: str) -> None:
    if source == "compose":
        words = services()["serve"]["command"]
    elif source == "CMD":
        (words,) = [json.loads(" ".join(line)) for line in instructions("CMD")]
    else:
        ((*_, line),) = [" ".join(line).partition("CMD ") for line in instructions("HEALTHCHECK")]
        entry, *words = json.loads(line)
        assert entry == "lbctl"
    accept(words)


def test_lbctl_accepts_the_documented_agent_commands() -> None:
    (text,) = [block.text for block in blocks("docs/how-to/gpu-agent.md") if "docker run" in block.text]
    start, drain = [shlex.split(line) for line in text.replace("\\\n", " ").splitlines()]
    (volumes,) = [json.loads(" ".join(words)) for words in instructions("VOLUME")]
    assert start[-1] == drain[-1]
    assert start[-1] in volumes
    accept(start[start.index("agent") :])
    accept(drain[drain.index("lbctl") + 1 :])


@pytest.mark.e2e
def test_commands_of_the_composition_work_together(tmp_path: Path) -> None:
    """The commands run unchanged except for paths and ports: two replicas, serve, Envoy, Prometheus."""
    ports = {port: str(free_port()) for port in _PORTS}
    composition = Composition(tmp_path, ports)
    url, api = f"http://127.0.0.1:{ports['8080']}/v1/chat/completions", f"http://127.0.0.1:{ports['18080']}"
    with ExitStack() as stack:
        for name in ("replica-1", "replica-2", "serve", "envoy", "prometheus"):
            stack.enter_context(composition.running(name))
        eventually(lambda: status(url) == 401)
        eventually(lambda: status(url, composition.key) == 200)
        assert run(["status", "--check", "--wait", "1m", "--server", api]) == 0
        eventually(lambda: composition.healthy())
        eventually(lambda: composition.probe("envoy") == 0)
        scraped = f"http://127.0.0.1:{ports['9090']}/api/v1/query?query=lbctl_ready"
        eventually(lambda: has_result(scraped))


class Composition:
    """Runs the commands of `docker compose` as processes of this machine, with their files below `directory`."""

    def __init__(self, directory: Path, ports: Mapping[str, str]) -> None:
        self._directory = directory
        self._ports = ports
        self._paths = {
            "/var/lib/lbctl": f"{directory}/state", "/etc/lbctl/fleet": f"{directory}/fleet",
            "/run/secrets": f"{directory}/secrets", "/tmp/envoy": f"{directory}/envoy",
            "/etc/prometheus": f"{directory}/prometheus", "/prometheus": f"{directory}/data",
            "/replica.py": f"{KIT}/replica.py", "/run/lbctl": f"{directory}/run",
        }  # fmt: skip
        self._copy(KIT / "fleet", "fleet")
        self._copy(ROOT / "contrib" / "prometheus", "prometheus")
        secrets = directory / "secrets"
        secrets.mkdir()
        (directory / "run").mkdir()
        (secrets / "api-token").write_text("operator:operate:a-token\n")
        self.key = "sk-a-key-of-a-client-that-nobody-guesses"
        (secrets / "api-keys").write_text(f"{self.key}: acme\n")
        self._bin = directory / "bin"
        self._bin.mkdir()
        for name, program in self._programs().items():
            (self._bin / name).write_text(f'#!/bin/sh\nexec {program} "$@"\n')
            (self._bin / name).chmod(0o755)

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Run the command of a service."""
        service = services()[name]
        entry = service.get("entrypoint", ["prometheus"] if name == "prometheus" else ["lbctl"])
        log = self._directory / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._here([*entry, *service["command"]]), env=self._environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output,
            )  # fmt: skip
        try:
            yield
            assert process.poll() is None, log.read_text()
        except (AssertionError, requests.RequestException) as error:
            error.add_note(f"{name}: {log.read_text(errors='replace')[-2000:]}")
            raise
        finally:
            process.terminate()
            process.wait(30)

    def healthy(self) -> bool:
        """Return whether the health check of the image succeeds."""
        ((*_, line),) = [" ".join(words).partition("CMD ") for words in instructions("HEALTHCHECK")]
        return self._code(json.loads(line)) == 0

    def probe(self, name: str) -> int:
        """Return the exit code of the health check of a service."""
        return self._code(services()[name]["healthcheck"]["test"][1:])

    def _code(self, command: Sequence[str]) -> int:
        process = subprocess.run(
            self._here(command), env=self._environment, capture_output=True, timeout=60, check=False
        )
        return process.returncode

    @property
    def _environment(self) -> dict[str, str]:
        api = f"127.0.0.1:{self._ports['18080']}"
        return os.environ | {
            "PATH": f"{self._bin}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
            "LBCTL_SERVE_API_BIND": api, "LBCTL_SERVE_XDS_BIND": f"127.0.0.1:{free_port()}",
            "LBCTL_SERVER": f"http://{api}", "LBCTL_FILE_DIRS": f"{self._directory}/secrets",
        }  # fmt: skip

    def _copy(self, source: Path, name: str) -> None:
        target = self._directory / name
        target.mkdir()
        for path in source.iterdir():
            (target / path.name).write_text(*self._here([path.read_text(encoding="utf-8")]))

    def _here(self, texts: Sequence[str]) -> list[str]:
        """Return the texts with the paths and ports of this machine."""
        names = "|".join(map(re.escape, sorted(self._paths, key=len, reverse=True)))
        moved = [
            re.sub(rf"(?<![\w.])({names})(?=[/\s\"'}}]|$)", lambda match: self._paths[match[1]], text) for text in texts
        ]
        return [re.sub(rf"\b({'|'.join(_PORTS)})\b", lambda match: self._ports[match[1]], text) for text in moved]

    @staticmethod
    def _programs() -> dict[str, str]:
        python = shlex.quote(sys.executable)
        envoy, prometheus = shlex.quote(str(require("envoy"))), shlex.quote(require_tool("prometheus"))
        return {"lbctl": f"{python} -m lbctl", "envoy": envoy, "prometheus": prometheus, "python3": python}


def services() -> dict[str, Any]:
    """Return the services of the composition, including shared settings."""
    composition: dict[str, Any] = yaml.safe_load((KIT / "compose.yaml").read_text(encoding="utf-8"))
    result: dict[str, Any] = composition["services"]
    return result


def instructions(name: str) -> Iterator[list[str]]:
    """Yield the arguments of every instruction of this name in the Dockerfile."""
    text = (KIT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    for line in text.splitlines():
        first, *words = line.split()[:1], *line.split()[1:]
        if first == [name]:
            yield words


def status(url: str, key: str = "") -> int:
    """Return the status of a chat request, or 0 if the connection fails."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    with suppress(requests.RequestException), requests.Session() as session:
        session.trust_env = False
        return session.post(url, json={"model": "m"}, headers=headers, timeout=30).status_code
    return 0


def has_result(url: str) -> bool:
    """Return whether Prometheus answers the query with at least one sample; it may not listen yet."""
    with suppress(requests.RequestException), requests.Session() as session:
        session.trust_env = False
        answer = session.get(url, timeout=30)
        return answer.ok and bool(answer.json()["data"]["result"])
    return False
