"""nginx: one nginx.conf for the open-source server, which uses its core modules only.

`TARGET` is what the registry holds. Importing this package loads no template engine.
"""

from __future__ import annotations

from lbctl.targets.nginx.target import TARGET

__all__ = ["TARGET"]
