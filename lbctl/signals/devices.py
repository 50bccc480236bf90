"""Which lines of a page are about one replica: by the labels that the fleet names, and by its GPUs.

A device is named as the exporters name it: an index (`0`), a UUID (`GPU-5fd4…`, with or without `GPU-`), or one of
these with a GPU instance behind a colon (`0:3`: instance 3 of GPU 0, a MIG slice). Without devices every GPU of the
page is the replica's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lbctl.signals.exposition import Labels

DEVICE = "{device}"
"""In a label's value: each of the replica's devices in its place."""


@dataclass(frozen=True, slots=True)
class GpuLabels:
    """How an exporter names GPUs. `names`: labels with an index or a UUID, the best name first; `instance`: the label
    of a slice, if it has one; `index`: a metric whose value is the index of the GPU that its labels name."""

    names: tuple[str, ...]
    instance: str = ""
    index: str = ""


@dataclass(frozen=True, slots=True)
class Selection:
    """`labels`: each with the values that are the replica's; `devices`: its GPUs, all where there are none."""

    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    devices: tuple[str, ...] = ()

    @property
    def everything(self) -> bool:
        return not (self.labels or self.devices)


EVERYTHING = Selection()


@dataclass(frozen=True, slots=True)
class Mine:
    """A selection on one page; `indices`: UUID → index, where the page says it apart."""

    selection: Selection
    gpus: GpuLabels | None = None
    indices: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, labels: Labels, whole: bool = False) -> bool:
        """Whether a line is about the replica. `whole`: what is said of a GPU holds for its slices too."""
        if any(labels.get(key) not in values for key, values in self.selection.labels):
            return False
        devices, gpus = self.selection.devices, self.gpus
        if not devices or gpus is None:
            return True
        names = self._names(labels, gpus)
        if not names:
            return True
        instance = labels.get(gpus.instance, "") if gpus.instance else ""
        return any(_is(device, names, instance, whole) for device in devices)

    def _names(self, labels: Labels, gpus: GpuLabels) -> set[str]:
        found = {plain(labels[name]) for name in gpus.names if labels.get(name)}
        return found | {self.indices[name] for name in found if name in self.indices}


def selection(match: tuple[tuple[str, str], ...], devices: tuple[str, ...], gpus: GpuLabels | None) -> Selection:
    """What `match_labels` and `devices` of a replica mean together. A label of the exporter's GPUs that is to be
    `{device}` stands for the devices themselves, so that UUIDs and slices match too."""
    labels: list[tuple[str, tuple[str, ...]]] = []
    for key, value in match:
        if DEVICE not in value:
            labels.append((key, (value,)))
        elif devices and not (gpus and key in gpus.names and value == DEVICE):
            labels.append((key, tuple(value.replace(DEVICE, device) for device in devices)))
    return Selection(tuple(labels), devices)


def plain(device: str) -> str:
    """A UUID as every exporter means it: without `GPU-`, in lower case."""
    return device.casefold().removeprefix("gpu-")


def _is(device: str, names: set[str], instance: str, whole: bool) -> bool:
    if plain(device) in names:
        return True
    gpu, _, part = device.rpartition(":")
    return bool(gpu) and plain(gpu) in names and (instance == part or (whole and not instance))
