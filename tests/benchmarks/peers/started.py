"""A running system: its port, its processes, and what they use."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from tests.benchmarks.peers import processes
from tests.support.processes.control import ControlPlane


@dataclass(slots=True)
class Started:
    """A running system."""

    port: int
    data_path: list[int]
    """Process ids. The children of each process count too."""
    control: list[int] = field(default_factory=list)
    plane: ControlPlane | None = None
    """The control plane of a system of lbctl that has one."""
    restart: Callable[[], None] | None = None
    """Restarts the router, or the control plane with the picker, and updates the process ids."""
    _ended: tuple[float, float] = (0.0, 0.0)

    def used(self) -> tuple[float, float]:
        """Return the processor seconds of the data path, and of the control plane without the picker."""
        return self._ended[0] + self._seconds()[0], self._ended[1] + self._seconds()[1]

    def memory(self) -> tuple[float, float]:
        """Return the memory of the data path and of the control plane without the picker, in MiB."""
        return processes.memory(self.data_path), processes.memory(self.control, self.data_path)

    def forget(self, ending: Collection[int]) -> None:
        """Keep the processor time of processes that are going to end, and forget their ids."""
        before = self._seconds()
        self.data_path = [pid for pid in self.data_path if pid not in ending]
        self.control = [pid for pid in self.control if pid not in ending]
        after = self._seconds()
        self._ended = (self._ended[0] + before[0] - after[0], self._ended[1] + before[1] - after[1])

    def _seconds(self) -> tuple[float, float]:
        return processes.seconds(self.data_path), processes.seconds(self.control, self.data_path)
