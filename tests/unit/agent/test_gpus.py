"""The thread that watches the GPUs, with scripted drivers."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from lbctl.agent import amd, gpus
from lbctl.agent.gpus import GpuWatch
from lbctl.agent.readings import GpuReading, GpuReadings
from lbctl.agent.watched import NoDriverError

LIMIT = 20.0
"""Seconds for the thread of a test."""


class Driver:
    """Returns or raises these one after another, then blocks."""

    def __init__(self, *readings: GpuReadings | Exception) -> None:
        self._left = list(readings)
        self.blocks = threading.Event()
        self.free = threading.Event()

    def open(self, devices: tuple[str, ...] | None) -> Driver:
        if self._left and isinstance(self._left[0], NoDriverError):
            raise self._next()
        return self

    def read(self) -> GpuReadings:
        found = self._next()
        if isinstance(found, Exception):
            raise found
        return found

    def close(self) -> None:
        pass

    def _next(self):
        if not self._left:
            self.blocks.set()
            self.free.wait(LIMIT)
            return GpuReadings(time.monotonic())
        return self._left.pop(0)


Watch = Callable[..., GpuWatch]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Return a function that starts a watch, which has all readings of its driver then."""
    monkeypatch.setattr(gpus, "INTERVAL", 0.0)
    drivers: list[Driver] = []
    watches: list[GpuWatch] = []

    def start(*readings: GpuReadings | Exception, devices: tuple[str, ...] | None = None) -> GpuWatch:
        driver = Driver(*readings)
        drivers.append(driver)
        watches.append(GpuWatch(devices, driver.open))
        watches[-1].start()
        assert driver.blocks.wait(LIMIT)
        return watches[-1]

    yield start
    for item in watches:
        item.stop()
    for driver in drivers:
        driver.free.set()


def gpu(**values: object) -> GpuReading:
    return GpuReading(0, "GPU-1", "NVIDIA H100 80GB HBM3", **values)  # type: ignore[arg-type]


def test_latest_is_the_newest_reading(watch: Watch):
    now = time.monotonic()
    watching = watch(GpuReadings(now - 1, (gpu(temperature=50.0),)), GpuReadings(now, (gpu(temperature=60.0),)))
    assert watching.latest(now + 1) == GpuReadings(now, (gpu(temperature=60.0),))


def test_each_xid_is_returned_once(watch: Watch):
    now = time.monotonic()
    watching = watch(*(GpuReadings(now, (gpu(xids=xids),)) for xids in ((31,), (), (79, 48), ())))
    first, second = watching.latest(now), watching.latest(now)
    assert first is not None
    assert second is not None
    assert [reading.gpus[0].xids for reading in (first, second)] == [(31, 79, 48), ()]


def test_blocked_driver_is_a_problem(watch: Watch):
    now = time.monotonic()
    watching = watch(GpuReadings(now, (gpu(),)))
    assert watching.latest(now + 6) == GpuReadings(now + 6, problem="the GPU driver has not responded for 6 s")


def test_driver_that_blocks_from_the_start_is_a_problem(watch: Watch):
    watching = watch()
    now = time.monotonic()
    assert watching.latest(now - LIMIT) is None
    readings = watching.latest(now + 100)
    assert readings is not None
    assert readings.problem.startswith("the GPU driver has not responded for 10")
    assert readings.is_starting


def test_machine_without_driver_has_a_note(watch: Watch):
    readings = watch(NoDriverError("the NVIDIA driver is not loaded")).latest(0.0)
    assert readings is not None
    assert (readings.problem, readings.note) == ("", "no GPU is monitored: the NVIDIA driver is not loaded")


def test_listed_devices_need_a_driver(watch: Watch):
    readings = watch(NoDriverError("the NVIDIA driver is not loaded"), devices=("0",)).latest(0.0)
    assert readings is not None
    assert (readings.problem, readings.note) == ("the NVIDIA driver is not loaded", "")


def test_driver_that_is_loaded_later_is_found(watch: Watch):
    now = time.monotonic()
    watching = watch(NoDriverError("the NVIDIA driver is not loaded"), GpuReadings(now, (gpu(),)))
    assert watching.latest(now) == GpuReadings(now, (gpu(),))


def test_unexpected_error_is_a_problem_until_the_next_reading(watch: Watch):
    now = time.monotonic()
    readings = watch(GpuReadings(now, (gpu(),)), ValueError("not a number")).latest(now)
    assert readings is not None
    assert (readings.problem, readings.gpus) == ("the GPUs cannot be read: not a number", ())
    watching = watch(ValueError("not a number"), GpuReadings(now, (gpu(),)))
    assert watching.latest(now) == GpuReadings(now, (gpu(),))


def test_empty_list_of_devices_opens_no_driver():
    watching = GpuWatch((), Driver(NoDriverError("opened")).open)
    watching.start()
    assert watching.latest(5.0) == GpuReadings(5.0, note="no GPU is monitored, as configured")


def test_missing_binding_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delitem(sys.modules, "lbctl.agent.nvml", raising=False)
    monkeypatch.setattr(amd, "amdsmi", lambda: None)
    with pytest.raises(NoDriverError, match=r"nvidia-ml-py is not installed: pip install 'lbctl\[agent\]'"):
        gpus._open_driver(None)


def test_amd_gpus_are_read_without_nvidia_driver(monkeypatch: pytest.MonkeyPatch):
    def absent(devices: tuple[str, ...] | None) -> None:
        raise NoDriverError("the NVIDIA driver is not loaded")

    class Smi:
        AmdSmiException = ValueError

        @staticmethod
        def amdsmi_init() -> None:
            pass

    monkeypatch.setattr(gpus, "_open_nvml", absent)
    monkeypatch.setattr(amd, "amdsmi", lambda: Smi)
    assert isinstance(gpus._open_driver(None), amd.AmdDevices)
