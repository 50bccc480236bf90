"""Monitors the GPUs in a thread, because a call to a GPU driver can block for minutes or even forever."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from lbctl.agent import amd
from lbctl.agent.readings import GpuReadings
from lbctl.agent.watched import NoDriverError
from lbctl.base.errors import reason_of

INTERVAL = 1.0
"""Seconds between readings."""
MAX_AGE = 5.0
"""Maximum age of the newest reading, in seconds, before the driver counts as blocked."""


class GpuDriver(Protocol):
    """An open driver."""

    def read(self) -> GpuReadings:
        """Poll all monitored devices."""

    def close(self) -> None:
        """Close the driver."""


class GpuWatch:
    """Keeps the newest reading of the monitored GPUs: NVIDIA GPUs if their driver is installed, otherwise AMD GPUs.

    `devices` are as in `AgentSettings`. `open_driver` raises NoDriverError if the machine has no driver.
    """

    def __init__(
        self, devices: tuple[str, ...] | None, open_driver: Callable[[tuple[str, ...] | None], GpuDriver] | None = None
    ) -> None:
        self._devices = devices
        self._open_driver = open_driver or _open_driver
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._started_at = time.monotonic()
        self._readings: GpuReadings | None = None
        self._xids: defaultdict[str, list[int]] = defaultdict(list)
        """Maps each device to the XID errors that `latest` has not returned yet."""

    def start(self) -> None:
        """Start monitoring, unless `devices` is empty."""
        if self._devices != ():
            threading.Thread(target=self._run, name="gpus", daemon=True).start()

    def stop(self) -> None:
        """Stop monitoring, without waiting for a blocked driver."""
        self._stopped.set()

    def latest(self, now: float) -> GpuReadings | None:
        """Return the newest reading, or None before the first one. Each XID error is returned exactly once.

        If the newest reading is older than `MAX_AGE`, the result has a problem and no GPUs. `now` is in seconds on the
        monotonic clock.
        """
        if self._devices == ():
            return GpuReadings(now, note="no GPU is monitored, as configured")
        with self._lock:
            readings = self._readings
            at = self._started_at if readings is None else readings.at
            if now - at > MAX_AGE:
                problem = f"the GPU driver has not responded for {now - at:.0f} s"
                return GpuReadings(now, problem=problem, is_starting=readings is None)
            if readings is None:
                return None
            return replace(
                readings,
                gpus=tuple(replace(gpu, xids=tuple(self._xids.pop(gpu.name, ()))) for gpu in readings.gpus),
            )

    def _run(self) -> None:
        driver: GpuDriver | None = None
        while not self._stopped.is_set():
            due = time.monotonic() + INTERVAL
            try:
                driver = driver or self._open_driver(self._devices)
                self._add(driver.read())
            except NoDriverError as error:
                self._add(self._without_driver(str(error)))
            except Exception as error:  # noqa: BLE001 -- the thread survives unexpected errors from a binding
                _close(driver)
                driver = None
                self._add(GpuReadings(time.monotonic(), problem=f"the GPUs cannot be read: {reason_of(error)}"))
            self._stopped.wait(due - time.monotonic())
        _close(driver)

    def _add(self, readings: GpuReadings) -> None:
        with self._lock:
            self._readings = readings
            for gpu in readings.gpus:
                if gpu.xids:
                    self._xids[gpu.name].extend(gpu.xids)

    def _without_driver(self, reason: str) -> GpuReadings:
        if self._devices is None:
            return GpuReadings(time.monotonic(), note=f"no GPU is monitored: {reason}")
        return GpuReadings(time.monotonic(), problem=reason)


def _close(driver: GpuDriver | None) -> None:
    if driver is not None:
        with suppress(Exception):
            driver.close()


def _open_driver(devices: tuple[str, ...] | None) -> GpuDriver:
    try:
        return _open_nvml(devices)
    except NoDriverError:
        smi = amd.amdsmi()
        if smi is None:
            raise
    return amd.AmdDevices(devices, smi)


def _open_nvml(devices: tuple[str, ...] | None) -> GpuDriver:
    try:
        from lbctl.agent.nvml import NvmlDevices
    except ModuleNotFoundError as error:
        if error.name != "pynvml":
            raise
        raise NoDriverError("the Python package nvidia-ml-py is not installed: pip install 'lbctl[agent]'") from None
    return NvmlDevices(devices)
