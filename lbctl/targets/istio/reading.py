"""How Istio's gateway reads a request. The mesh's settings decide the escapes of a path that it decodes."""

from lbctl.targets.manifests.reading import read

__all__ = ["read"]
