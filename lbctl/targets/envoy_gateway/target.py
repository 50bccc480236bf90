"""Envoy Gateway as a target. The modules for rendering are imported only when something is rendered."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.own_lines import OwnLinesPlace
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.ir.weight import Weight
from lbctl.targets.envoy_gateway.capabilities import CAPABILITIES
from lbctl.targets.target import Bundle, Capability, Complaint, Shedding, Version


class EnvoyGateway:
    """The target for Envoy Gateway. It has no state, and `render` builds everything from scratch."""

    kind = "envoy-gateway"
    title = "Envoy Gateway"
    binary = "kubectl"
    install_hint = "see https://kubernetes.io/docs/tasks/tools/"
    wheel = ""
    forms: tuple[str, ...] = ("yaml",)
    served_by_xds = False
    counted_with = None
    done_by_control_plane: frozenset[str] = frozenset()
    compares_hashes = True
    retries_grpc = True
    prefers_idle_replicas = False
    reads_bodies = False
    versions: tuple[Version, ...] = ((1, 7), (1, 8), (1, 9))
    own_line_places: Mapping[str, OwnLinesPlace] = {}
    fragment_example = ""
    service_config = ""

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        """Map each feature id to whether and how Envoy Gateway supports the feature."""
        return CAPABILITIES

    def sheds(self, pool: Pool, have_fallback: Sequence[bool]) -> Shedding:  # noqa: ARG002 -- for other kinds
        """Return `none`, because Envoy Gateway has no load shedding."""
        return "none"

    def readmission(self, pool: Pool) -> str:
        """Return the duration of an ejection, which grows with the number of ejections."""
        if pool.passive is None:
            return ""
        return f"it receives requests again at least {pool.passive.ejection_time / 1000:g} s after its ejection"

    def unfit_for_service(self, view: View) -> str:  # noqa: ARG002 -- for other kinds
        """Return an empty string, because no service of a distribution reads the objects."""
        return ""

    def log_files(self, view: View) -> Sequence[str]:  # noqa: ARG002 -- for other kinds
        """Return an empty list, because the access logs belong to the gateway."""
        return ()

    def companions(self, proxy: Proxy, pools: Sequence[Pool]) -> Sequence[str]:  # noqa: ARG002 -- for other kinds
        """Return an empty list, because no configuration file is next to the objects."""
        return ()

    def render(self, view: View, form: str = "yaml") -> Bundle:  # noqa: ARG002 -- objects have one form
        """Render a view to one stream of objects and a kustomization."""
        from lbctl.targets.envoy_gateway.render import render

        return render(view)

    def diagnostics(self, view: View) -> tuple[Diagnostic, ...]:
        """Return the diagnostics of `render` for this view without rendering files."""
        from lbctl.targets.envoy_gateway.render import diagnostics

        return diagnostics(view)

    def quantised_weights(self, pool: Pool, weights: tuple[Weight, ...]) -> list[int]:  # noqa: ARG002 -- for other kinds
        """Return weights of replicas, in the same order, on the scale of the Backends' weights."""
        from lbctl.targets.manifests.classes import MAX_WEIGHT
        from lbctl.targets.replica_weights import quantise, rates

        return quantise(rates(weights), MAX_WEIGHT)

    def refusals(self, view: View) -> Iterable[Diagnostic]:
        """Yield the errors that cause a fleet with this kind to be rejected."""
        return (item for item in self.diagnostics(view) if item.severity == "error")

    def served(self, view: View) -> View:
        """Return the view without the routes that cannot be protected."""
        from lbctl.targets.envoy_gateway.render import served

        return served(view)

    def object_names(self, view: View) -> Collection[tuple[str, str, str]]:
        """Return (kind, namespace, name) of the objects, and of the Secrets and ConfigMaps that they need."""
        from lbctl.targets.envoy_gateway.render import object_names

        return object_names(view)

    def check_command(self, binary: str, prefix: str, main: str) -> list[str]:  # noqa: ARG002 -- kubectl needs no directory
        """Return the command that lets the API server of kubectl's current context validate the objects."""
        return [
            binary,
            "apply",
            "--server-side",
            "--dry-run=server",
            "--validate=strict",
            "--field-manager=lbctl",
            "-f",
            main,
        ]

    def complaints(self, output: str, bundle: Bundle) -> Iterable[Complaint]:
        """Return the errors in the output of kubectl."""
        from lbctl.targets.manifests.check import complaints

        return complaints(output, bundle)


TARGET = EnvoyGateway()
