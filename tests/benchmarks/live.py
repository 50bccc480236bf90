"""`python -m tests.benchmarks.live`: measure the time from a scraped sample to the weight that an Envoy has
acknowledged.

A hundred simulated replicas (another process, with a listener for each) serve vLLM metrics that change every second.
Their speeds change all the time, so that weights change too. `lbctl serve` scrapes them and serves twenty clients with
a connection each. The percentiles are upper bounds of buckets of `lbctl_sample_to_acked_seconds`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.benchmarks.xds_process import Serve, serve

REPLICAS, ENVOYS, SECONDS = 100, 20, 30.0
LIMIT = 0.1
_CHANGE = 4.0
"""Seconds for which a replica keeps a speed."""
_STEPS = 40
"""Steps of an engine per second."""
_BATCH = 16
_PAGE = """\
vllm:num_requests_running{{model_name="m"}} {batch}
vllm:num_requests_waiting{{model_name="m"}} 0
vllm:kv_cache_usage_perc{{model_name="m"}} 0.25
vllm:iteration_tokens_total_count{{model_name="m"}} {steps}
vllm:prompt_tokens_total{{model_name="m"}} {steps}
vllm:generation_tokens_total{{model_name="m"}} {tokens}
vllm:inter_token_latency_seconds_sum{{model_name="m"}} {seconds}
vllm:inter_token_latency_seconds_count{{model_name="m"}} {tokens}
"""


class _Engine:
    """Counters of an engine whose speed changes every few seconds."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._speed = 1.0
        self._until = 0.0
        self._at = time.monotonic()
        self._steps = 0.0
        self._seconds = 0.0

    def page(self) -> str:
        now = time.monotonic()
        if now > self._until:
            self._speed, self._until = self._chance.choice((1.0, 1.0, 0.4)), now + self._chance.uniform(1, 2) * _CHANGE
        steps = (now - self._at) * _STEPS
        self._at, self._steps = now, self._steps + steps
        self._seconds += steps * _BATCH * 0.033 / self._speed
        whole = int(self._steps)
        return _PAGE.format(batch=_BATCH, steps=whole, tokens=whole * _BATCH, seconds=self._seconds)


async def _replicas(count: int) -> None:
    """Print the ports, then serve the replicas until standard input ends."""

    async def answer(engine: _Engine, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                body = engine.page().encode()
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n")
                writer.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    ports = []
    for seed in range(count):
        engine = _Engine(seed)
        server = await asyncio.start_server(lambda r, w, e=engine: answer(e, r, w), "127.0.0.1", 0)
        ports.append(str(server.sockets[0].getsockname()[1]))
    print(",".join(ports), flush=True)
    await asyncio.to_thread(sys.stdin.read)


def _fleet(ports: list[str]) -> str:
    replicas = ", ".join(f'{{name: r{number}, address: "127.0.0.1:{port}"}}' for number, port in enumerate(ports))
    source = '{kind: vllm, url: "http://{address}/metrics"}'
    return f"""\
version: 1
listeners: {{l: {{bind: "127.0.0.1:8080"}}}}
routes: {{r: {{pool: p}}}}
pools:
  p:
    replicas: [{replicas}]
    telemetry: {{interval: 1s, timeout: 900ms, stale_after: 5s, sources: [{source}]}}
    weighting: {{adaptive: {{smoothing: 2s}}, max_step: {{up: 50%}}}}
"""


async def _measure() -> int:
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    from tests.benchmarks.xds_clients import clients

    command = [sys.executable, "-m", "tests.benchmarks.live", "--replicas", str(REPLICAS)]
    with (
        tempfile.TemporaryDirectory() as directory,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as replicas,
    ):
        assert replicas.stdin is not None
        assert replicas.stdout is not None
        fleet = Path(directory) / "fleet.yaml"
        fleet.write_text(_fleet(replicas.stdout.readline().strip().split(",")))
        async with serve(fleet, Path(directory) / "state") as running:
            target = await running.listening()
            envoys = clients(ENVOYS)
            for envoy in envoys:
                envoy.connect(target)
            begun, spent = time.monotonic(), _processor(running)
            await asyncio.sleep(SECONDS)
            share = (_processor(running) - spent) / (time.monotonic() - begun)
            page = await asyncio.to_thread(_page, running.log.read_text())
            for envoy in envoys:
                await envoy.disconnect()
        replicas.stdin.close()
    for stage in ("decision", "sent", "acked"):
        print(_line(stage, page))
    print(f"{share * 100:.0f} % of a core, {REPLICAS} replicas every second, {ENVOYS} clients")
    return 0


def _processor(running: Serve) -> float:
    """Return the processor seconds that the process has used so far."""
    fields = Path(f"/proc/{running.process.pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _page(log: str) -> str:
    found = re.search(r"api=(http://\S+)", log)
    assert found
    with urllib.request.urlopen(f"{found[1]}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def _line(stage: str, page: str) -> str:
    name = f"lbctl_sample_to_{stage}_seconds"
    counts = {found[0]: float(found[1]) for found in re.findall(rf'{name}_bucket{{le="([^"]+)"}} (\S+)', page)}
    total = counts.get("+Inf", 0.0)
    percentiles = ", ".join(f"p{part * 100:g} ≤ {_bound(counts, part * total)}" for part in (0.5, 0.9, 0.99))
    limit = f"  limit {LIMIT * 1000:.0f} ms" if stage == "acked" else ""
    return f"sample to {stage:<9} {total:6.0f} times: {percentiles}{limit}"


def _bound(counts: Mapping[str, float], wanted: float) -> str:
    found = next((bound for bound, count in counts.items() if count >= wanted), "+Inf")
    return "more" if found == "+Inf" else f"{float(found) * 1000:g} ms"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.live")
    parser.add_argument("--replicas", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.replicas:
        asyncio.run(_replicas(options.replicas))
        return 0
    return asyncio.run(_measure())


if __name__ == "__main__":
    sys.exit(main())
