"""AMD GPUs, read from a module that replaces amdsmi. Its results have the form of amdsmi 7.0.2."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import pytest

from lbctl.agent.amd import AmdDevices
from lbctl.agent.readings import GpuReading
from lbctl.agent.watched import NoDriverError

MIB = 2**20
UUIDS = ("bbff74a1-0000-1000-8081-7ebc4ce6a6b5", "33ff74a1-0000-1000-80b8-4ed2ea8ce3c6")


class SmiError(Exception):
    pass


class Sensor(IntEnum):
    EDGE = 0
    JUNCTION = 1


class Metric(IntEnum):
    CURRENT = 0


class Clock(IntEnum):
    GFX = 0


class Amdsmi:
    """Two MI300X. A handle is the number of a GPU."""

    AmdSmiException = SmiError
    AmdSmiTemperatureType = Sensor
    AmdSmiTemperatureMetric = Metric
    AmdSmiClkType = Clock

    def __init__(self) -> None:
        self.handles = [0, 1]
        self.values: dict[str, Any] = {
            "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI300X"},
            "amdsmi_get_gpu_device_bdf": "0000:05:00.0",
            "amdsmi_get_gpu_activity": {"gfx_activity": 93, "umc_activity": 20, "mm_activity": "N/A"},
            "amdsmi_get_gpu_vram_usage": {"vram_total": 196592, "vram_used": 180224},
            "amdsmi_get_power_info": {
                "socket_power": "N/A",
                "current_socket_power": 612,
                "average_socket_power": "N/A",
            },
            "amdsmi_get_clock_info": {"clk": 1050, "min_clk": 132, "max_clk": 2100},
            "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 4, "uncorrectable_count": 1},
            "amdsmi_get_violation_status": {
                "active_ppt_pwr": True,
                "active_socket_thrm": False,
                "active_vr_thrm": "N/A",
            },
            "temperatures": {Sensor.JUNCTION: 71},
        }

    def __getattr__(self, name: str) -> Any:
        if name not in self.values:
            raise AttributeError(name)

        def get(*_: Any) -> Any:
            value = self.values[name]
            if value is None:
                raise SmiError("AMDSMI_STATUS_NOT_SUPPORTED")
            return value

        return get

    def amdsmi_init(self) -> None:
        pass

    def amdsmi_shut_down(self) -> None:
        pass

    def amdsmi_get_processor_handles(self) -> list[int]:
        return self.handles

    def amdsmi_get_gpu_device_uuid(self, handle: int) -> str:
        return UUIDS[handle]

    def amdsmi_get_temp_metric(self, handle: int, sensor: Sensor, metric: Metric) -> int:
        if sensor not in self.values["temperatures"]:
            raise SmiError("AMDSMI_STATUS_NOT_SUPPORTED")
        return self.values["temperatures"][sensor]


def test_values_of_an_mi300x():
    [gpu] = AmdDevices(("1",), Amdsmi()).read().gpus
    assert gpu == GpuReading(
        index=1,
        uuid=UUIDS[1],
        model="AMD Instinct MI300X",
        pci="0000:05:00.0",
        utilization=0.93,
        memory_free=(196592 - 180224) * MIB,
        memory_used=180224 * MIB,
        temperature=71.0,
        power=612.0,
        clock=0.5,
        slowdowns=frozenset({"power_cap"}),
        ecc_errors=1,
    )


def test_thermal_violations_are_hardware_slowdowns():
    smi = Amdsmi()
    smi.values["amdsmi_get_violation_status"] = {"active_hbm_thrm": True}
    assert AmdDevices(("0",), smi).read().gpus[0].slowdowns == {"hw_thermal"}


def test_values_that_a_gpu_lacks_are_none():
    smi = Amdsmi()
    smi.values["amdsmi_get_gpu_activity"] = {"gfx_activity": "N/A"}
    smi.values["amdsmi_get_gpu_vram_usage"] = None
    smi.values["temperatures"] = {Sensor.EDGE: 48}  # MI200
    del smi.values["amdsmi_get_violation_status"]  # older versions
    gpu = AmdDevices(("0",), smi).read().gpus[0]
    assert (gpu.utilization, gpu.memory_free, gpu.memory_used) == (None, None, None)
    assert (gpu.temperature, gpu.slowdowns, gpu.problem) == (48.0, frozenset(), "")


def test_gpu_without_any_value_has_a_problem():
    smi = Amdsmi()
    for name in smi.values:
        smi.values[name] = {} if name == "temperatures" else None
    assert AmdDevices(None, smi).read().gpus[0].problem == "the AMD driver returns no values for the GPU"


def test_gpu_that_vanishes_has_a_problem():
    smi = Amdsmi()
    devices = AmdDevices(None, smi)
    devices.read()
    smi.handles = [1]
    readings = devices.read()
    assert [(gpu.name, gpu.uuid, gpu.problem) for gpu in readings.gpus] == [
        ("0", UUIDS[0], "the driver no longer lists the GPU"),
        ("1", UUIDS[1], ""),
    ]


def test_driver_that_cannot_be_read_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    def fail() -> None:
        raise SmiError("Error code:\n\t32 | AMDSMI_STATUS_NOT_INIT")

    smi = Amdsmi()
    devices = AmdDevices(None, smi)
    monkeypatch.setattr(smi, "amdsmi_get_processor_handles", fail)
    expected = "the AMD driver cannot be read: Error code: 32 | AMDSMI_STATUS_NOT_INIT"
    assert devices.read().problem == expected
    monkeypatch.setattr(smi, "amdsmi_init", fail)
    with pytest.raises(NoDriverError, match="the AMD driver cannot be opened"):
        AmdDevices(None, smi)
