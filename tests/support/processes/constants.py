"""Control planes whose pauses are shorter than the built-in ones, which no setting of a fleet changes.

`with short_pauses(HAPROXY_RELOADS):` applies to each control plane that is started within the block, also again.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from tests.support.processes import lbctl_process

HAPROXY_RELOADS: Mapping[str, float] = {"lbctl.apply.haproxy.reload.MIN_INTERVAL": 0.5}
"""HAProxy is reloaded twice a second at most, in place of every five seconds."""
PICKER_ADDRESS: Mapping[str, float] = {"lbctl.serve.picker.manager._RETURN": 3.0}
"""The address of a picker that has ended is left free for its own control plane for 3 s, in place of 20 s."""

_main = lbctl_process._main


@contextmanager
def short_pauses(constants: Mapping[str, float]) -> Iterator[None]:
    """Give these constants of lbctl, MODULE.NAME → seconds, other values in the processes that start in the block."""
    for path in constants:
        _constant(path)
    with patch.object(lbctl_process, "_main", functools.partial(_with_constants, dict(constants))):
        yield


def _with_constants(
    constants: Mapping[str, float], arguments: tuple[str, ...], log: Path, directory: Path, environment: dict[str, str]
) -> None:
    for path, seconds in constants.items():
        module, _, name = path.rpartition(".")
        setattr(importlib.import_module(module), name, seconds)
    _main(arguments, log, directory, environment)


def _constant(path: str) -> float:
    """Return the value that the constant has in lbctl. Fails if there is none of this name."""
    module, _, name = path.rpartition(".")
    seconds: float = getattr(importlib.import_module(module), name)
    return seconds
