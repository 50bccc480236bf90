"""How a gateway reads a request, as far as the API defines it. The class of the gateway decides the rest."""

from lbctl.targets.manifests.reading import read

__all__ = ["read"]
