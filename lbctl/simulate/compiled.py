"""Compiles the inner loops of the simulation where numba is installed; without it the same code runs as Python.

numba's own variable `NUMBA_DISABLE_JIT=1` runs them as Python too.

The loops are written over flat, indexable columns: numpy arrays where they are compiled, lists where they are not. They
draw no random numbers, so both ways give the same results.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])

IS_COMPILED = find_spec("numba") is not None and os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
"""Whether numba is installed (the extra `simulate`), and not switched off."""

if IS_COMPILED:
    import numba
    import numpy


def jit(function: _Function) -> _Function:
    """Return the function, compiled where that is possible."""
    if not IS_COMPILED:
        return function
    try:
        compiled: Any = numba.njit(cache=True)(function)
    except RuntimeError:  # no directory for numba's cache can be written
        compiled = numba.njit(function)
    return cast("_Function", compiled)


def floats(values: Iterable[float]) -> Any:
    """Return a column of floats."""
    return numpy.fromiter(values, numpy.float64) if IS_COMPILED else [float(value) for value in values]


def integers(values: Iterable[int]) -> Any:
    """Return a column of integers of 64 bits."""
    return numpy.fromiter(values, numpy.int64) if IS_COMPILED else [int(value) for value in values]


def zeros(size: int) -> Any:
    """Return a column of `size` zeros as floats."""
    return numpy.zeros(size) if IS_COMPILED else [0.0] * size


def counts(size: int, value: int = 0) -> Any:
    """Return a column of `size` integers that are all `value`."""
    return numpy.full(size, value, numpy.int64) if IS_COMPILED else [value] * size
