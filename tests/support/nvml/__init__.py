"""A library that replaces NVIDIA's driver library, so that the real binding reads GPUs that the test controls."""

from __future__ import annotations

import ctypes
import itertools
import subprocess
from pathlib import Path

from tests.support.paths import ROOT

Gpu = dict[str, object]

_MIB = 2**20
# Names, memory sizes and maximum clocks are the real GPUs'; the other values are usual under load.
H100: Gpu = {
    "name": "NVIDIA H100 80GB HBM3",
    "utilization": 97,
    "memory_total": 81559 * _MIB,
    "memory_reserved": 551 * _MIB,
    "memory_free": 8062 * _MIB,
    "temperature": 56,
    "power": 542310,
    "clock": 1980,
    "max_clock": 1980,
    "slowdowns": "0x0",
    "ecc": 0,
    "remap_failed": 0,
    "mig": 0,
}
A100: Gpu = H100 | {
    "name": "NVIDIA A100-SXM4-80GB",
    "memory_total": 81920 * _MIB,
    "memory_reserved": 569 * _MIB,
    "memory_free": 7214 * _MIB,
    "temperature": 48,
    "power": 318455,
    "clock": 1410,
    "max_clock": 1410,
}
L40S: Gpu = {
    "name": "NVIDIA L40S",
    "utilization": 88,
    "memory_total": 46068 * _MIB,
    "memory_reserved": 612 * _MIB,
    "memory_free": 5120 * _MIB,
    "temperature": 63,
    "power": 287900,
    "clock": 2490,
    "max_clock": 2520,
    "slowdowns": "0x4",
    "ecc": 0,
    "remap_failed": 0,
}
_PCI_BUSES = ("18", "2A", "3A", "5D", "9A", "AB", "BA", "DB")
_SLICE = {"memory_total": 9856 * _MIB, "memory_reserved": 7 * _MIB, "memory_free": 9824 * _MIB}
"""A slice 1g.10gb."""


def build(folder: Path) -> Path:
    """Compile the library into the folder, and return its path."""
    library = folder / "libnvidia-ml.so.1"
    command = ["cc", "-std=gnu11", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{library.name}", "-o", str(library)]
    subprocess.run([*command, str(ROOT / "tests/support/nvml/nvml.c")], check=True, timeout=60)
    return library


def uuid(gpu: int, kind: str = "GPU") -> str:
    return f"{kind}-5fd4f087-86f3-7a43-b711-4771313afc5{gpu:x}"


class FakeGpus:
    """The GPUs of a replaced driver. Keys are listed in nvml.c."""

    def __init__(self, folder: Path, *gpus: Gpu, library: Path | None = None) -> None:
        """Replace the driver by one with these GPUs. `library`: the result of `build`; None: it is built."""
        self._library = library or build(folder)
        self._file = folder / "gpus.txt"
        self._values: dict[str, object] = {}
        self._events = itertools.count(1)
        for index, gpu in enumerate(gpus):
            self.set(f"gpu{index}", uuid=uuid(index), pci=f"00000000:{_PCI_BUSES[index]}:00.0", **gpu)
        self._write()

    @property
    def env(self) -> dict[str, str]:
        """Environment of a process that reads these GPUs."""
        return {"LD_LIBRARY_PATH": str(self._library.parent), "LBCTL_FAKE_NVML": str(self._file)}

    def load(self) -> None:
        """Load the library into this process, where NVML's binding then finds it by its name."""
        ctypes.CDLL(str(self._library))

    def set(self, device: str, **values: object) -> None:
        """Set values of `driver`, `gpu0` or `gpu0.slice0`. None: the device does not support the value."""
        self._values.update({f"{device}.{key}": value for key, value in values.items()})
        self._write()

    def xid(self, gpu: int, code: int, instance: int | None = None) -> None:
        """Report an XID error, of the GPU or of one of its GPU instances."""
        place = "" if instance is None else f"@{instance}"
        self.set(f"gpu{gpu}", xid=f"{code}{place}#{next(self._events)}")

    def slices(self, gpu: int, *instances: int) -> None:
        """Put a GPU into MIG mode, with a slice for each of these GPU instances."""
        self.set(f"gpu{gpu}", mig=1)
        for number, instance in enumerate(instances):
            name = uuid(gpu, "MIG").replace("5fd4f087", f"5fd4f08{instance:x}")
            self.set(f"gpu{gpu}.slice{number}", uuid=name, instance=instance, **_SLICE)

    def _write(self) -> None:
        """Replace the file, so that a reader sees all lines or none of the change."""
        new = self._file.with_suffix(".new")
        new.write_text("".join(f"{key}={value}\n" for key, value in self._values.items() if value is not None))
        new.replace(self._file)
