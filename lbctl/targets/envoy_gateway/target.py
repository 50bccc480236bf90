"""Envoy Gateway as a target."""

from __future__ import annotations

from collections.abc import Mapping

from lbctl.ir.pools import Pool
from lbctl.ir.snapshot import View
from lbctl.targets.envoy_gateway.capabilities import CAPABILITIES
from lbctl.targets.manifests.target import ManifestTarget, Renderer
from lbctl.targets.target import Capability, Version


class EnvoyGateway(ManifestTarget):
    """The target for Envoy Gateway."""

    kind = "envoy-gateway"
    title = "Envoy Gateway"
    retries_grpc = True
    versions: tuple[Version, ...] = ((1, 7), (1, 8), (1, 9))

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        """Map each feature ID to Envoy Gateway's support for the feature."""
        return CAPABILITIES

    @property
    def renderer(self) -> Renderer:
        """The rendering module, imported only when something is rendered."""
        from lbctl.targets.envoy_gateway import render

        return render

    def readmission(self, pool: Pool) -> str:
        """Return the duration of an ejection, which increases with each ejection."""
        if pool.passive is None:
            return ""
        return f"it receives requests again at least {pool.passive.ejection_time / 1000:g} s after its ejection"

    def balancing(self, view: View, shares: Mapping[str, float], pool: str) -> str:  # noqa: ARG002 -- the rule decides
        """Return the algorithm in the rule's policy, which applies to all of the rule's pools."""
        from lbctl.targets.envoy_gateway.traffic_policy import balancing

        return balancing(view, shares)


TARGET = EnvoyGateway()
