"""The rendered routes to which policies are attached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lbctl.ir.proxies import KubernetesObjects
from lbctl.ir.snapshot import View
from lbctl.targets.manifests.gateway import Section
from lbctl.targets.manifests.http_route import PlacedRule
from lbctl.targets.manifests.objects import Tree
from lbctl.targets.manifests.tls import Certificates

GROUP = "gateway.envoyproxy.io"
API_VERSION = f"{GROUP}/v1alpha1"
DESTINATION_HEADER = "x-gateway-destination-endpoint"
"""Header in which the picker names the replica. Clients must not be able to send it."""


@dataclass(frozen=True, slots=True)
class Context:
    """A closed view and its rendered rules."""

    view: View
    objects: KubernetesObjects
    sections: Sequence[Section]
    """The Gateway's listeners."""
    placed: Sequence[PlacedRule]
    certificates: Certificates
    """The ConfigMaps that contain the fleet's CA bundles."""


def rule_reference(rule: PlacedRule) -> Tree:
    """Return the target reference with which a policy selects one rule."""
    return {
        "group": "gateway.networking.k8s.io",
        "kind": "HTTPRoute",
        "name": rule.http_route,
        "sectionName": rule.name,
    }
