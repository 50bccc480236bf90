"""How a gateway reads a request, as far as the API defines it."""

from __future__ import annotations

from lbctl.targets.manifests.reading import read

__all__ = ["read"]
