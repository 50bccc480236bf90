"""Engines by model and GPU, from public measurements: two measured profiles, plus MLPerf results relative to them.

This module contains only data. Each figure is given with its source and spread. Use `--calibrate` to measure your own
replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from lbctl.compile.gpus import GPUS
from lbctl.simulate.engine import CostModel

RULE = (
    "The cost curves are fitted to the times measured for Llama-2-70B in fp16 on eight H100-SXM and on eight "
    "A100-80GB (Splitwise's `perf_model.csv`). The median error is 2 % and 1 % for a decoding step, and 19 % and 7 % "
    "for a prompt. The speed of another GPU or model is its MLPerf result per accelerator, divided by the result of "
    "llama2-70b on H100-SXM in the same round and scenario, as a geometric mean. The results are medians over "
    "submitters from v4.1 and v5.1, closed division, Offline and Server. The spread ranges from the lowest "
    "submitter's result to the highest. The ratio does not correct for precision (v5.1: fp4 on B200, fp8 elsewhere), "
    "software, or differences in request length between models. Half as many GPUs give half the speed. The size of "
    "the KV cache is 90 % of the memory minus the weights in fp16, divided by the bytes per token."
)
_MEASURED_GPUS = 8
_USABLE = 0.9
_SPLITWISE = "Splitwise perf_model.csv, llama2-70b, tensor parallel over 8"
_H100 = CostModel()
_A100 = CostModel(a=44.2e-3, b=0.2e-3, c=3.1e-7, p=0.154e-3)


@dataclass(frozen=True, slots=True)
class ModelMemory:
    """Memory requirements of a model."""

    weights: float
    """Size of the fp16 weights, in GB."""
    token: int
    """Size of one token in the fp16 KV cache, in bytes."""


MODELS: Mapping[str, ModelMemory] = MappingProxyType(
    {
        "llama-2-70b": ModelMemory(140.0, 327_680),
        "llama-3.1-8b": ModelMemory(16.0, 131_072),
        "mixtral-8x7b": ModelMemory(94.0, 131_072),
    }
)
"""Models with profiles."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A GPU's engine for a model."""

    model: str
    gpu: str
    """GPU type."""
    shape: CostModel
    """Costs measured on eight GPUs of the reference type."""
    speed: float = 1.0
    """Speed relative to `shape`."""
    low: float = 1.0
    """Speed according to the lowest published result."""
    high: float = 1.0
    """Speed according to the highest published result."""
    cells: int = 0
    """Number of rounds and scenarios compared; 0 for a direct measurement."""

    @property
    def source(self) -> str:
        """Source in which the figures were published."""
        return f"MLPerf v4.1, v5.1: {self.cells} cells" if self.cells else _SPLITWISE

    @property
    def spread(self) -> str:
        """Range of results relative to the speed, for example `71–113 %`; `-` if there is only one result."""
        if self.low == self.high:
            return "-"
        return f"{100 * self.low / self.speed:.0f}–{100 * self.high / self.speed:.0f} %"


_ALL = (
    Profile("llama-2-70b", "H100-SXM", _H100, low=0.83, high=1.10),
    Profile("llama-2-70b", "A100-80GB", _A100),
    Profile("llama-2-70b", "B200", _H100, 3.54, 2.52, 3.99, 4),
    Profile("llama-2-70b", "GH200", _H100, 1.39, 1.35, 1.44, 2),
    Profile("llama-2-70b", "H200", _H100, 1.21, 1.05, 1.41, 4),
    Profile("llama-2-70b", "MI325X", _H100, 1.06, 0.94, 1.11, 2),
    Profile("llama-2-70b", "MI300X", _H100, 0.91, 0.78, 1.02, 4),
    Profile("llama-2-70b", "H100-PCIe", _H100, 0.38, 0.37, 0.38, 2),
    Profile("llama-2-70b", "L40S", _H100, 0.15, 0.15, 0.15, 2),
    Profile("llama-3.1-8b", "B200", _H100, 4.39, 3.91, 4.71, 2),
    Profile("llama-3.1-8b", "H200", _H100, 1.88, 1.35, 2.12, 2),
    Profile("llama-3.1-8b", "H100-SXM", _H100, 1.41, 1.34, 1.48, 2),
    Profile("llama-3.1-8b", "L40S", _H100, 0.36, 0.32, 0.42, 2),
    Profile("mixtral-8x7b", "GH200", _H100, 2.71, 2.66, 2.76, 2),
    Profile("mixtral-8x7b", "H100-SXM", _H100, 2.26, 2.11, 2.38, 2),
    Profile("mixtral-8x7b", "H200", _H100, 2.14, 1.96, 2.65, 4),
    Profile("mixtral-8x7b", "MI325X", _H100, 2.04, 1.83, 2.24, 2),
    Profile("mixtral-8x7b", "MI300X", _H100, 1.63, 1.56, 1.71, 2),
)
PROFILES: Mapping[tuple[str, str], Profile] = MappingProxyType({(item.model, item.gpu): item for item in _ALL})
"""Maps each (model, GPU type) pair to its profile."""


def spread(model: str, gpus: Iterable[str | None]) -> str:
    """Return a sentence about the spread of the model's measurements on these GPU types."""
    profiles = (PROFILES.get((model, gpu or "")) for gpu in sorted({gpu or "" for gpu in gpus}))
    spreads = ", ".join(f"{item.gpu} {item.spread}" for item in profiles if item is not None)
    return f"Published results for {model} differ from these engines' speed: {spreads}."


def engine(model: str, gpu: str | None, count: int) -> CostModel:
    """Return the costs of a replica with `count` GPUs.

    Raises ValueError if they are unknown or the model does not fit into memory.
    """
    profile = PROFILES.get((model, gpu or ""))
    if profile is None:
        measured_gpus = ", ".join(sorted(each for name, each in PROFILES if name == model))
        raise ValueError(f"{model} was not measured on {gpu or 'a replica without a gpu'}; measured: {measured_gpus}")
    speed, shape = profile.speed * count / _MEASURED_GPUS, profile.shape
    memory = GPUS[profile.gpu].memory_gb or 0.0
    cache = int((count * memory * _USABLE - MODELS[model].weights) * 1e9 / MODELS[model].token)
    if cache < 1:
        raise ValueError(f"{model} with {MODELS[model].weights:g} GB in fp16 does not fit on {count} × {gpu}")
    return CostModel(shape.a / speed, shape.b / speed, shape.c / speed, shape.p / speed, shape.sequences, cache)
