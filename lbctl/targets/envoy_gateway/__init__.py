"""Envoy Gateway, as manifests of the Gateway API and of Envoy Gateway's own policies."""

from lbctl.targets.envoy_gateway.target import TARGET

__all__ = ["TARGET"]
