"""Istio as a target."""

from __future__ import annotations

from collections.abc import Mapping

from lbctl.ir.pools import Pool
from lbctl.ir.snapshot import View
from lbctl.ir.weight import Weight
from lbctl.targets.istio.capabilities import CAPABILITIES
from lbctl.targets.manifests.target import ManifestTarget, Renderer
from lbctl.targets.target import Capability, Version


class Istio(ManifestTarget):
    """The target for Istio."""

    kind = "istio"
    title = "Istio"
    retries_grpc = True
    versions: tuple[Version, ...] = ((1, 27),)

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        """Map each feature ID to Istio's support for the feature."""
        return CAPABILITIES

    @property
    def renderer(self) -> Renderer:
        """The rendering module, imported only when something is rendered."""
        from lbctl.targets.istio import render

        return render

    def quantised_weights(self, pool: Pool, weights: tuple[Weight, ...]) -> list[int]:
        """Return the replicas' weights in the endpoints of a ServiceEntry, in the same order."""
        from lbctl.targets.istio.service_entry import endpoint_weights

        return endpoint_weights(pool, weights)

    def balancing(self, view: View, shares: Mapping[str, float], pool: str) -> str:  # noqa: ARG002 -- for other kinds
        """Return the algorithm of the pool's DestinationRule. Istio does not use the picker."""
        from lbctl.targets.istio.destination_rule import algorithm

        return algorithm(view.pools[pool]).lower() or "hash"


TARGET = Istio()
