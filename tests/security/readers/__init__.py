"""The readers of foreign input: each module of this package has the rows of one area in `READERS`."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from tests.support.bounds import Reader

READERS: tuple[Reader, ...] = tuple(
    reader
    for module in sorted(item.name for item in pkgutil.iter_modules(__path__))
    for reader in import_module(f"{__name__}.{module}").READERS
)
