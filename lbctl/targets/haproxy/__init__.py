"""HAProxy from version 2.6 on: one haproxy.cfg."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    """The target for HAProxy; it has no state, and `render` builds everything anew."""

    kind: str = "haproxy"
    """The name in the registry of targets."""
    title: str = "HAProxy"
    """The name for people."""
    binary: str = "haproxy"
    """The name of the program."""
    install_hint: str = "apt-get install haproxy"
    """The command that installs it."""
    wheel: str = ""
    """The package of the index that has the program; empty: there is none."""
    forms: Sequence[str] = ("yaml",)
    """The forms that its configuration can be written in."""
    served_by_xds: bool = False
    """Whether `serve` sends it resources by xDS."""
    counted_with: Sequence[str] = ("runtime_api",)
    """The settings of its entry that `serve` needs to read its counts of requests."""
    done_by_control_plane: frozenset[str] = frozenset()
    """The features that `serve` adds to the proxy."""
    compares_hashes: bool = True
    """Whether it accepts API keys of which the key file has only the hash."""
    prefers_idle_replicas: bool = True
    """Whether least connections ranks an idle replica first, whatever its weight."""
    reads_bodies: bool = True
    """Whether it can read a request's body to choose a route or a replica."""
    versions: Sequence[Version] = ((2, 6), (2, 8), (3, 0), (3, 2))
    """The versions that are rendered differently, the oldest first."""
    fragment_example: str = "/etc/haproxy/lbctl.cfg"
    """An example of the path of a fragment."""
    service_config: str = "/etc/haproxy/haproxy.cfg"
    """The configuration that the distribution's service reads."""

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        """Feature id → whether and how HAProxy supports the feature."""
        return CAPABILITIES

    @property
    def own_line_places(self) -> Mapping[str, OwnLinesPlace]:
        """The keys of `include` that a HAProxy may have."""
        return _PLACES

    def sheds(self, pool: Pool, have_fallback: Sequence[bool]) -> Shedding:
        """Return that all replicas count, where a route to the pool has no fallback."""
        return "none" if pool.load_shedding is None or all(have_fallback) else "all"

    def readmission(self, pool: Pool) -> str:
        """Return how many checks a replica has to pass."""
        from lbctl.targets.haproxy.health import readmission

        return readmission(pool)

    def unfit_for_service(self, view: View) -> str:
        """Return what becomes of a HAProxy that root starts without a user to work as."""
        return "" if view.proxy.user else "which would work as root: there is no user, group and chroot"

    def log_files(self, view: View) -> Sequence[str]:  # noqa: ARG002 -- for other kinds
        """Return nothing: HAProxy writes to the descriptors that it was given."""
        return ()

    def companions(self, proxy: Proxy, pools: Sequence[Pool]) -> Sequence[str]:
        """Return the script of picks and the map of server slots, where the proxy has them."""
        from lbctl.targets.haproxy.process import companions

        return companions(proxy, pools)

    def render(self, view: View, form: str = "yaml") -> Bundle:  # noqa: ARG002 -- haproxy.cfg has one form
        """Render a view to haproxy.cfg and the files that it reads."""
        from lbctl.targets.haproxy.render import render

        return render(view)

    def diagnostics(self, view: View) -> tuple[Diagnostic, ...]:
        """Return the diagnostics of `render` for this view without rendering files."""
        from lbctl.targets.haproxy.render import diagnostics

        return diagnostics(view)

    def quantised_weights(self, pool: Pool, weights: tuple[Weight, ...]) -> list[int]:
        """Return HAProxy's own weights for replicas of `pool` that have `weights`, in the same order."""
        from lbctl.targets.haproxy.servers import haproxy_weights

        return haproxy_weights(pool, weights)

    def refusals(self, view: View) -> Iterable[Diagnostic]:
        """Yield the errors for which a fleet with this proxy is not accepted."""
        from lbctl.targets.haproxy.process import refusals

        return refusals(view)

    def check_command(self, binary: str, prefix: str, main: str) -> list[str]:  # noqa: ARG002 -- `-c` writes nothing
        """Return the command that checks the file `main`."""
        from lbctl.targets.haproxy.check import command

        return command(binary, main)

    def complaints(self, output: str, bundle: Bundle) -> Iterable[Complaint]:
        """Return the errors in the output of the checker."""
        from lbctl.targets.haproxy.check import complaints

        return complaints(output, bundle)


TARGET: Target = Haproxy()
