"""`python -m tests.benchmarks.load_reports`: measure the cost of load reports for `lbctl serve`.

50 Envoys report the load of 1,000 busy replicas at the requested interval. The clients run in this process, and `serve`
runs in a separate one. The processor time of `serve` is read from /proc, and compared with the same process with silent
streams, so that other work on the machine hardly affects the result.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path

import grpc
from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsRequest, LoadStatsResponse

from tests.benchmarks.fleets import fleet
from tests.benchmarks.xds_process import serve

_ENVOYS, _POOLS, _REPLICAS = 50, 10, 100
_SECONDS = 20.0
_MAX_PERCENT = 10.0
"""Maximum, in percent of a core."""
_METHOD = "/envoy.service.load_stats.v3.LoadReportingService/StreamLoadStats"
_TICKS = os.sysconf("SC_CLK_TCK")


def report() -> bytes:
    """Return a report about every replica of the fleet: requests since the last report, and requests in progress."""
    message = LoadStatsRequest()
    for pool in range(_POOLS):
        locality = message.cluster_stats.add(cluster_name=f"pool-{pool}").upstream_locality_stats.add()
        for replica in range(_REPLICAS):
            row = locality.upstream_endpoint_stats.add(
                total_issued_requests=17, total_successful_requests=15, total_error_requests=1,
                total_requests_in_progress=3,
            )  # fmt: skip
            address = row.address.socket_address
            address.address, address.port_value = f"127.{pool}.0.{replica + 1}", 9
    return message.SerializeToString()


class Envoy:
    """A stream that the server asks for reports. It sends them once `busy` is set."""

    def __init__(self, channel: grpc.aio.Channel, number: int) -> None:
        self._call = channel.stream_stream(_METHOD)()
        self._number = number
        self.reports = 0
        self.interval = 0.0

    async def connect(self) -> None:
        await self._call.write(LoadStatsRequest(node={"id": f"edge-{self._number}"}).SerializeToString())
        answer = LoadStatsResponse.FromString(await self._call.read())
        self.interval = answer.load_reporting_interval.ToMilliseconds() / 1000

    async def busy(self, message: bytes) -> None:
        await asyncio.sleep(self.interval * self._number / _ENVOYS)
        while True:
            await self._call.write(message)
            self.reports += 1
            await asyncio.sleep(self.interval)


def _cpu(pid: int) -> float:
    """Return the processor seconds that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def _percent(pid: int) -> float:
    before = _cpu(pid)
    await asyncio.sleep(_SECONDS)
    return (_cpu(pid) - before) / _SECONDS * 100


async def main() -> int:
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    with tempfile.TemporaryDirectory() as directory:
        path, state = Path(directory) / "fleet.yaml", Path(directory) / "state"
        path.write_text(fleet(_POOLS, _REPLICAS))
        async with serve(path, state) as process:
            await process.listening()
            pid, before = process.process.pid, process.memory
            options = [("grpc.use_local_subchannel_pool", 1)]
            channels = [grpc.aio.insecure_channel(f"unix:{state}/xds.sock", options) for _ in range(_ENVOYS)]
            envoys = [Envoy(channel, number) for number, channel in enumerate(channels)]
            await asyncio.gather(*(item.connect() for item in envoys))
            idle = await _percent(pid)
            message = report()
            tasks = [asyncio.create_task(item.busy(message)) for item in envoys]
            await asyncio.sleep(envoys[0].interval)
            sent = sum(item.reports for item in envoys)
            busy = await _percent(pid)
            sent = sum(item.reports for item in envoys) - sent
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            name = f"{_ENVOYS} Envoys × {_POOLS * _REPLICAS:,} replicas, a report each {envoys[0].interval:g} s"
            held = "ok" if busy - idle <= _MAX_PERCENT else "MISSED"
            each = (busy - idle) / 100 * _SECONDS / max(1, sent) * 1000
            print(f"\n{'LOAD REPORTS':<58} {'SERVE':>9} {'LIMIT':>8}")
            print(f"{name:<58} {busy - idle:7.1f} % {_MAX_PERCENT:6.0f} % {held}")
            print(f"{f'    CPU for a report of {len(message) >> 10} KiB':<58} {each:6.2f} ms")
            print(f"{'    without reports':<58} {idle:7.1f} %")
            print(f"{'    memory, before and after':<58} {before:4.0f} → {process.memory:.0f} MB")
            await asyncio.gather(*(channel.close() for channel in channels))
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
