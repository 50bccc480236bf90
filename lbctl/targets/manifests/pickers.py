"""The pickers that a gateway's objects refer to. lbctl does not render them: the operator installs them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lbctl.base import ports
from lbctl.ir.proxies import KubernetesObjects
from lbctl.targets.manifests.names import SERVICE, names

PORT = ports.PICKER
"""Port of the Services, which does not depend on the address of the picker that `lbctl serve` starts."""


class Pickers:
    """The pickers of some pools.

    A gateway does not send the pool's name, so each of several pools has its own picker.
    """

    def __init__(self, objects: KubernetesObjects, pools: Iterable[str]) -> None:
        ordered = sorted(pools)
        parts = {pool: (objects.picker, *([pool] if len(ordered) > 1 else [])) for pool in ordered}
        by_parts = names(SERVICE, parts.values())
        self._namespace = objects.namespace
        self.services = {pool: by_parts[parts[pool]] for pool in ordered}
        """Maps each pool to the name of its picker's Service."""

    def notes(self) -> Iterator[str]:
        """Yield a note for each Service."""
        for pool, service in self.services.items():
            yield (
                f"pool {pool} needs `lbctl picker --pool {pool}` at the Service {service} in {self._namespace}, port "
                f"{PORT} (see docs/how-to/kubernetes-gateways.md)"
            )
