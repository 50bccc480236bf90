"""How a gateway reads requests, to the extent that the API defines it. The rest depends on the gateway's class."""

from lbctl.targets.manifests.reading import read

__all__ = ["read"]
