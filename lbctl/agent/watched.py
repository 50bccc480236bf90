"""Selects a driver's monitored devices, and reports those that are missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from lbctl.agent.readings import GpuReading
from lbctl.signals.devices import normalized

MISSING = "the driver no longer lists the GPU"


class NoDriverError(Exception):
    """The machine lacks the driver or the library for this vendor's GPUs. The message names the missing part."""


class WatchedDevices:
    """The monitored devices of one driver.

    A device that the driver has listed keeps its index, and is reported if it disappears. When a GPU falls off the bus,
    a reinitialised driver assigns its index to another GPU.
    """

    def __init__(self, devices: tuple[str, ...] | None) -> None:
        self._devices = devices
        self._indices: dict[str, int] = {}
        """Maps each GPU's UUID to the index under which the driver first listed it."""
        self._seen: dict[str, GpuReading] = {}
        self._matched: set[str] = set()

    def index(self, uuid: str, listed: int) -> int:
        """Return the index under which the driver first listed this GPU. `listed` is its current index."""
        return self._indices.setdefault(uuid, listed)

    def includes(self, device: GpuReading, gpu: str = "") -> bool:
        """Return whether the device is monitored. For a MIG slice, `gpu` is the UUID of its GPU."""
        if self._devices is not None:
            names = _names(device, gpu)
            matched = {listed for listed in self._devices if _normalized(listed) in names}
            if not matched:
                return False
            self._matched |= matched
        self._seen.setdefault(device.name, device)
        return True

    def with_missing(self, read: Iterable[GpuReading], failures: Mapping[int, str]) -> tuple[GpuReading, ...]:
        """Return the sorted readings, with a problem for each monitored device that has no reading.

        `failures` maps the index of each GPU that the driver lists but cannot open to the reason.
        """
        found = {reading.name: reading for reading in read}
        for device in [*self._seen.values(), *self._never_listed(failures)]:
            if device.name not in found:
                found[device.name] = replace(device, problem=failures.get(device.index, device.problem or MISSING))
        return tuple(sorted(found.values(), key=_order))

    def _never_listed(self, failures: Mapping[int, str]) -> list[GpuReading]:
        if self._devices is None:
            return [GpuReading(index, uuid="", model="") for index in failures]
        return [_absent(device) for device in self._devices if device not in self._matched]


def _names(device: GpuReading, gpu: str) -> set[str]:
    """Return all names that `devices` can use for a device. A GPU's name also refers to each of its slices."""
    names = {str(device.index), _normalized(gpu or device.uuid)}
    if device.instance:
        names |= {f"{name}:{device.instance}" for name in names} | {_normalized(device.uuid)}
    return names


def _normalized(device: str) -> str:
    return normalized(device.casefold().removeprefix("mig-"))


def _absent(device: str) -> GpuReading:
    gpu, _, instance = device.partition(":")
    problem = f"the driver does not list device {device}"
    if gpu.isdecimal():
        return GpuReading(int(gpu), uuid="", model="", instance=instance, problem=problem)
    return GpuReading(-1, uuid=device, model="", problem=problem)


def _order(device: GpuReading) -> tuple[int, int, str]:
    return device.index, int(device.instance) if device.instance.isdecimal() else -1, device.uuid
