"""Monitors NVIDIA GPUs and their MIG slices through NVML.

Values that the GPU does not support or that this user is not allowed to read are None. A lost GPU remains lost until
NVML is reinitialised, and handles become invalid when the driver restarts. The driver is therefore reopened after an
error, and every `REOPEN_INTERVAL` seconds while a monitored device cannot be read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pynvml as nvml

from lbctl.agent.readings import GpuReading, GpuReadings
from lbctl.agent.watched import NoDriverError, WatchedDevices

REOPEN_INTERVAL = 10.0
"""Seconds between attempts to reopen the driver while a monitored device cannot be read."""
_MAX_XIDS = 100
"""Maximum number of XID errors per GPU in one reading. Any others are included in the next reading."""
_NO_INSTANCE = 0xFFFFFFFF
"""GPU instance ID of an event that applies to the whole GPU."""

_NO_DRIVER = {nvml.NVML_ERROR_LIBRARY_NOT_FOUND, nvml.NVML_ERROR_DRIVER_NOT_LOADED}
_DRIVER_ERRORS = _NO_DRIVER | {nvml.NVML_ERROR_UNINITIALIZED, nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH}
_GPU_ERRORS = {nvml.NVML_ERROR_GPU_IS_LOST, nvml.NVML_ERROR_RESET_REQUIRED}
_UNSUPPORTED = {
    nvml.NVML_ERROR_NOT_SUPPORTED,
    nvml.NVML_ERROR_NO_PERMISSION,
    nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    nvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    nvml.NVML_ERROR_DEPRECATED,
}
_EXPLANATIONS = {
    nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "the NVIDIA driver's library libnvidia-ml.so.1 is not installed",
    nvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    nvml.NVML_ERROR_UNINITIALIZED: "the NVIDIA driver was restarted",
    nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the NVIDIA driver and its library have different versions: "
    "restart the machine, or reload the driver and restart the agent",
    nvml.NVML_ERROR_NO_PERMISSION: "the agent's user cannot access the GPU: grant access to /dev/nvidia*",
    nvml.NVML_ERROR_GPU_IS_LOST: "the GPU is lost: reset it, or restart the machine",
    nvml.NVML_ERROR_RESET_REQUIRED: "the GPU must be reset",
}
_SLOWDOWNS = {
    nvml.nvmlClocksEventReasonSwPowerCap: "power_cap",
    nvml.nvmlClocksEventReasonHwSlowdown: "hw_slowdown",
    nvml.nvmlClocksEventReasonSwThermalSlowdown: "sw_thermal",
    nvml.nvmlClocksEventReasonHwThermalSlowdown: "hw_thermal",
    nvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "hw_power_brake",
}
# If two functions are listed for a value, the second is for drivers that lack the first.
_UTILIZATION = (nvml.nvmlDeviceGetUtilizationRates,)
_MEMORY = (lambda gpu: nvml.nvmlDeviceGetMemoryInfo(gpu, nvml.nvmlMemory_v2), nvml.nvmlDeviceGetMemoryInfo)
_TEMPERATURE = (
    lambda gpu: nvml.nvmlDeviceGetTemperatureV(gpu, nvml.NVML_TEMPERATURE_GPU),
    lambda gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
)
_POWER = (nvml.nvmlDeviceGetPowerUsage,)
_CLOCK = (lambda gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),)
_MAX_CLOCK = (lambda gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),)
_CLOCK_EVENTS = (nvml.nvmlDeviceGetCurrentClocksEventReasons, nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
_ECC = (
    lambda gpu: nvml.nvmlDeviceGetTotalEccErrors(gpu, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC),
)
_REMAPPED_ROWS = (nvml.nvmlDeviceGetRemappedRows,)


@dataclass(slots=True)
class _Gpu:
    """A GPU with at least one monitored device."""

    handle: Any
    device: GpuReading
    """A reading of the GPU in which all values are unknown."""
    slices: list[tuple[Any, GpuReading]]
    """Handle and device of each monitored MIG slice; empty if the whole GPU is monitored."""
    max_clock: int | None
    """The GPU's maximum SM clock, in MHz."""
    events: Any = None
    """Event set for XID errors; None if the GPU does not report them."""


@dataclass(slots=True)
class _Values:
    """Reads a device's values. `error` is the most recent error, and `count` the number of values returned."""

    handle: Any
    count: int = 0
    error: Any = None

    def get(self, functions: tuple[Callable[[Any], Any], ...]) -> Any:
        """Return the value of the first function that the driver supports, or None.

        Raises NVMLError if the driver or the whole GPU cannot be read.
        """
        for function in functions:
            try:
                value = function(self.handle)
            except nvml.NVMLError as error:
                if error.value in _DRIVER_ERRORS | _GPU_ERRORS:
                    raise
                self.error = error
                if error.value not in _UNSUPPORTED:
                    return None
            else:
                self.count += 1
                return value
        return None


