"""Selects the lines of a page that belong to one replica, using labels from the fleet and the replica's GPUs.

Devices are named as in exporters: by an index (`0`), a UUID (`GPU-5fd4…`, with or without `GPU-`), or one of these with
a GPU instance after a colon (`0:3`: instance 3 of GPU 0, a MIG slice). Without devices, every GPU on the page belongs
to the replica.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lbctl.signals.exposition import Labels

DEVICE = "{device}"
"""Placeholder in a label's value; it is replaced by each of the replica's devices in turn."""


@dataclass(frozen=True, slots=True)
class GpuLabels:
    """The labels by which an exporter identifies GPUs."""

    names: tuple[str, ...]
    """Labels that contain an index or a UUID, in order of preference."""
    instance: str = ""
    """Label that identifies a slice, if any."""
    index: str = ""
    """Metric whose value is the index of the GPU that its labels identify."""
    renamed: tuple[str, ...] = ()
    """Names of the same label in different versions."""


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of a page that belongs to a replica."""

    labels: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Labels, each with the values that select the replica's lines."""
    devices: tuple[str, ...] = ()
    """The replica's GPUs; empty selects all."""

    @property
    def everything(self) -> bool:
        """Whether all lines belong to the replica."""
        return not (self.labels or self.devices)


ALL_LINES = Selection()


@dataclass(frozen=True, slots=True)
class LineFilter:
    """A selection applied to one page."""

    selection: Selection
    """Selection of the replica's GPUs and lines."""
    gpus: GpuLabels | None = None
    """Labels that identify GPUs on the page; None if it does not identify them."""
    indices: Mapping[str, str] = field(default_factory=dict)
    """Maps each UUID to its index, if the page reports it in a separate metric."""

    def __call__(self, labels: Labels, whole: bool = False) -> bool:
        """Return whether a line belongs to the replica.

        `whole`: whether the metric describes an entire GPU, and therefore each of its slices.
        """
        if any(self._value(labels, key) not in values for key, values in self.selection.labels):
            return False
        devices, gpus = self.selection.devices, self.gpus
        if not devices or gpus is None:
            return True
        names = self._names(labels, gpus)
        if not names:
            return True
        instance = labels.get(gpus.instance, "") if gpus.instance else ""
        return any(_matches_device(device, names, instance, whole) for device in devices)

    def _value(self, labels: Labels, key: str) -> str | None:
        value = labels.get(key)
        if value is None and self.gpus is not None and key in self.gpus.renamed:
            return next((labels[name] for name in self.gpus.renamed if name in labels), None)
        return value

    def _names(self, labels: Labels, gpus: GpuLabels) -> set[str]:
        identifiers = {normalized(labels[name]) for name in gpus.names if labels.get(name)}
        return identifiers | {self.indices[name] for name in identifiers if name in self.indices}


def selection(match: tuple[tuple[str, str], ...], devices: tuple[str, ...], gpus: GpuLabels | None) -> Selection:
    """Combine a replica's `match_labels` and `devices` into a selection.

    If a label that identifies GPUs has the value `{device}`, it selects the devices themselves, so that UUIDs and
    slices also match.
    """
    labels: list[tuple[str, tuple[str, ...]]] = []
    for key, value in match:
        if DEVICE not in value:
            labels.append((key, (value,)))
        elif devices and not (gpus and key in gpus.names and value == DEVICE):
            labels.append((key, tuple(value.replace(DEVICE, device) for device in devices)))
    return Selection(tuple(labels), devices)


def normalized(device: str) -> str:
    """Return a device's UUID in a form common to all exporters: without `GPU-`, in lower case."""
    return device.casefold().removeprefix("gpu-")


def _matches_device(device: str, names: set[str], instance: str, whole: bool) -> bool:
    if normalized(device) in names:
        return True
    gpu, _, part = device.rpartition(":")
    return bool(gpu) and normalized(gpu) in names and (instance == part or (whole and not instance))
