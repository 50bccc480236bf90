"""The Kubernetes Gateway API, as manifests for a gateway of any class."""

from lbctl.targets.gateway_api.target import TARGET

__all__ = ["TARGET"]
