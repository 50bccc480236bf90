"""The Gateway API as a target."""

from __future__ import annotations

from collections.abc import Mapping

from lbctl.ir.snapshot import View
from lbctl.targets.gateway_api.capabilities import CAPABILITIES
from lbctl.targets.manifests.target import ManifestTarget, Renderer
from lbctl.targets.target import Capability, Version


class GatewayApi(ManifestTarget):
    """The target for the Gateway API."""

    kind = "gateway-api"
    title = "Gateway API"
    retries_grpc = False
    versions: tuple[Version, ...] = ((1, 4), (1, 5))
    refers_to_inference_pools = True

    @property
    def capabilities(self) -> Mapping[str, Capability]:
        """Map each feature ID to the API's support for the feature."""
        return CAPABILITIES

    @property
    def renderer(self) -> Renderer:
        """The rendering module, imported only when something is rendered."""
        from lbctl.targets.gateway_api import render

        return render

    def balancing(self, view: View, shares: Mapping[str, float], pool: str) -> str:  # noqa: ARG002 -- for other kinds
        """Return `pick` for an InferencePool. For other pools, the Gateway's class decides."""
        from lbctl.targets.gateway_api.backends import is_picked

        return "pick" if is_picked(view.pools[pool]) else ""


TARGET = GatewayApi()
