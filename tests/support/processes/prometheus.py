"""The distribution's Prometheus, with the configuration and the rules in contrib/, scraping targets of a test."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import requests
import yaml

from tests.support.diagnosis import diagnosed, tail_of
from tests.support.paths import ROOT
from tests.support.processes.ports import HOST, free_port
from tests.support.processes.waiting import eventually
from tests.support.tools import require_tool

CONTRIB = ROOT / "contrib" / "prometheus"


class Prometheus:
    """A running Prometheus with its files in `directory`. `url` is its address."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            require_tool("prometheus"), f"--config.file={self._directory}/prometheus.yml",
            f"--storage.tsdb.path={self._directory}/data", "--log.level=warn",
            f"--web.listen-address={self.url.removeprefix('http://')}",
        ]  # fmt: skip
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(60)

    @property
    def log(self) -> Path:
        return self._directory / "prometheus.log"

    def write(self, jobs: Mapping[str, Sequence[str]]) -> None:
        """Write the configuration in contrib/ with these targets for its jobs, scraped every second; jobs without
        targets are left out."""
        config = yaml.safe_load((CONTRIB / "prometheus.yml").read_text(encoding="utf-8"))
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(CONTRIB / name) for name in config["rule_files"]]
        config["scrape_configs"] = [job for job in config["scrape_configs"] if jobs.get(job["job_name"])]
        for job in config["scrape_configs"]:
            job["static_configs"] = [{"targets": [*jobs[job["job_name"]]]}]
        (self._directory / "prometheus.yml").write_text(json.dumps(config))

    def scrape(self, **jobs: Sequence[str]) -> None:
        """Scrape these targets from now on."""
        assert self._process is not None
        self.write(jobs)
        self._process.send_signal(signal.SIGHUP)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the current series of an expression; fails if Prometheus rejects it."""
        answer = self._get("query", query=expression)
        assert answer["status"] == "success", f"{expression}: {answer.get('error')}"
        series: list[dict[str, Any]] = answer["data"]["result"]
        return series

    def targets(self) -> dict[str, str]:
        """Return job → health of its target."""
        return {item["labels"]["job"]: item["health"] for item in self._get("targets")["data"]["activeTargets"]}

    def _get(self, path: str, **parameters: str) -> Any:
        with requests.Session() as session:
            session.trust_env = False
            return session.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=30).json()


@contextmanager
def prometheus(directory: Path, **jobs: Sequence[str]) -> Iterator[Prometheus]:
    """Run Prometheus with contrib/prometheus/prometheus.yml, with these targets for its jobs, every second."""
    server = Prometheus(f"http://{HOST}:{free_port()}", directory)
    server.write(jobs)
    server.start()
    try:
        with diagnosed(lambda: tail_of(server.log)):
            eventually(lambda: _ready(server.url))
            yield server
    finally:
        server.stop()


def _ready(url: str) -> bool:
    with requests.Session() as session, suppress(requests.RequestException):
        session.trust_env = False
        return session.get(f"{url}/-/ready", timeout=5).status_code == 200
    return False


def until_series(server: Prometheus, expressions: Sequence[str], timeout: float) -> list[str]:
    """Return the expressions without any series within the timeout, in seconds."""
    deadline = time.monotonic() + timeout
    missing = list(expressions)
    while missing and time.monotonic() < deadline:
        missing = [expression for expression in missing if not server.query(expression)]
        time.sleep(0.5)
    return missing
