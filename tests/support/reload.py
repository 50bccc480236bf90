"""A fleet on disk with all the files that it names, and its reloader."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from lbctl.serve.fleet.reload import FleetReloader, LoadOutcome
from tests.support.processes.certs import Authority, Pair

HEAD = """\
version: 1
listeners:
  public:
    bind: "127.0.0.1:8443"
    tls: {certificates: [{certificate: tls/server.crt, key: tls/server.key}], client_ca: tls/ca.crt}
routes:
  all: {pool: llama, auth: {api_keys: {file: secrets/keys.yaml}}}
  files: {match: {path_prefix: /files}, pool: filed}
control:
  xds: {tls: {certificate: tls/xds.crt, key: tls/xds.key, client_ca: tls/proxies.crt}}
  api: {token_file: token}
pools:
"""
SECRET = "sk-hunter2-do-not-write-this-anywhere"


class FileClock:
    """Replaces the module `time` of the reloader: a sleep takes no time, but files are older after it.

    `while_sleeping` is called at each sleep; a file that it writes must be followed by `restart`.
    """

    def __init__(self) -> None:
        self.slept = 0.0
        """Total seconds of all sleeps."""
        self.while_sleeping: Callable[[], None] = lambda: None
        self._ahead = 0.0

    def time_ns(self) -> int:
        return time.time_ns() + int(self._ahead * 1e9)

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self._ahead += seconds
        self.while_sleeping()

    def restart(self) -> None:
        """Return to the real time, in which a file that was written just now has just changed."""
        self._ahead = 0.0


class Fleet:
    """A fleet on disk, and a reloader that accepts every outcome as the running fleet."""

    def __init__(self, folder: Path, clock: FileClock | None = None) -> None:
        self.folder = folder
        self._clock = clock or FileClock()
        self.authority = Authority(folder / "issued")
        (folder / "tls").mkdir()
        (folder / "secrets").mkdir()
        self.put(self.authority.issue("first.test"))
        (folder / "tls" / "ca.crt").write_bytes(self.authority.ca.read_bytes())
        (folder / "secrets/keys.yaml").write_text(f"{SECRET}: acme\n")
        self.target(4)
        self.write(10)
        self.reloader = FleetReloader([str(folder)])

    def write(self, llama: int, *more: str) -> None:
        """Write a fleet whose pool `llama` has `llama` replicas, and additional lines of pools."""
        replicas = "".join(f'      - {{address: "10.0.0.{index}:8000"}}\n' for index in range(1, llama + 1))
        text = f"{HEAD}  filed: {{discovery: {{file: {{path: targets.json}}}}}}\n  llama:\n    replicas:\n{replicas}"
        (self.folder / "fleet.yaml").write_text("\n".join([text.rstrip(), *more, ""]))

    def target(self, count: int) -> None:
        """Write the targets file with `count` targets."""
        (self.folder / "targets.json").write_text(
            json.dumps([{"targets": [f"10.1.0.{index}:80" for index in range(1, count + 1)]}])
        )

    def put(self, pair: Pair) -> None:
        (self.folder / "tls" / "server.crt").write_bytes(pair.certificate.read_bytes())
        (self.folder / "tls" / "server.key").write_bytes(pair.key.read_bytes())

    def load(self, **options: bool) -> LoadOutcome:
        self._clock.restart()
        outcome = self.reloader.load(**options)  # type: ignore[arg-type]
        self.reloader.accept(outcome)
        return outcome

    def messages(self, outcome: LoadOutcome) -> list[str]:
        return [str(item).replace(f"{self.folder}/", "") for item in outcome.diagnostics]


def sizes(outcome: LoadOutcome) -> dict[str, int]:
    assert outcome.fleet is not None, [str(item) for item in outcome.diagnostics]
    return {pool.name: len(pool.replicas) for pool in outcome.fleet.compiled.topology.pools}


def certificate(outcome: LoadOutcome) -> bytes:
    assert outcome.fleet is not None
    return outcome.fleet.secrets.files["tls/server.crt"]
