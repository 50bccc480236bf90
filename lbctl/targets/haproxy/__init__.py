"""HAProxy 2.6 and later: one haproxy.cfg."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.own_lines import OwnLinesPlace
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.ir.weight import Weight
from lbctl.targets.haproxy.capabilities import CAPABILITIES
from lbctl.targets.target import Bundle, Capability, Complaint, Shedding, Target, Version

_PLACES = {
    "global": OwnLinesPlace(in_fragments=False),
    "frontend": OwnLinesPlace("listeners"),
    "backend": OwnLinesPlace("pools"),
}


@dataclass(frozen=True, slots=True)
class Haproxy:
    """The target for HAProxy. It has no state, and `render` builds everything from scratch."""

    kind: str = "haproxy"
    """Name in the registry of targets."""
    title: str = "HAProxy"
    """Name shown to users."""
    binary: str = "haproxy"
    """Name of the program."""
    install_hint: str = "apt-get install haproxy"
    """Command that installs HAProxy."""
    wheel: str = ""
    """Python distribution that contains the program; empty if there is none."""
    forms: Sequence[str] = ("yaml",)
    """Formats of the configuration."""
    served_by_xds: bool = False
    """Whether `serve` sends resources to the proxy over xDS."""
    counted_with: Sequence[str] = ("runtime_api",)
    """Settings of the proxy's entry that `serve` needs in order to read its request counts."""
    done_by_control_plane: frozenset[str] = frozenset()
    """Features that `serve` adds to this proxy."""
    compares_hashes: bool = True
    retries_grpc: bool = False
    """Whether the proxy accepts API keys whose key file contains only the hash."""
    prefers_idle_replicas: bool = True
    """Whether least connections prefers an idle replica, regardless of its weight."""
    reads_bodies: bool = True
    """Whether the proxy can read a request's body to choose a route or a replica."""
    versions: Sequence[Version] = ((2, 6), (2, 8), (3, 0), (3, 2))
    """Versions for which rendering differs, oldest first."""
    fragment_example: str = "/etc/haproxy/lbctl.cfg"
    """Example path of a fragment."""
    service_config: str = "/etc/haproxy/haproxy.cfg"
    """Configuration file read by the distribution's service."""

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        """Map each feature ID to whether and how HAProxy supports the feature."""
        return CAPABILITIES

    @property
    def own_line_places(self) -> Mapping[str, OwnLinesPlace]:
        """Return the keys of `include` that HAProxy supports."""
        return _PLACES

    def sheds(self, pool: Pool, have_fallback: Sequence[bool]) -> Shedding:
        """Return the mode in which all replicas are counted, if a route to the pool has no fallback."""
        return "none" if pool.load_shedding is None or all(have_fallback) else "all"

    def readmission(self, pool: Pool) -> str:
        """Return the number of checks that a replica must pass."""
        from lbctl.targets.haproxy.health import readmission

        return readmission(pool)

    def unfit_for_service(self, view: View) -> str:
        """Return a problem if HAProxy is started as root and no user is configured."""
        return "" if view.proxy.user else "HAProxy would run as root, because user, group and chroot are not set"

    def log_files(self, view: View) -> Sequence[str]:  # noqa: ARG002 -- for other kinds
        """Return an empty list, because HAProxy writes to inherited descriptors."""
        return ()

    def companions(self, proxy: Proxy, pools: Sequence[Pool]) -> Sequence[str]:
        """Return the picker's script and the map of server slots, if the proxy has them."""
        from lbctl.targets.haproxy.process import companions

        return companions(proxy, pools)

    def render(self, view: View, form: str = "yaml") -> Bundle:  # noqa: ARG002 -- haproxy.cfg has one form
        """Render a view to haproxy.cfg and the files that it reads."""
        from lbctl.targets.haproxy.render import render

        return render(view)

    def diagnostics(self, view: View) -> tuple[Diagnostic, ...]:
        """Return the diagnostics that `render` reports for this view, without rendering files."""
        from lbctl.targets.haproxy.render import diagnostics

        return diagnostics(view)

    def quantised_weights(self, pool: Pool, weights: tuple[Weight, ...]) -> list[int]:
        """Return HAProxy's own weights for the replicas of `pool`, given their `weights`, in the same order."""
        from lbctl.targets.haproxy.servers import haproxy_weights

        return haproxy_weights(pool, weights)

    def balancing(self, view: View, shares: Mapping[str, float], pool: str) -> str:  # noqa: ARG002 -- for other kinds
        """Return the pool's algorithm; for HAProxy, it does not depend on the other pools of a split."""
        return view.pools[pool].balance.name

    def refusals(self, view: View) -> Iterable[Diagnostic]:
        """Yield the errors that make lbctl reject a fleet with this proxy."""
        from lbctl.targets.haproxy.process import refusals

        return refusals(view)

    def served(self, view: View) -> View:
        """Return the view itself, because this proxy serves all of it."""
        return view

    def object_names(self, view: View) -> Collection[tuple[str, str, str]]:  # noqa: ARG002 -- for Kubernetes objects
        """Return an empty list, because this proxy runs as a process."""
        return ()

    def check_command(self, binary: str, prefix: str, main: str) -> list[str]:  # noqa: ARG002 -- `-c` writes nothing
        """Return the command that checks the file `main`."""
        from lbctl.targets.haproxy.check import command

        return command(binary, main)

    def complaints(self, output: str, bundle: Bundle) -> Iterable[Complaint]:
        """Return the errors in the output of the checker."""
        from lbctl.targets.haproxy.check import complaints

        return complaints(output, bundle)


TARGET: Target = Haproxy()
