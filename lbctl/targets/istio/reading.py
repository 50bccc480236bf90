"""How Istio's gateway reads a request. The mesh's settings determine which escapes in a path are decoded."""

from lbctl.targets.manifests.reading import read

__all__ = ["read"]
