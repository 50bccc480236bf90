"""`lbctl agent` as a process, next to a simulated engine, with a simulated GPU.

`with agents("a", "b") as (a, b):`. An agent reads a library in place of NVIDIA's, whose values a test sets in
`Agent.gpus`.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import requests
from aiohttp import web
from aiohttp.web import BaseRequest

from tests.support.diagnosis import diagnosed, tail_of
from tests.support.nvml import H100, FakeGpus, build
from tests.support.processes.engines import Engine
from tests.support.processes.ports import HOST, free_pair
from tests.support.processes.waiting import eventually

CLIENT_PATH = "/v1/chat/completions"
"""The path of the clients' requests. An agent sends its own requests to another path."""
WARMUP = 2
"""Number of warm-up requests of each agent."""
_OWN_PATH = "/v1/completions"
_POLL_INTERVAL = 0.05


class AgentEngine(Engine):
    """An engine that lists its model, and counts the requests of its agent separately.

    `arrivals` gets the name of the engine for each request of a client, under the value of its parameter `via`.
    """

    def __init__(self, name: str, arrivals: dict[str, list[str]]) -> None:
        super().__init__(name)
        self.own_requests = 0
        """Number of requests of its agent."""
        self.is_loading = False
        """Whether it answers its agent's requests with 503, although its health check passes."""
        self._arrivals = arrivals

    def restart(self) -> None:
        """Start as a new process: all connections are closed, and its counters are 0."""
        self.refuse()
        self._running.clear()
        self._waiting.clear()
        self._counters.update(dict.fromkeys(self._counters, 0.0))
        self.accept()

    async def _handle(self, request: BaseRequest) -> web.StreamResponse:
        if request.path == "/v1/models":
            return web.json_response({"object": "list", "data": [{"id": "m", "object": "model"}]})
        return await super()._handle(request)

    async def _serve(self, request: BaseRequest) -> web.StreamResponse:
        if request.path == CLIENT_PATH:
            self._arrivals[request.query.get("via", "")].append(self.name)
        elif request.path == _OWN_PATH:
            self.own_requests += 1
            if self.is_loading:
                return web.Response(status=503, text="the model is loading")
        return await super()._serve(request)


class Agent:
    """The agent of an engine. HAProxy's agent checks are on the port after `port`."""

    def __init__(self, engine: AgentEngine, directory: Path, library: Path, options: Sequence[str]) -> None:
        self.engine = engine
        self.port = free_pair()
        self.state = directory / "state"
        self.state.mkdir(parents=True, mode=0o700)
        self.log = directory / f"agent-{engine.name}.log"
        self.gpus = FakeGpus(directory, H100, library=library)
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def name(self) -> str:
        return self.engine.name

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process

    def start(self) -> None:
        engine = ("--engine", f"http://{self.engine.address}", "--kind", "vllm", "--devices", "0")
        arguments = (*engine, "--bind", f"{HOST}:{self.port}", "--warmup", str(WARMUP), *self._options)
        self._process = self._lbctl_agent(*arguments)

    def command(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        """Start `lbctl agent NAME` for this agent, for example `drain`."""
        return self._lbctl_agent(name, *options)

    def kill(self) -> None:
        """Send SIGKILL, and reap the process."""
        self.process.kill()
        self.process.wait(30)

    def health(self) -> dict[str, Any]:
        """Return the JSON of /health; empty if the agent does not answer."""
        with suppress(requests.RequestException), requests.Session() as session:
            session.trust_env = False
            answer = session.get(f"http://{HOST}:{self.port}/health", timeout=30)
            health: dict[str, Any] = answer.json()
            assert answer.status_code == (200 if health["state"] == "healthy" else 503), answer.text
            return health
        return {}

    def await_state(self, state: str, *codes: str) -> None:
        """Wait until the agent reports this state, and at least these reasons."""
        last: dict[str, Any] = {}

        def is_reported() -> bool:
            nonlocal last
            last = self.health()
            return last.get("state") == state and {*codes} <= {reason["code"] for reason in last["reasons"]}

        try:
            eventually(is_reported)
        except AssertionError as error:
            error.add_note(f"the agent of {self.name} reports {last}")
            raise

    @contextmanager
    def never_healthy(self) -> Iterator[None]:
        """Fail if the agent reports the replica as healthy at any time during the block."""
        ended, states = threading.Event(), list[str]()

        def poll() -> None:
            while not ended.wait(_POLL_INTERVAL):
                states.append(self.health().get("state", ""))

        poller = threading.Thread(target=poll)
        poller.start()
        try:
            yield
        finally:
            ended.set()
            poller.join(60)
        assert states
        assert "healthy" not in states

    def _lbctl_agent(self, *words: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "lbctl", "agent", *words, "--state", str(self.state)]
        with self.log.open("ab") as out:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env={**os.environ, **self.gpus.env}
            )


@contextmanager
def agents(
    *names: str, options: Sequence[str] = (), arrivals: dict[str, list[str]] | None = None
) -> Iterator[list[Agent]]:
    """Run an engine and an agent for each name, and wait until all of them are healthy.

    `options` are added to the command lines. `arrivals` gets the names of the engines in the order of the clients'
    requests, as in `AgentEngine`; it creates missing lists.
    """
    directory = Path(tempfile.mkdtemp(prefix="lbctl-e2e-"))
    arrived = defaultdict(list) if arrivals is None else arrivals
    try:
        library = build(directory)
        with ExitStack() as stack:
            engines = [AgentEngine(name, arrived) for name in names]
            for engine in engines:
                stack.enter_context(engine)
            running = [Agent(engine, directory / engine.name, library, options) for engine in engines]
            for agent in running:
                stack.enter_context(diagnosed(functools.partial(tail_of, agent.log)))
                agent.start()
                stack.callback(agent.kill)
            for agent in running:
                agent.await_state("healthy")
            yield running
    finally:
        shutil.rmtree(directory, ignore_errors=True)
