"""The base of targets whose configuration consists of Kubernetes objects."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar, Protocol

from lbctl.base.diagnostics import Diagnostic
from lbctl.ir.own_lines import OwnLinesPlace
from lbctl.ir.pools import Pool
from lbctl.ir.proxies import Proxy
from lbctl.ir.snapshot import View
from lbctl.ir.weight import Weight
from lbctl.targets.target import Bundle, Complaint, Shedding


class Renderer(Protocol):
    """The module of a target that renders the objects."""

    def render(self, view: View) -> Bundle:
        """Render a view as one stream of objects and a kustomization."""

    def diagnostics(self, view: View) -> tuple[Diagnostic, ...]:
        """Return the diagnostics of `render` for this view."""

    def served(self, view: View) -> View:
        """Return the part of the view that the objects express; the whole view if they cannot be rendered."""

    def object_names(self, view: View) -> Collection[tuple[str, str, str]]:
        """Return (kind, namespace, name) of the objects, and of the Secrets and ConfigMaps that they need."""


class ManifestTarget(ABC):
    """A target without state. `kubectl` validates the objects, and no control plane drives the proxies."""

    binary = "kubectl"
    install_hint = "see https://kubernetes.io/docs/tasks/tools/"
    wheel = ""
    forms: tuple[str, ...] = ("yaml",)
    served_by_xds = False
    counted_with = None
    done_by_control_plane: frozenset[str] = frozenset()
    compares_hashes = True
    prefers_idle_replicas = False
    reads_bodies = False
    own_line_places: Mapping[str, OwnLinesPlace] = {}
    fragment_example = ""
    service_config = ""

    refers_to_inference_pools: ClassVar[bool] = False
    """Whether a route can refer to an existing InferencePool."""

    @property
    @abstractmethod
    def renderer(self) -> Renderer:
        """The rendering module, imported only when something is rendered."""

    def sheds(self, pool: Pool, have_fallback: Sequence[bool]) -> Shedding:  # noqa: ARG002 -- for other kinds
        """Return `none`, because none of these APIs supports load shedding."""
        return "none"

    def readmission(self, pool: Pool) -> str:  # noqa: ARG002 -- for other kinds
        """Return an empty string, because the API has no ejections, or one rule for all of them."""
        return ""

    def unfit_for_service(self, view: View) -> str:  # noqa: ARG002 -- for other kinds
        """Return an empty string, because a distribution's service does not read the objects."""
        return ""

    def log_files(self, view: View) -> Sequence[str]:  # noqa: ARG002 -- for other kinds
        """Return an empty list, because the access logs belong to the gateway."""
        return ()

    def companions(self, proxy: Proxy, pools: Sequence[Pool]) -> Sequence[str]:  # noqa: ARG002 -- for other kinds
        """Return an empty list, because the objects have no further configuration files next to them."""
        return ()

    def render(self, view: View, form: str = "yaml") -> Bundle:  # noqa: ARG002 -- objects have one form
        """Render a view as one stream of objects and a kustomization."""
        return self.renderer.render(view)

    def diagnostics(self, view: View) -> tuple[Diagnostic, ...]:
        """Return the diagnostics of `render` for this view without rendering files."""
        return self.renderer.diagnostics(view)

    def quantised_weights(self, pool: Pool, weights: tuple[Weight, ...]) -> list[int]:  # noqa: ARG002 -- for other kinds
        """Return the replicas' weights, in the same order, on the scale of backend weights in an HTTPRoute."""
        from lbctl.targets.manifests.classes import MAX_WEIGHT
        from lbctl.targets.replica_weights import quantise, rates

        return quantise(rates(weights), MAX_WEIGHT)

    def refusals(self, view: View) -> Iterable[Diagnostic]:
        """Yield the errors that make lbctl reject a fleet with this kind."""
        from lbctl.targets.manifests.findings import inference_pools

        errors = () if self.refers_to_inference_pools else tuple(inference_pools(view))
        return errors or (item for item in self.diagnostics(view) if item.severity == "error")

    def served(self, view: View) -> View:
        """Return the view without unprotected routes, and without replicas that the objects cannot express."""
        return self.renderer.served(view)

    def object_names(self, view: View) -> Collection[tuple[str, str, str]]:
        """Return (kind, namespace, name) of the objects, and of the Secrets and ConfigMaps that they need."""
        return self.renderer.object_names(view)

    def check_command(self, binary: str, prefix: str, main: str) -> list[str]:  # noqa: ARG002 -- kubectl needs no directory
        """Return the command that lets the API server of kubectl's current context validate the objects."""
        options = ("--server-side", "--dry-run=server", "--validate=strict", "--field-manager=lbctl")
        return [binary, "apply", *options, "-f", main]

    def complaints(self, output: str, bundle: Bundle) -> Iterable[Complaint]:
        """Return the errors in the output of kubectl."""
        from lbctl.targets.manifests.check import complaints

        return complaints(output, bundle)
