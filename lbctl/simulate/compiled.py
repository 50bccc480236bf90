"""Compiles the inner loops of the simulation if numba is installed; otherwise the same code runs as Python.

numba's own variable `NUMBA_DISABLE_JIT=1` runs them as Python too.

The loops use flat, indexable columns: numpy arrays if compiled, arrays of the standard library otherwise. Both kinds of
column have the same types. The loops do not draw any random numbers, so both variants give the same results.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])

IS_COMPILED = False
"""Whether numba is installed (the extra `simulate`), works, and is enabled."""
FAILURE = ""
"""Reason why an installed numba cannot be used; otherwise empty."""
FLOAT, LONG, INTEGER, NATURAL, SHORT, BYTE = "dqiIhb"
"""Types of columns: 64-bit float; 64-bit, 32-bit, unsigned 32-bit, 16-bit and 8-bit integers."""

if find_spec("numba") is not None and os.environ.get("NUMBA_DISABLE_JIT", "0") == "0":
    try:
        import numba
        import numpy
    except Exception as error:  # noqa: BLE001 - an installation that does not fit its Python or numpy fails in any way
        FAILURE = " ".join(str(error).split()) or type(error).__name__
    else:
        IS_COMPILED = True


def jit(function: _Function) -> _Function:
    """Return the function, compiled if possible."""
    if not IS_COMPILED:
        return function
    try:
        compiled: Any = numba.njit(cache=True)(function)
    except RuntimeError:  # numba cannot write to a cache directory
        compiled = numba.njit(function)
    return cast("_Function", compiled)


def column(kind: str, values: Iterable[float]) -> Any:
    """Return a column of these values."""
    return numpy.fromiter(values, kind) if IS_COMPILED else array(kind, values)


def shared(kind: str, values: Sequence[float]) -> Any:
    """Return the values as a column that never changes. An array that already has this type is not copied."""
    if not isinstance(values, array) or values.typecode != kind:
        return column(kind, values)
    return numpy.frombuffer(values, kind) if IS_COMPILED else values


def filled(kind: str, size: int, value: float = 0) -> Any:
    """Return a column with `size` copies of a value."""
    return numpy.full(size, value, kind) if IS_COMPILED else array(kind, [value]) * size


def smallest(values: Any, places: Sequence[int]) -> list[float]:
    """Return the values at these positions in the sorted column."""
    ordered = numpy.partition(values, places) if IS_COMPILED else sorted(values)
    return [float(ordered[place]) for place in places]
