"""A HAProxy as an operator runs it (master and worker), driven by lbctl's driver: a fleet, live weights and drains."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from lbctl.apply.haproxy.applied import HaproxyResult
from lbctl.apply.haproxy.driver import HaproxyUpdater
from lbctl.apply.haproxy.runtime import Runtime
from lbctl.base.diagnostics import Diagnostics
from lbctl.ir.proxies import Proxy as Named
from lbctl.ir.snapshot import Snapshot
from lbctl.targets import target
from lbctl.targets.load import load
from lbctl.targets.prepare import Prepared, prepare
from tests.support.fleets import Fleet
from tests.support.processes import background
from tests.support.processes.binaries import Binary, require
from tests.support.processes.client import Client
from tests.support.processes.fleet import put, started
from tests.support.processes.proxies import Haproxy
from tests.support.processes.waiting import eventually
from tests.support.weights import plain_weights

VERSIONS: tuple[Binary, ...] = ("haproxy", "haproxy-2.8")
_NUMBERS = {"haproxy": "2.6", "haproxy-2.8": "2.8"}


class _Master(Haproxy):
    """`haproxy -W -db`: reloaded by SIGUSR2 to the master."""

    def _command(self) -> list[str]:
        return [str(self.binary), "-W", "-db", "-f", str(self.config)]

    def reload(self) -> None:
        self.process.send_signal(signal.SIGUSR2)


class Driven(Client):
    """A client of the fleet's only listener, with the proxy behind it and its driver.

    `proxy` keys go to the fleet's entry of the proxy, and `clock` to the driver.
    """

    def __init__(
        self, name: Binary, fleet: Fleet, directory: Path, proxy: Mapping[str, Any], clock: Callable[[], float]
    ) -> None:
        super().__init__(int(str(next(iter(fleet["listeners"].values()))["bind"]).rsplit(":", 1)[1]))
        self.directory = directory
        self.config = directory / "haproxy.cfg"
        self.socket = directory / "admin.sock"
        self._keys = {"kind": "haproxy", "version": _NUMBERS[name], "config": str(self.config), **proxy}
        self._fleet = fleet
        self._clock = clock
        self._prepared()
        self.proxy = _Master(require(name), directory, self.config, [self.port])
        for file in target("haproxy").render(self._prepared().view).files:
            (directory / file.name).write_text(file.text)
        self.driver: HaproxyUpdater | None = None

    def drive(self) -> None:
        """Start the driver when the proxy is running, because only then its reload command is known."""
        command = ["/usr/bin/env", "kill", "-USR2", str(self.proxy.process.pid)]
        self._keys.setdefault("reload", {"command": command})
        self.driver = HaproxyUpdater(self._named(), clock=self._clock)

    @property
    def listeners(self) -> dict[str, Any]:
        """Return the fleet's current listeners."""
        return dict(self._fleet["listeners"])

    def eventually_shares(self, wanted: object) -> None:
        """Wait until the shares of a hundred requests are these, at most a minute."""
        deadline = time.monotonic() + 60
        while (shares := self.load(100, 4).shares()) != wanted:
            assert time.monotonic() < deadline, f"{shares} instead of {wanted}"
            time.sleep(0.2)

    def change(self, fleet: Fleet) -> None:
        """Set the fleet that applies from now on, without applying it."""
        self._fleet = fleet

    def apply(
        self,
        weights: Mapping[str, Mapping[str, float]] | None = None,
        drained: Mapping[str, Sequence[str]] | None = None,
        cut: Sequence[tuple[str, str]] = (),
        down: Mapping[tuple[str, str], str] | None = None,
    ) -> HaproxyResult:
        assert self.driver is not None
        return background.wait(self.driver.apply(self._prepared(weights, drained), frozenset(cut), down=down))

    def converge(self, weights: Mapping[str, Mapping[str, float]] | None = None) -> HaproxyResult:
        assert self.driver is not None
        return background.wait(self.driver.converge(self._prepared(weights).view))

    def ask(self, question: str) -> str:
        """Send one Runtime API command, as an operator does."""
        return "".join(background.wait(Runtime(str(self.socket)).query(question)).texts)

    @property
    def worker(self) -> int:
        """Return the process id of the worker that currently responds. On a busy machine this may take a moment."""
        pids: list[int] = []

        def answers() -> bool:
            pids[:] = [int(row.split()[1]) for row in self.ask("show info").splitlines() if row.startswith("Pid:")]
            return bool(pids)

        eventually(answers)
        return pids[0]

    def reload_outside(self) -> None:
        """Reload HAProxy without lbctl, as an operator might, and wait until the new worker responds.

        A master that has only just started can miss the signal.
        """
        old = self.worker
        for _ in range(12):
            self.proxy.reload()
            deadline = time.monotonic() + 5
            while time.monotonic() < deadline:
                if self.worker not in (old, 0):
                    return
                time.sleep(0.05)
        raise AssertionError("no new worker")

    def server(self, backend: str, name: str) -> dict[str, str]:
        """Return the server's row in `show servers state`; empty if there is none."""
        rows = self.ask("show servers state").splitlines()
        columns = next(row for row in rows if row.startswith("#")).split()[1:]
        servers = (dict(zip(columns, row.split(), strict=True)) for row in rows if row[:1].isdigit() and " " in row)
        return next((row for row in servers if (row["be_name"], row["srv_name"]) == (backend, name)), {})

    def _named(self) -> Named:
        return self._prepared().view.proxy

    def _prepared(
        self,
        weights: Mapping[str, Mapping[str, float]] | None = None,
        drained: Mapping[str, Sequence[str]] | None = None,
    ) -> Prepared:
        path = self.directory / "fleet.yaml"
        whole = {**self._fleet, "proxies": {"edge": self._keys}}
        path.write_text(yaml.safe_dump(json.loads(json.dumps(whole)), sort_keys=False))
        diagnostics = Diagnostics()
        loaded = load([str(path)], diagnostics)
        assert loaded is not None, "\n".join(map(str, diagnostics))
        proxy = loaded.compiled.topology.proxies[0]
        gone = {pool: frozenset(names) for pool, names in (drained or {}).items()}
        snapshot = Snapshot(loaded.compiled.topology, plain_weights(weights or {}), gone, secrets=loaded.secrets)
        return prepare(target("haproxy"), loaded.compiled, proxy, snapshot)


@contextmanager
def driven(
    name: Binary,
    fleet: Fleet,
    files: Mapping[str, bytes] | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
    **proxy: Any,
) -> Iterator[Driven]:
    """Run this HAProxy with the fleet, and a Runtime API unless `proxy` has an `agent_check` or `runtime_api=None`.

    `files` are written next to the fleet's YAML under their relative paths. `clock` returns seconds and measures the
    intervals between reloads.
    """
    directory = Path(tempfile.mkdtemp(prefix="lbctl-e2e-"))
    try:
        put(directory, files or {})
        keys = {"runtime_api": str(directory / "admin.sock"), **proxy}
        if "agent_check" in proxy:
            del keys["runtime_api"]
        given = {key: value for key, value in keys.items() if value is not None}
        gateway = Driven(name, fleet, directory, given, clock)
        with started(gateway.proxy):
            gateway.drive()
            try:
                yield gateway
            finally:
                assert gateway.driver is not None
                background.wait(gateway.driver.close())
    finally:
        shutil.rmtree(directory, ignore_errors=True)
