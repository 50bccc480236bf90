"""nginx: one nginx.conf for the open-source server, which uses only its core modules.

`TARGET` is the registered object. Importing this package does not load a template engine.
"""

from __future__ import annotations

from lbctl.targets.nginx.target import TARGET

__all__ = ["TARGET"]
