"""`python -m tests.benchmarks.scrape`: measure the cost of scraping a thousand replicas every second.

The replicas run in another process, with a listener on loopback for each, and return a vLLM page of 30 KB with changing
counters. The results are the processor time and the memory of the scraping process after its first looks, and the age
of each replica's newest sample at random times.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

from lbctl.ir.address import Address
from lbctl.ir.pools import MetricsSource, Pool, Replica, Telemetry
from lbctl.serve.telemetry.reports import ScrapeReport
from lbctl.serve.telemetry.scraper import Scraper
from lbctl.signals.plan import scrape_plan
from tests.benchmarks.memory import most_resident

ROOT = Path(__file__).resolve().parents[2]
MAX_CORE = 0.5
WHOLE_FLEET, EVERY = 10_000, 5.0
"""Replicas of a fleet that one leader would scrape alone, and the seconds between two scrapes of a replica."""
MAX_MEMORY = 200.0
LATE = 1.0
_BYTES = 30_000
_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 640, 2560, "+Inf")
_HISTOGRAMS = (
    "time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
    "request_queue_time_seconds", "request_inference_time_seconds", "request_prefill_time_seconds",
    "request_decode_time_seconds", "iteration_tokens_total", "request_prompt_tokens", "request_generation_tokens",
)  # fmt: skip


class _Pages:
    """A page whose counters change at each look."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        labels = 'engine="0",model_name="meta-llama/Llama-3.1-70B-Instruct"'
        lines = [f"vllm:{name}{{{labels}}} %(gauge)d" for name in ("num_requests_running", "num_requests_waiting")]
        lines.append(f"vllm:kv_cache_usage_perc{{{labels}}} 0.4375")
        lines += [f"vllm:{name}_total{{{labels}}} %(count)d" for name in ("prompt_tokens", "generation_tokens")]
        for name in _HISTOGRAMS:
            lines += [f"# HELP vllm:{name} Histogram.", f"# TYPE vllm:{name} histogram"]
            lines += [f'vllm:{name}_bucket{{{labels},le="{bound}"}} %(count)d' for bound in _BUCKETS]
            lines += [f"vllm:{name}_sum{{{labels}}} %(count)d", f"vllm:{name}_count{{{labels}}} %(count)d"]
        text = "\n".join(lines) + "\n"
        fill = '# HELP python_info Python platform information.\npython_info{implementation="CPython"} 1.0\n'
        while len(text) < _BYTES:
            text += fill
        self._text = text

    def answer(self) -> bytes:
        count = int((time.monotonic() - self._started) * 1000) + 1_000_000
        body = (self._text % {"gauge": count % 7, "count": count}).encode()
        head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}\r\n\r\n"
        return head.encode() + body


class _Replica(asyncio.Protocol):
    def __init__(self, pages: _Pages) -> None:
        self._pages = pages
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(self._pages.answer())


async def _serve(count: int) -> None:
    """Print the ports, then serve until standard input ends."""
    loop, pages = asyncio.get_running_loop(), _Pages()
    servers = [await loop.create_server(lambda: _Replica(pages), "127.0.0.1", 0) for _ in range(count)]
    print(" ".join(str(server.sockets[0].getsockname()[1]) for server in servers), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


def _watched(ports: list[int], interval: float) -> Pool:
    source = MetricsSource("vllm", "http://{host}:{port}/metrics")
    telemetry = Telemetry(interval=int(interval * 1000), sources=(source,))
    replicas = tuple(Replica(f"replica-{port}", Address("127.0.0.1", port)) for port in ports)
    return Pool("replicas", replicas, telemetry=telemetry)


class _Looks:
    """Records when the newest sample of each replica was taken."""

    def __init__(self) -> None:
        self.newest: dict[str, float] = {}
        self.reports = 0
        self.failures = 0

    def take(self, report: ScrapeReport) -> None:
        self.reports += 1
        self.failures += not report.sources[0].ok
        queue = report.signals.values.get("queue")
        if queue is not None:
            self.newest[report.replica] = queue.at


async def _measure(ports: list[int], interval: float, seconds: float) -> tuple[float, float, list[float], _Looks]:
    """Return (fraction of a core, processor seconds per look, ages at random times, looks)."""
    pool, looks, loop = _watched(ports, interval), _Looks(), asyncio.get_running_loop()
    scraper = Scraper(looks.take)
    scraper.watch([item for item in (scrape_plan(pool, replica) for replica in pool.replicas) if item])
    running = asyncio.create_task(scraper.run())
    await asyncio.sleep(3 * interval)
    looks.reports = looks.failures = 0
    ages: list[float] = []
    used, started = time.process_time(), loop.time()
    while loop.time() - started < seconds:
        await asyncio.sleep(random.uniform(0.2, 0.8) * interval)
        now = loop.time()
        ages += [now - at for at in looks.newest.values()]
    spent = time.process_time() - used
    part, each = spent / (loop.time() - started), spent / max(1, looks.reports)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return part, each, sorted(ages), looks


def measure(replicas: int, interval: float, seconds: float) -> list[str]:
    """Return the lines of the table."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65_536), most))
    command = [sys.executable, "-m", "tests.benchmarks.scrape", "--serve", str(replicas)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        ports = [int(port) for port in other.stdout.readline().split()]
        part, each, ages, looks = asyncio.run(_measure(ports, interval, seconds))
        other.communicate()
    memory = most_resident()
    name = f"scrape, {replicas:,} replicas every {interval:g} s"
    late = ages[int(len(ages) * 0.99)] if ages and len(looks.newest) == replicas else float("inf")
    alone = each * WHOLE_FLEET / EVERY
    return [
        _line(f"{name}: part of one core", part, MAX_CORE, "{:.0%}"),
        _line(f"one leader, {WHOLE_FLEET:,} replicas every {EVERY:g} s: part of one core", alone, MAX_CORE, "{:.0%}"),
        _line(f"{name}: memory", memory, MAX_MEMORY, "{:.0f} MB"),
        _line(f"{name}: age of samples, p99", late, interval + LATE, "{:.2f} s"),
        f"    {looks.reports} looks, {looks.failures} failed",
    ]


def _line(name: str, value: float, most: float, form: str) -> str:
    held = "ok" if value <= most else "MISSED"
    return f"{name:<60} {form.format(value):>8} {form.format(most):>8} {held}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scrape")
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--interval", type=float, default=1.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 65_536), most))
        asyncio.run(_serve(options.serve))
        return 0
    for line in measure(options.replicas, options.interval, options.seconds):
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
