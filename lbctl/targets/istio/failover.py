"""The order in which Istio uses the replicas of a pool: by priority, then by distance.

Istio compares the labels in `failoverPriority` one by one, and an endpoint's rank is its first label that does not
match. A label with a value is compared only with the endpoint; other labels are compared with the gateway's own pod.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lbctl.ir.pools import KubernetesDiscovery, Pool, Replica
from lbctl.targets.manifests.objects import Tree

_REGION, _ZONE = "topology.kubernetes.io/region", "topology.kubernetes.io/zone"
"""Labels that Istio derives from nodes, for its own pods and the pods of a Service."""
_PRIORITY = "lbctl.internal/priority-at-most-"
"""Prefix of the labels for replicas with this or a better priority, that is, a lower number."""


@dataclass(frozen=True, slots=True)
class Failover:
    """Labels that rank the replicas of a pool."""

    priorities: tuple[int, ...]
    """Priorities of the replicas, sorted; empty if only the cluster knows the replicas."""
    places: tuple[str, ...]
    """Labels that determine the distance, in order."""

    def setting(self) -> Tree:
        """Return the `localityLbSetting`. The mesh's own setting is never used."""
        labels = [*(f"{_PRIORITY}{priority}=true" for priority in reversed(self.priorities[:-1])), *self.places]
        return {"enabled": True, "failoverPriority": labels} if labels else {"enabled": False}

    def labels(self, replica: Replica) -> dict[str, str]:
        """Return the labels of a replica's endpoint."""
        better = [priority for priority in self.priorities[:-1] if replica.priority <= priority]
        places = {_REGION: replica.region, _ZONE: replica.zone}
        near = {key: value for key in self.places if (value := places[key]) and value[-1].isalnum()}
        return {**{f"{_PRIORITY}{priority}": "true" for priority in better}, **near}


def failover(pool: Pool, replicas: Sequence[Replica]) -> Failover:
    """Return the labels that rank these replicas of a pool. Locations that no replica states are not compared."""
    priorities = tuple(sorted({replica.priority for replica in replicas}))
    if pool.locality is None:
        return Failover(priorities, ())
    is_discovered = isinstance(pool.discovery, KubernetesDiscovery)
    has_region = is_discovered or any(replica.region for replica in replicas)
    has_zone = is_discovered or any(replica.zone for replica in replicas)
    by_zone = has_zone and pool.locality.prefer == "zone"
    return Failover(priorities, (*([_REGION] if has_region else []), *([_ZONE] if by_zone else [])))
