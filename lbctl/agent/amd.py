"""Monitors AMD GPUs through amdsmi, AMD's Python binding for ROCm.

This module is based on the amdsmi 7.0.2 source code and has been tested only with a stand-in for amdsmi, not on an AMD
GPU. amdsmi functions return "N/A" for values that a GPU does not provide, and do not report XID errors or row-remap
failures.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import time
from contextlib import suppress
from dataclasses import replace
from types import ModuleType
from typing import Any

from lbctl.agent.readings import GpuReading, GpuReadings
from lbctl.agent.watched import NoDriverError, WatchedDevices

_VIOLATIONS = {
    "active_ppt_pwr": "power_cap",
    "active_prochot_thrm": "hw_thermal",
    "active_socket_thrm": "hw_thermal",
    "active_vr_thrm": "hw_thermal",
    "active_hbm_thrm": "hw_thermal",
}
_POWERS = ("socket_power", "current_socket_power", "average_socket_power")
"""Keys for the power in watts; which one is set depends on the GPU and the version."""
_MIB = 2**20


@functools.cache
def amdsmi() -> ModuleType | None:
    """Import amdsmi once. Return None if amdsmi or the driver library that it needs is not installed."""
    if importlib.util.find_spec("amdsmi") is None:
        return None
    try:
        return importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError, AttributeError):  # without libamd_smi.so
        return None


class AmdDevices:
    """The monitored AMD GPUs on this machine."""

    def __init__(self, devices: tuple[str, ...] | None, smi: ModuleType | Any) -> None:
        """Open the driver through the amdsmi module. Raises NoDriverError if it cannot be opened."""
        self._devices = WatchedDevices(devices)
        self._all = devices is None
        self._smi = smi
        try:
            smi.amdsmi_init()
        except smi.AmdSmiException as error:
            raise NoDriverError(f"the AMD driver cannot be opened: {_text(error)}") from None

    def read(self) -> GpuReadings:
        """Poll all monitored GPUs."""
        gpus: list[GpuReading] = []
        failures: dict[int, str] = {}
        try:
            handles = self._smi.amdsmi_get_processor_handles()
        except self._smi.AmdSmiException as error:
            return GpuReadings(time.monotonic(), problem=f"the AMD driver cannot be read: {_text(error)}")
        for index, handle in enumerate(handles):
            try:
                gpu = self._device(index, handle)
            except self._smi.AmdSmiException as error:
                failures[index] = _text(error)
            else:
                if self._devices.includes(gpu):
                    gpus.append(self._read_gpu(handle, gpu))
        found = self._devices.with_missing(gpus, failures)
        note = "no GPU is monitored: the AMD driver does not list any GPUs" if self._all and not found else ""
        return GpuReadings(time.monotonic(), found, note=note)

    def close(self) -> None:
        """Close the driver."""
        with suppress(self._smi.AmdSmiException):
            self._smi.amdsmi_shut_down()

    def _device(self, index: int, handle: Any) -> GpuReading:
        uuid = str(self._smi.amdsmi_get_gpu_device_uuid(handle))
        asic = self._get("amdsmi_get_gpu_asic_info", handle) or {}
        return GpuReading(
            self._devices.index(uuid, index),
            uuid,
            model=str(asic.get("market_name", "")),
            pci=str(self._get("amdsmi_get_gpu_device_bdf", handle) or ""),
        )

    def _get(self, function: str, *arguments: Any) -> Any:
        """Return a value, or None if the GPU does not provide the value or this amdsmi version lacks the function."""
        try:
            return getattr(self._smi, function)(*arguments)
        except (AttributeError, self._smi.AmdSmiException):
            return None

    def _read_gpu(self, handle: Any, gpu: GpuReading) -> GpuReading:
        activity = self._get("amdsmi_get_gpu_activity", handle)
        memory = self._get("amdsmi_get_gpu_vram_usage", handle)
        temperature = self._temperature(handle)
        power = self._get("amdsmi_get_power_info", handle)
        clocks = self._get("amdsmi_get_clock_info", handle, self._smi.AmdSmiClkType.GFX)
        ecc = self._get("amdsmi_get_gpu_total_ecc_count", handle)
        violations = self._get("amdsmi_get_violation_status", handle)
        if all(value is None for value in (activity, memory, temperature, power, clocks, ecc)):
            return replace(gpu, problem="the AMD driver returns no values for the GPU")
        utilization = _number(activity, "gfx_activity")
        total, used = _number(memory, "vram_total"), _number(memory, "vram_used")
        clock, max_clock = _number(clocks, "clk"), _number(clocks, "max_clk")
        errors = _number(ecc, "uncorrectable_count")
        return replace(
            gpu,
            utilization=None if utilization is None else utilization / 100,
            memory_free=None if total is None or used is None else int(total - used) * _MIB,
            memory_used=None if used is None else int(used) * _MIB,
            temperature=temperature,
            power=next((watts for key in _POWERS if (watts := _number(power, key))), None),
            clock=min(clock / max_clock, 1.0) if clock is not None and max_clock else None,
            slowdowns=frozenset(name for key, name in _VIOLATIONS.items() if (violations or {}).get(key) is True),
            ecc_errors=None if errors is None else int(errors),
        )

    def _temperature(self, handle: Any) -> float | None:
        """Return the hotspot temperature, or the edge temperature if that is the only sensor, in degrees Celsius."""
        smi, current = self._smi, self._smi.AmdSmiTemperatureMetric.CURRENT
        for sensor in (smi.AmdSmiTemperatureType.JUNCTION, smi.AmdSmiTemperatureType.EDGE):
            value = self._get("amdsmi_get_temp_metric", handle, sensor, current)
            if value is not None:
                return float(value)
        return None


def _number(values: Any, key: str) -> float | None:
    value = (values or {}).get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(error: Exception) -> str:
    return " ".join(str(error).split())
