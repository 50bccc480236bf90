"""Compiles the inner loops of the simulation where numba is installed; without it the same code runs as Python.

numba's own variable `NUMBA_DISABLE_JIT=1` runs them as Python too.

The loops are written over flat, indexable columns: numpy arrays where they are compiled, arrays of the standard library
where they are not. Both have the same types. The loops draw no random numbers, so both ways give the same results.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from typing import Any, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])

IS_COMPILED = False
"""Whether numba is installed (the extra `simulate`), works, and is not switched off."""
FAILURE = ""
"""Why an installed numba cannot be used; empty where it can, or is not installed or switched off."""
FLOAT, LONG, INTEGER, NATURAL, SHORT, BYTE = "dqiIhb"
"""Types of columns: a float of 64 bits, integers of 64, 32, 32 (unsigned), 16 and 8 bits."""

if find_spec("numba") is not None and os.environ.get("NUMBA_DISABLE_JIT", "0") == "0":
    try:
        import numba
        import numpy
    except Exception as error:  # noqa: BLE001 - an installation that does not fit its Python or numpy fails in any way
        FAILURE = " ".join(str(error).split()) or type(error).__name__
    else:
        IS_COMPILED = True


def jit(function: _Function) -> _Function:
    """Return the function, compiled where that is possible."""
    if not IS_COMPILED:
        return function
    try:
        compiled: Any = numba.njit(cache=True)(function)
    except RuntimeError:  # no directory for numba's cache can be written
        compiled = numba.njit(function)
    return cast("_Function", compiled)


def column(kind: str, values: Iterable[float]) -> Any:
    """Return a column of these values."""
    return numpy.fromiter(values, kind) if IS_COMPILED else array(kind, values)


def shared(kind: str, values: Sequence[float]) -> Any:
    """Return the values as a column that is never changed; an array of this type is not copied."""
    if not isinstance(values, array) or values.typecode != kind:
        return column(kind, values)
    return numpy.frombuffer(values, kind) if IS_COMPILED else values


def filled(kind: str, size: int, value: float = 0) -> Any:
    """Return a column of `size` times the same value."""
    return numpy.full(size, value, kind) if IS_COMPILED else array(kind, [value]) * size


def smallest(values: Any, places: Sequence[int]) -> list[float]:
    """Return what would stand at these places of a column if it were sorted."""
    ordered = numpy.partition(values, places) if IS_COMPILED else sorted(values)
    return [float(ordered[place]) for place in places]
