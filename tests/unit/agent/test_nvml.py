"""NVIDIA GPUs, read by the real binding from a library that replaces the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from lbctl.agent.nvml import REOPEN_INTERVAL, NvmlDevices
from lbctl.agent.readings import GpuReading, GpuReadings
from lbctl.agent.watched import NoDriverError
from tests.support.nvml import A100, H100, L40S, FakeGpus, build, uuid

MIB = 2**20


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def machine(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeGpus]:
    """Return a function that creates a machine with these GPUs."""

    def create(*gpus: dict[str, object]) -> FakeGpus:
        fake = FakeGpus(tmp_path, *gpus, library=library)
        fake.load()
        monkeypatch.setenv("LBCTL_FAKE_NVML", fake.env["LBCTL_FAKE_NVML"])
        return fake

    return create


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def opened(clock: Clock) -> Iterator[Callable[..., NvmlDevices]]:
    """Return a function that opens the driver. It is closed after the test."""
    drivers: list[NvmlDevices] = []

    def create(*devices: str) -> NvmlDevices:
        drivers.append(NvmlDevices(devices or None, clock))
        return drivers[-1]

    yield create
    for driver in drivers:
        driver.close()


def names(readings: GpuReadings) -> list[str]:
    return [gpu.name for gpu in readings.gpus]


def problems(readings: GpuReadings) -> dict[str, str]:
    return {gpu.name: gpu.problem for gpu in readings.gpus if gpu.problem}


def test_values_of_a_gpu(machine, opened, clock):
    machine(H100)
    assert opened().read() == GpuReadings(
        at=clock.now,
        gpus=(
            GpuReading(
                index=0,
                uuid=uuid(0),
                model="NVIDIA H100 80GB HBM3",
                pci="00000000:18:00.0",
                utilization=0.97,
                memory_free=8062 * MIB,
                memory_used=(81559 - 551 - 8062) * MIB,
                temperature=56.0,
                power=542.31,
                clock=1.0,
                ecc_errors=0,
                remap_failed=False,
            ),
        ),
    )


def test_values_that_change_are_read_again(machine, opened):
    gpus = machine(H100)
    driver = opened()
    driver.read()
    gpus.set("gpu0", clock=990, temperature=91, ecc=2, remap_failed=1, memory_free=MIB)
    [gpu] = driver.read().gpus
    assert (gpu.clock, gpu.temperature, gpu.ecc_errors, gpu.remap_failed, gpu.memory_free) == (0.5, 91, 2, True, MIB)


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        ("0x1", set()),  # idle
        ("0x4", {"power_cap"}),
        ("0x48", {"hw_slowdown", "hw_thermal"}),
        ("0xa0", {"sw_thermal", "hw_power_brake"}),
    ],
)
def test_reasons_for_a_reduced_clock(machine, opened, bits, expected):
    machine(H100 | {"slowdowns": bits})
    [gpu] = opened().read().gpus
    assert gpu.slowdowns == expected


def test_unsupported_values_are_none(machine, opened):
    values = ("utilization", "memory_total", "power", "clock", "slowdowns", "ecc", "remap_failed", "mig")
    machine({key: value for key, value in H100.items() if key not in values})
    [gpu] = opened().read().gpus
    assert gpu.problem == ""
    assert gpu.temperature == 56
    absent = (gpu.utilization, gpu.memory_free, gpu.memory_used, gpu.power, gpu.clock, gpu.ecc_errors, gpu.remap_failed)
    assert set(absent) == {None}
    assert gpu.slowdowns == frozenset()


def test_older_drivers_lack_newer_functions(machine, opened):
    gpus = machine(L40S)
    gpus.set("driver", old=1)
    [gpu] = opened().read().gpus
    assert (gpu.memory_free, gpu.memory_used) == (5120 * MIB, (46068 - 5120) * MIB)
    assert (gpu.temperature, gpu.slowdowns) == (63, {"power_cap"})


def test_each_xid_is_in_one_reading(machine, opened):
    gpus = machine(H100, A100)
    gpus.xid(0, 31)  # before the agent
    driver = opened()
    assert [gpu.xids for gpu in driver.read().gpus] == [(), ()]
    gpus.xid(1, 79)
    assert [gpu.xids for gpu in driver.read().gpus] == [(), (79,)]
    assert [gpu.xids for gpu in driver.read().gpus] == [(), ()]
    gpus.xid(1, 79)
    assert [gpu.xids for gpu in driver.read().gpus] == [(), (79,)]


def test_gpu_without_events_has_a_note(machine, opened):
    machine(H100 | {"events": 0})
    readings = opened().read()
    assert readings.note == "the driver does not report XID errors for GPU 0: NVML reports: Not Supported"
    assert (problems(readings), readings.problem) == ({}, "")


def test_lost_gpu_has_a_problem_until_it_returns(machine, opened, clock):
    gpus = machine(H100, H100)
    driver = opened()
    driver.read()
    gpus.set("gpu1", lost=1)
    gpus.xid(1, 79)
    readings = driver.read()
    assert problems(readings) == {"1": "the GPU is lost: reset it, or restart the machine"}
    assert readings.gpus[1].xids == (79,)
    assert readings.gpus[1].model == "NVIDIA H100 80GB HBM3"
    assert readings.gpus[0].temperature == 56
    clock.now += REOPEN_INTERVAL
    assert problems(driver.read())
    gpus.set("gpu1", lost=0)
    assert problems(driver.read()) == {"1": "the GPU is lost: reset it, or restart the machine"}
    clock.now += REOPEN_INTERVAL
    driver.read()
    assert problems(driver.read()) == {}


def test_gpu_that_vanishes_keeps_its_index(machine, opened, clock):
    gpus = machine(H100, A100)
    driver = opened("0", "1")
    gpus.set("gpu0", gone=1)
    assert list(problems(driver.read())) == ["0"]
    clock.now += REOPEN_INTERVAL
    driver.read()
    readings = driver.read()
    assert problems(readings) == {"0": "the driver no longer lists the GPU"}
    assert [(gpu.name, gpu.model) for gpu in readings.gpus] == [("0", H100["name"]), ("1", A100["name"])]
    gpus.set("gpu0", gone=0)
    clock.now += REOPEN_INTERVAL
    driver.read()
    assert problems(driver.read()) == {}


def test_gpu_that_returns_no_value_has_a_problem(machine, opened):
    gpus = machine(H100)
    driver = opened()
    gpus.set("gpu0", error=pynvml.NVML_ERROR_UNKNOWN)
    assert problems(driver.read()) == {"0": "NVML reports: Unknown Error"}
    gpus.set("gpu0", error=pynvml.NVML_ERROR_RESET_REQUIRED)
    assert problems(driver.read()) == {"0": "the GPU must be reset"}


def test_driver_restart_is_a_problem_for_one_reading(machine, opened):
    gpus = machine(H100)
    driver = opened()
    gpus.set("driver", session=2)
    readings = driver.read()
    assert (readings.problem, readings.gpus) == ("the NVIDIA driver was restarted", ())
    readings = driver.read()
    assert (readings.problem, names(readings)) == ("", ["0"])
    gpus.xid(0, 48)
    assert driver.read().gpus[0].xids == (48,)


def test_unloaded_driver_is_a_problem_until_it_is_loaded(machine, opened):
    gpus = machine(H100)
    driver = opened()
    gpus.set("driver", down=1)
    driver.read()
    assert driver.read().problem == "the NVIDIA driver is not loaded"
    gpus.set("driver", down=0)
    assert problems(driver.read()) == {}


def test_version_mismatch_has_a_fix(machine, opened):
    gpus = machine(H100)
    gpus.set("driver", init=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    assert opened().read().problem == (
        "the NVIDIA driver and its library have different versions: "
        "restart the machine, or reload the driver and restart the agent"
    )


def test_driver_that_is_not_loaded_at_the_start(machine):
    gpus = machine(H100)
    gpus.set("driver", down=1)
    with pytest.raises(NoDriverError, match=r"^the NVIDIA driver is not loaded$"):
        NvmlDevices(None)


def test_machine_without_the_library(monkeypatch):
    def load(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", load)
    with pytest.raises(NoDriverError, match=r"libnvidia-ml\.so\.1 is not installed"):
        NvmlDevices(("0",))


def test_gpus_of_other_users_are_ignored(machine, opened):
    gpus = machine(H100, H100)
    gpus.set("gpu0", denied=1)
    readings = opened().read()
    assert (names(readings), readings.problem) == (["1"], "")


def test_listed_gpu_without_permission_has_a_problem(machine, opened):
    gpus = machine(H100)
    gpus.set("gpu0", denied=1)
    expected = "the agent's user cannot access the GPU: grant access to /dev/nvidia*"
    assert problems(opened("0").read()) == {"0": expected}
    assert opened().read().problem == expected


def test_machine_without_gpus_has_a_note(machine, opened):
    machine()
    readings = opened().read()
    assert (readings.problem, readings.note) == ("", "no GPU is watched: the NVIDIA driver does not list any GPUs")


@pytest.mark.parametrize("device", ["1", uuid(1), uuid(1).removeprefix("GPU-"), uuid(1).upper()])
def test_listed_gpu_by_index_or_uuid(machine, opened, device):
    machine(H100, A100)
    readings = opened(device).read()
    assert (names(readings), readings.gpus[0].model) == (["1"], A100["name"])


@pytest.mark.parametrize(
    ("device", "name"), [("7", "7"), ("0:3", "0:3"), ("GPU-aaaa", "GPU-aaaa"), ("GPU-aaaa:3", "GPU-aaaa:3")]
)
def test_device_that_the_driver_does_not_list(machine, opened, device, name):
    machine(H100)
    assert problems(opened("0", device).read()) == {name: f"the driver does not list device {device}"}


def test_all_slices_of_a_gpu_in_mig_mode(machine, opened):
    gpus = machine(A100, H100)
    gpus.slices(0, 7, 11)
    readings = opened().read()
    assert names(readings) == ["0:7", "0:11", "1"]
    gpu = readings.gpus[0]
    assert (gpu.memory_free, gpu.memory_used, gpu.utilization) == (9824 * MIB, 25 * MIB, None)
    assert (gpu.model, gpu.temperature, gpu.clock) == (A100["name"], 48, 1.0)
    assert gpu.uuid.startswith("MIG-")


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("0", ["0:3", "0:4"]),
        ("0:3", ["0:3"]),
        (f"{uuid(0)}:4", ["0:4"]),
        (f"{uuid(0).removeprefix('GPU-')}:4", ["0:4"]),
        ("MIG-5fd4f084-86f3-7a43-b711-4771313afc50", ["0:4"]),
        ("5fd4f084-86f3-7a43-b711-4771313afc50", ["0:4"]),
    ],
)
def test_listed_slices(machine, opened, device, expected):
    gpus = machine(A100)
    gpus.slices(0, 3, 4)
    assert names(opened(device).read()) == expected


def test_xid_of_a_slice_is_not_about_the_others(machine, opened):
    gpus = machine(A100)
    gpus.slices(0, 3, 4)
    driver = opened()
    gpus.xid(0, 94, instance=3)
    assert [gpu.xids for gpu in driver.read().gpus] == [(94,), ()]
    gpus.xid(0, 79)
    assert [gpu.xids for gpu in driver.read().gpus] == [(79,), (79,)]


def test_slice_that_is_removed_has_a_problem(machine, opened, clock):
    gpus = machine(A100)
    gpus.slices(0, 3, 4)
    driver = opened()
    gpus.set("gpu0.slice1", uuid=None, instance=None, memory_total=None)
    assert problems(driver.read()) == {"0:4": "NVML reports: Invalid Argument"}
    clock.now += REOPEN_INTERVAL
    driver.read()
    assert problems(driver.read()) == {"0:4": "the driver no longer lists the GPU"}


def test_lost_gpu_is_a_problem_of_its_slices(machine, opened):
    gpus = machine(A100)
    gpus.slices(0, 3, 4)
    driver = opened("0:3")
    gpus.set("gpu0", lost=1)
    assert problems(driver.read()) == {"0:3": "the GPU is lost: reset it, or restart the machine"}
