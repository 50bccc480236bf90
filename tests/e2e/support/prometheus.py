"""The distribution's Prometheus, with the configuration and the rules of contrib/, scraping targets of a test."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import requests
import yaml

from tests.e2e.support.ports import HOST, free_port
from tests.e2e.support.waiting import eventually
from tests.support.paths import ROOT
from tests.support.tools import require_tool

CONTRIB = ROOT / "contrib" / "prometheus"


class Prometheus:
    """A running Prometheus. `url` is its address."""

    def __init__(self, url: str) -> None:
        self.url = url

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression gives now; fails where Prometheus refuses it."""
        answer = self._get("query", query=expression)
        assert answer["status"] == "success", f"{expression}: {answer.get('error')}"
        series: list[dict[str, Any]] = answer["data"]["result"]
        return series

    def targets(self) -> dict[str, str]:
        """Job → health of its target."""
        return {item["labels"]["job"]: item["health"] for item in self._get("targets")["data"]["activeTargets"]}

    def _get(self, path: str, **parameters: str) -> Any:
        with requests.Session() as session:
            session.trust_env = False
            return session.get(f"{self.url}/api/v1/{path}", params=parameters, timeout=30).json()


@contextmanager
def prometheus(directory: Path, **jobs: Sequence[str]) -> Iterator[Prometheus]:
    """Runs Prometheus on contrib/prometheus/prometheus.yml, with these targets for its jobs, every second."""
    port, log = free_port(), directory / "prometheus.log"
    config = yaml.safe_load((CONTRIB / "prometheus.yml").read_text(encoding="utf-8"))
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(CONTRIB / name) for name in config["rule_files"]]
    for job in config["scrape_configs"]:
        job["static_configs"] = [{"targets": [*jobs[job["job_name"]]]}]
    (directory / "prometheus.yml").write_text(json.dumps(config))
    command = [
        require_tool("prometheus"), f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={directory}/data", f"--web.listen-address={HOST}:{port}", "--log.level=warn",
    ]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    server = Prometheus(f"http://{HOST}:{port}")
    try:
        eventually(lambda: _ready(server.url))
        yield server
    except Exception as error:
        error.add_note(log.read_text(errors="replace")[-3000:])
        raise
    finally:
        process.terminate()
        process.wait(60)


def _ready(url: str) -> bool:
    with requests.Session() as session, suppress(requests.RequestException):
        session.trust_env = False
        return session.get(f"{url}/-/ready", timeout=5).status_code == 200
    return False


def until_series(server: Prometheus, expressions: Sequence[str], timeout: float) -> list[str]:
    """The expressions that have given no series within the time, in seconds."""
    deadline = time.monotonic() + timeout
    missing = list(expressions)
    while missing and time.monotonic() < deadline:
        missing = [expression for expression in missing if not server.query(expression)]
        time.sleep(0.5)
    return missing