class NvmlDevices:
    """The monitored GPUs and MIG slices on this machine."""

    def __init__(self, devices: tuple[str, ...] | None, clock: Callable[[], float] = time.monotonic) -> None:
        """Open the driver. Raises NoDriverError if it is not installed or not loaded.

        After any other error, `read` retries and reports the problem.
        """
        self._devices = WatchedDevices(devices)
        self._all = devices is None
        self._clock = clock
        self._opened = False
        self._reopen_at = 0.0
        self._gpus: list[_Gpu] = []
        self._failures: dict[int, str] = {}
        self._denied = False
        self._note = ""
        try:
            self._open()
        except nvml.NVMLError as error:
            if error.value in _NO_DRIVER:
                raise NoDriverError(explain(error)) from None

    def read(self) -> GpuReadings:
        """Poll all monitored devices."""
        try:
            if not self._opened:
                self._open()
            devices = self._read()
        except nvml.NVMLError as error:
            self.close()
            return GpuReadings(self._clock(), problem=explain(error))
        if any(device.problem for device in devices) and self._clock() >= self._reopen_at:
            self.close()
            with suppress(nvml.NVMLError):  # the next reading tries again and reports the error
                self._open()
        problem, note = "", self._note
        if not devices and self._all:
            problem = _EXPLANATIONS[nvml.NVML_ERROR_NO_PERMISSION] if self._denied else ""
            note = "" if self._denied else "no GPU is monitored: the NVIDIA driver does not list any GPUs"
        return GpuReadings(self._clock(), devices, problem, note)

    def close(self) -> None:
        """Close the driver. `read` reopens it."""
        for gpu in self._gpus:
            if gpu.events is not None:
                with suppress(nvml.NVMLError):
                    nvml.nvmlEventSetFree(gpu.events)
        self._gpus = []
        if self._opened:
            self._opened = False
            with suppress(nvml.NVMLError):
                nvml.nvmlShutdown()

    def _open(self) -> None:
        nvml.nvmlInit()
        self._opened = True
        self._reopen_at = self._clock() + REOPEN_INTERVAL
        try:
            self._list_gpus()
        except nvml.NVMLError:
            self.close()
            raise

    def _list_gpus(self) -> None:
        self._failures, self._denied, self._note = {}, False, ""
        for index in range(nvml.nvmlDeviceGetCount()):
            try:
                gpu = self._gpu(index)
            except nvml.NVMLError as error:
                if error.value in _DRIVER_ERRORS:
                    raise
                self._fail(index, error)
            else:
                if gpu is not None:
                    self._gpus.append(gpu)

    def _fail(self, index: int, error: Any) -> None:
        """Record a GPU that cannot be opened. If all GPUs are monitored, other users' GPUs are ignored."""
        if self._all and error.value == nvml.NVML_ERROR_NO_PERMISSION:
            self._denied = True
        else:
            self._failures[index] = explain(error)

    def _gpu(self, index: int) -> _Gpu | None:
        """Open a GPU. Return None if it is not monitored."""
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = str(nvml.nvmlDeviceGetUUID(handle))
        values = _Values(handle)
        device = GpuReading(
            self._devices.index(uuid, index),
            uuid,
            model=str(values.get((nvml.nvmlDeviceGetName,)) or ""),
            pci=str(getattr(values.get((nvml.nvmlDeviceGetPciInfo,)), "busId", "")),
        )
        slices = [(part, replace(device, uuid=name, instance=instance)) for part, name, instance in _slices(handle)]
        watched = [(part, item) for part, item in slices if self._devices.includes(item, uuid)]
        if not watched and (slices or not self._devices.includes(device)):
            return None
        gpu = _Gpu(handle, device, watched, values.get(_MAX_CLOCK))
        self._register(gpu)
        return gpu

    def _register(self, gpu: _Gpu) -> None:
        try:
            events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            self._without_xids(gpu, error)
            return
        try:
            nvml.nvmlDeviceRegisterEvents(gpu.handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError as error:
            with suppress(nvml.NVMLError):
                nvml.nvmlEventSetFree(events)
            self._without_xids(gpu, error)
        else:
            gpu.events = events

    def _without_xids(self, gpu: _Gpu, error: Any) -> None:
        gpu.events = None
        self._note = f"the driver does not report XID errors for GPU {gpu.device.index}: {explain(error)}"

    def _read(self) -> tuple[GpuReading, ...]:
        return self._devices.with_missing((item for gpu in self._gpus for item in self._read_gpu(gpu)), self._failures)

    def _read_gpu(self, gpu: _Gpu) -> Iterator[GpuReading]:
        events: list[tuple[int, str]] = []
        try:
            events = self._events(gpu)
            whole = _read_values(gpu)
        except nvml.NVMLError as error:
            if error.value in _DRIVER_ERRORS:
                raise
            whole = replace(gpu.device, problem=explain(error))
        for handle, device in gpu.slices or [(None, gpu.device)]:
            reading = whole if handle is None else _read_slice(handle, device, whole)
            xids = tuple(code for code, instance in events if instance in ("", device.instance) or handle is None)
            yield replace(reading, xids=xids)

    def _events(self, gpu: _Gpu) -> list[tuple[int, str]]:
        """Return the XID errors since the last call, each with its GPU instance ("" if it applies to the whole GPU)."""
        events: list[tuple[int, str]] = []
        while gpu.events is not None and len(events) < _MAX_XIDS:
            try:
                event = nvml.nvmlEventSetWait_v2(gpu.events, 0)
            except nvml.NVMLError as error:
                if error.value in _DRIVER_ERRORS:
                    raise
                if error.value in _UNSUPPORTED:
                    self._without_xids(gpu, error)
                break
            if event.eventType == nvml.nvmlEventTypeXidCriticalError:
                instance = "" if event.gpuInstanceId == _NO_INSTANCE else str(event.gpuInstanceId)
                events.append((int(event.eventData), instance))
        return events


def explain(error: Any) -> str:
    """Explain an NVMLError, and include how to fix it if this is known."""
    return _EXPLANATIONS.get(error.value) or f"NVML reports: {error}"


def _slices(gpu: Any) -> Iterator[tuple[Any, str, str]]:
    """Yield the handle, UUID and GPU instance of one MIG slice per GPU instance."""
    values = _Values(gpu)
    mode = values.get((nvml.nvmlDeviceGetMigMode,))
    if mode is None or mode[0] != nvml.NVML_DEVICE_MIG_ENABLE:
        return
    found = set()
    for index in range(values.get((nvml.nvmlDeviceGetMaxMigDeviceCount,)) or 0):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
            instance = str(nvml.nvmlDeviceGetGpuInstanceId(handle))
            uuid = str(nvml.nvmlDeviceGetUUID(handle))
        except nvml.NVMLError as error:
            if error.value in _DRIVER_ERRORS | _GPU_ERRORS:
                raise
            continue  # slice indices can have gaps
        if instance not in found:
            found.add(instance)
            yield handle, uuid, instance


def _read_values(gpu: _Gpu) -> GpuReading:
    """Read a whole GPU. Raises NVMLError if it returns no values at all."""
    values = _Values(gpu.handle)
    utilization, memory = values.get(_UTILIZATION), values.get(_MEMORY)
    power, clock = values.get(_POWER), values.get(_CLOCK)
    temperature, reasons = values.get(_TEMPERATURE), values.get(_CLOCK_EVENTS)
    ecc, rows = values.get(_ECC), values.get(_REMAPPED_ROWS)
    if not values.count:
        raise values.error
    return replace(
        gpu.device,
        utilization=None if utilization is None else utilization.gpu / 100,
        memory_free=None if memory is None else int(memory.free),
        memory_used=None if memory is None else int(memory.used),
        temperature=None if temperature is None else float(temperature),
        power=None if power is None else power / 1000,
        clock=min(clock / gpu.max_clock, 1.0) if clock is not None and gpu.max_clock else None,
        slowdowns=frozenset(name for bit, name in _SLOWDOWNS.items() if (reasons or 0) & bit),
        ecc_errors=None if ecc is None else int(ecc),
        remap_failed=None if rows is None else bool(rows[3]),
    )


def _read_slice(handle: Any, device: GpuReading, whole: GpuReading) -> GpuReading:
    """Read a MIG slice, with its own memory but its GPU's temperature, power, clock and errors."""
    if whole.problem:
        return replace(device, problem=whole.problem)
    values = _Values(handle)
    try:
        memory = values.get(_MEMORY)
    except nvml.NVMLError as error:
        if error.value in _DRIVER_ERRORS:
            raise
        return replace(device, problem=explain(error))
    if memory is None and values.error.value not in _UNSUPPORTED:
        return replace(device, problem=explain(values.error))
    return replace(
        whole,
        uuid=device.uuid,
        instance=device.instance,
        utilization=None,
        memory_free=None if memory is None else int(memory.free),
        memory_used=None if memory is None else int(memory.used),
    )
