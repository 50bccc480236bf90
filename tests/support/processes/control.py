"""`lbctl serve` as a separate process, and real Envoys that it drives.

The shortest way is `with controlling(fleet) as control, control.envoy("edge") as edge:`. The control plane keeps its
ports over restarts, so that Envoys find it again. Every Envoy has its own admin port and directory; the fleet's
`proxies` determine its listeners. The harness uses only lbctl's command, API and log.
"""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import requests
import yaml

from tests.support.diagnosis import FLEET_CHARACTERS, diagnosed, tail_of
from tests.support.fleets import Fleet
from tests.support.processes import lbctl_process
from tests.support.processes.binaries import require
from tests.support.processes.fleet import put
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.waiting import eventually
from tests.support.processes.xds_envoy import START_TIMEOUT, XdsEnvoy, XdsTls, bootstrap_of

__all__ = ["ControlPlane", "XdsEnvoy", "XdsTls", "controlling", "driven", "settled"]


class _Rows(dict[str, dict[str, Any]]):
    def __missing__(self, node: str) -> dict[str, Any]:
        return {"node": node, "state": "ABSENT"}


class ControlPlane:
    """`lbctl serve` with the fleet in `files`, and its state next to it. `xds` and `api` are its ports."""

    def __init__(self, directory: Path, options: Sequence[str] = (), module: str = "") -> None:
        self.directory = directory
        self.files = directory / "fleet"
        self.state = directory / "state"
        self.log_file = directory / "serve.log"
        self.xds, self.api, self.logs = free_port(), free_port(), free_port()
        self.options = tuple(options)
        self.module = module
        self.process: lbctl_process.Process | None = None
        self._envoys: list[XdsEnvoy] = []

    # ── The process ──────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, *, ready: bool = True) -> None:
        """Start it; with `ready`, wait until it serves proxies."""
        arguments = [
            *("serve", str(self.files), "--state", str(self.state)),
            *("--xds-bind", f"{HOST}:{self.xds}", "--api-bind", f"{HOST}:{self.api}", *self.options),
        ]
        if self.module:
            self.process = lbctl_process.executed(arguments, self.log_file, module=self.module)
        else:
            self.process = lbctl_process.forked(arguments, self.log_file)
        if ready:
            self.await_ready()

    def await_ready(self, timeout: float = START_TIMEOUT) -> None:
        """Wait until /readyz succeeds. Fails, with the log, if it never does."""
        deadline = time.monotonic() + timeout
        while not self.ready():
            self.assert_alive()
            assert time.monotonic() < deadline, f"lbctl serve is not ready\n{self.tail()}"
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self, timeout: float = 60.0) -> int:
        """Send SIGTERM, and return the exit code. Fails if the process has not ended after `timeout` seconds."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout)

    def kill(self) -> None:
        """Send SIGKILL, and reap the process."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(30)

    def assert_alive(self) -> None:
        assert self.process is not None
        code = self.process.poll()
        assert code is None, f"lbctl serve ended by itself with {code}\n{self.tail()}"

    @property
    def socket(self) -> str:
        """Return the address of its Unix socket, on which nodes also get keys."""
        return f"unix:{self.state}/xds.sock"

    @property
    def memory(self) -> float:
        """Return the resident memory in MB."""
        assert self.process is not None
        resident = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text())
        assert resident
        return int(resident[1]) / 1024

    # ── Its files ────────────────────────────────────────────────────────────────────────────────────────────────────

    def write(self, fleet: Fleet, name: str = "fleet.yaml") -> None:
        """Replace the fleet's file atomically."""
        self.write_text(
            yaml.dump(json.loads(json.dumps(self._with_logs(fleet))), Dumper=yaml.CSafeDumper, sort_keys=False), name
        )

    def _with_logs(self, fleet: Fleet) -> Fleet:
        """Return the fleet with a separate port for the traffic log of driven proxies."""
        proxies, settings = fleet.get("proxies") or {}, fleet.get("control") or {}
        if "logs" in settings or not any({"config", "reload"} <= item.keys() for item in proxies.values()):
            return fleet
        return {**fleet, "control": {**settings, "logs": {"bind": f"{HOST}:{self.logs}"}}}

    def write_text(self, text: str, name: str = "fleet.yaml") -> None:
        """Replace the fleet's file with any text, atomically."""
        path = self.files / name
        beside = path.with_name(f".{name}.new")
        beside.write_text(text)
        beside.replace(path)

    # ── Its API ──────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.api}"

    def ready(self) -> bool:
        with suppress(requests.RequestException):
            return self._ask("GET", "/readyz").status_code == 200
        return False

    def get(self, path: str) -> Any:
        """Return the JSON of /api/v1/PATH."""
        answer = self._ask("GET", f"/api/v1/{path}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.get("status")
        return status

    @property
    def rollout(self) -> dict[str, Any]:
        """Return the fleet's only rollout, when the control plane has it: shortly after it is ready."""
        rows: list[dict[str, Any]] = []

        def is_there() -> bool:
            rows[:] = self.get("rollouts")["rollouts"]
            return bool(rows)

        eventually(is_there)
        (row,) = rows
        return row

    @property
    def proxies(self) -> dict[str, dict[str, Any]]:
        """Return node id → its row. The state of a node that the control plane does not know yet is `ABSENT`."""
        return _Rows({item["node"]: item for item in self.get("proxies")["proxies"]})

    def metrics(self) -> dict[str, float]:
        """Return the Prometheus series, `name{label="value"}` → value."""
        lines = self._ask("GET", "/metrics").text.splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def metric(self, name: str) -> float:
        """Return the sum of all series of this name."""
        return sum(value for series, value in self.metrics().items() if series.partition("{")[0] == name)

    def reload(self, *, allow_shrink: bool = False) -> requests.Response:
        """Send POST /api/v1/reload with the token of the state directory."""
        return self._ask("POST", "/api/v1/reload", json={"allow_shrink": allow_shrink}, headers=self._authorization)

    def explain_pick(self, question: Mapping[str, Any]) -> Any:
        """Send POST /api/v1/picks/explain, and return the JSON of the response."""
        answer = self._ask("POST", "/api/v1/picks/explain", json=question, headers=self._authorization)
        assert answer.status_code == 200, answer.text
        return answer.json()

    @property
    def _authorization(self) -> dict[str, str]:
        return {"authorization": f"Bearer {(self.state / 'api-token').read_text().strip()}"}

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def tail(self) -> str:
        """Return the ends of its log and of its Envoys' logs."""
        return "\n".join([tail_of(self.log_file), *(f"── {item.node}\n{item.logs()}" for item in self._envoys)])

    def describe(self) -> str:
        """Return the YAML of its fleet, and the end of its log."""
        return f"{tail_of(*sorted(self.files.glob('*.yaml')), characters=FLEET_CHARACTERS)}\n{tail_of(self.log_file)}"

    def _ask(self, method: str, path: str, **more: Any) -> requests.Response:
        with requests.Session() as session:
            session.trust_env = False
            return session.request(method, self.url + path, timeout=30, **more)

    # ── Its Envoys ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def envoys(self) -> tuple[XdsEnvoy, ...]:
        """Return the running Envoys."""
        return tuple(self._envoys)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the node ids of the running Envoys."""
        return tuple(item.node for item in self._envoys)

    @contextmanager
    def envoy(
        self,
        node: str,
        listeners: Mapping[str, int] | Sequence[str] = (),
        *,
        delta: bool = True,
        region: str = "",
        zone: str = "",
        tls: XdsTls | None = None,
        by_socket: bool = False,
        bootstrap: Mapping[str, Any] | None = None,
        wait: bool = True,
    ) -> Iterator[XdsEnvoy]:
        """Run a real Envoy with this node id.

        `listeners` are the listeners that it should open: names in the written fleet (all of them by default), or names
        and ports; with `wait` it has opened them before the block begins. With `by_socket` it connects by the Unix
        socket, as a proxy that needs keys must, else by TCP. `bootstrap` replaces the harness's own bootstrap, except
        for the admin port.
        """
        binary, admin = require("envoy"), free_port()
        directory = self.directory / f"envoy-{node}-{admin}"
        directory.mkdir()
        config = directory / "bootstrap.json"
        place = {key: value for key, value in (("region", region), ("zone", zone)) if value}
        where = self.socket.removeprefix("unix:") if by_socket else self.xds
        own = bootstrap_of(where, node, admin, delta=delta, locality=place, tls=tls)
        config.write_text(json.dumps({**bootstrap, "admin": own["admin"]} if bootstrap else own))
        ports = listeners if isinstance(listeners, Mapping) else self._ports(listeners)
        envoy = XdsEnvoy(binary, directory, config, node, admin, ports)
        self._envoys.append(envoy)
        try:
            with diagnosed(envoy.logs):
                envoy.start()
                if wait:
                    envoy.await_listeners()
                yield envoy
                envoy.assert_alive()
        finally:
            envoy.stop()
            self._envoys.remove(envoy)

    def _ports(self, names: Sequence[str]) -> dict[str, int]:
        fleet = yaml.safe_load((self.files / "fleet.yaml").read_text())
        ports = {name: int(str(keys["bind"]).rsplit(":", 1)[1]) for name, keys in fleet["listeners"].items()}
        return {name: port for name, port in ports.items() if not names or name in names}


@contextmanager
def controlling(
    fleet: Fleet,
    *,
    files: Mapping[str, str | bytes] | None = None,
    options: Sequence[str] = (),
    start: bool = True,
    module: str = "",
) -> Iterator[ControlPlane]:
    """Write the fleet, and `files` next to it under their relative paths; start `lbctl serve` with it, and end it.

    With `start`, the block begins when the control plane is ready. `options` are added to the command. The process is a
    fork of a process that has imported lbctl, or `python -m MODULE` in a new interpreter if a `module` is given. The
    test fails if the process ends by itself, unless the test stopped or killed it.
    """
    directory = Path(tempfile.mkdtemp(prefix="lbctl-e2e-"))
    control = ControlPlane(directory, options, module)
    try:
        control.files.mkdir()
        put(control.files, files or {})
        control.write(fleet)
        with diagnosed(control.describe):
            if start:
                control.start()
            yield control
    finally:
        if control.process is not None and control.process.poll() is None:
            control.process.terminate()
            with suppress(subprocess.TimeoutExpired):
                control.process.wait(30)
            control.kill()
        shutil.rmtree(directory, ignore_errors=True)


def driven(*nodes: str) -> Fleet:
    """Return the sections `listeners` and `proxies` for Envoys with these node ids, to be merged into a fleet.

    Each has a listener with its own name, so that a test can send a request to one of several Envoys.
    """
    return {
        "listeners": {node: {"bind": f"{HOST}:{free_port()}"} for node in nodes},
        "proxies": {node: {"kind": "envoy", "nodes": [node], "listeners": [node]} for node in nodes},
    }


def settled(envoy: XdsEnvoy, timeout: float = START_TIMEOUT) -> None:
    """Wait until nothing is warming in this Envoy."""
    eventually(lambda: envoy.warming() == 0, timeout)
