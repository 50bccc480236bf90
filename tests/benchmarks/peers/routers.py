"""The other routers, from their packages, each with the settings that its documentation recommends."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import yaml

from tests.benchmarks.peers import checks, prompts
from tests.benchmarks.peers.replicas import Member
from tests.benchmarks.peers.started import Started
from tests.support.paths import ROOT
from tests.support.processes.ports import HOST, free_port

BIN = ROOT / ".venv" / "peers" / "bin"
KEY = "sk-lbctl-benchmark-0123456789abcdef0123456789abcdef"
"""litellm does not start without a key."""
_START_TIMEOUT, _STOP_TIMEOUT = 90, 30
_CHECKS = (
    "--health-check-interval-secs", str(checks.INTERVAL), "--health-check-timeout-secs", str(checks.TIMEOUT),
    "--health-failure-threshold", str(checks.FAILURES), "--health-success-threshold", str(checks.SUCCESSES),
)  # fmt: skip
"""Options of SMG and vllm-router. Their default interval is 60 s."""


class _Router:
    """The process of a router."""

    def __init__(self, command: Sequence[str], port: int, directory: Path, environment: dict[str, str]) -> None:
        self._command, self._port, self._log = command, port, directory / "log"
        more = {"LITELLM_MASTER_KEY": KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "*"}
        self._environment = {**os.environ, **more, **environment}
        self._directory = directory

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment, cwd=self._directory,
                start_new_session=True,
            )  # fmt: skip

    def await_answer(self) -> None:
        """Wait until it answers a request, which takes seconds."""
        deadline = time.monotonic() + _START_TIMEOUT
        while not _answers(self._port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self._command[0]} does not answer:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.2)

    def stop(self, timeout: float = _STOP_TIMEOUT) -> None:
        """Send SIGTERM, and kill it with its children when it has ended or the time is up."""
        self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait(10)


@contextmanager
def _running(
    command: Sequence[str], port: int, directory: Path, environment: dict[str, str] | None = None
) -> Iterator[Started]:
    router = _Router(command, port, directory, environment or {})
    router.start()
    started = Started(port, [router.process.pid])

    def restart() -> None:
        started.forget(started.data_path)
        router.stop()
        router.start()
        started.data_path = [router.process.pid]

    started.restart = restart
    try:
        router.await_answer()
        yield started
    finally:
        router.stop(timeout=0.1)


def _answers(port: int) -> bool:
    """Return whether a small chat request gets status 200."""
    body = b'{"model":"m","messages":[{"role":"user","content":"hello"}],"max_tokens":1,"stream":true}'
    head = f"POST /v1/chat/completions HTTP/1.0\r\nhost: m\r\nauthorization: Bearer {KEY}\r\n"
    with suppress(OSError), socket.create_connection((HOST, port), 5) as connection:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        return b" 200 " in connection.recv(64)
    return False


@contextmanager
def _launched(program: Sequence[str], members: Sequence[Member], policy: Sequence[str]) -> Iterator[Started]:
    """Start a router with the options that SMG and vllm-router share."""
    port = free_port()
    urls = [f"http://{each.address}" for each in members]
    command = [str(BIN / program[0]), *program[1:], "--host", HOST, "--port", str(port), "--worker-urls", *urls]
    command += ["--prometheus-port", str(free_port()), "--prometheus-host", HOST, "--log-level", "error"]
    command += _CHECKS
    command += ["--worker-startup-check-interval", "1", "--policy", *policy]
    with tempfile.TemporaryDirectory() as directory, _running(command, port, Path(directory)) as started:
        yield started


@contextmanager
def smg(members: Sequence[Member], *policy: str) -> Iterator[Started]:
    """https://raw.githubusercontent.com/lightseekorg/smg/main/docs/getting-started/load-balancing.md

    It recommends `cache_aware`, which is also the default. By default, it reads metrics only every 10 s.
    """
    polls = ("--load-monitor-interval", str(checks.POLL_INTERVAL))
    with _launched(("smg", "launch"), members, [*policy, *polls]) as started:
        yield started


@contextmanager
def vllm_router(members: Sequence[Member], policy: str) -> Iterator[Started]:
    """https://pypi.org/project/vllm-router/0.1.17/: settings that are not here keep their defaults."""
    sources = [
        option
        for each in members
        for option in ("--kv-event-source", f"http://{each.address}=tcp://{HOST}:{each.events}")
    ]
    kv_aware = [*sources, "--kv-event-model", "m", "--kv-event-block-size", str(prompts.BLOCK)]
    more = kv_aware if policy == "kv_aware" else []
    with _launched(("vllm-router",), members, [policy, *more]) as started:
        yield started


@contextmanager
def litellm(members: Sequence[Member], *, rust: bool) -> Iterator[Started]:
    """https://docs.litellm.ai/docs/routing: `simple-shuffle`, which it advises for production, takes weights.

    https://docs.litellm.ai/docs/proxy/rust_gateway: `rust: true` in the parameters of a model.
    """
    models = [
        {
            "model_name": "m",
            "litellm_params": {
                "model": "hosted_vllm/m", "api_base": f"http://{each.address}/v1", "api_key": "none",
                "weight": each.weight, **({"rust": True} if rust else {}),
            },
        }
        for each in members
    ]  # fmt: skip
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        config = Path(name, "config.yaml")
        config.write_text(yaml.safe_dump({"model_list": models, "router_settings": {"num_retries": 2}}))
        command = [str(BIN / "litellm"), "--config", str(config), "--host", HOST, "--port", str(port)]
        with _running(command, port, Path(name), {"LITELLM_RUST": str(rust).lower()}) as started:
            yield started
