"""Istio's own API, as manifests for its ingress gateway."""

from lbctl.targets.istio.target import TARGET

__all__ = ["TARGET"]
