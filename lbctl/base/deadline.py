"""A time limit for a blocking call.

In `requests`, timeouts apply to each socket read, so a server that sends one byte per second never exceeds them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")


def within(seconds: float, call: Callable[[], _T]) -> _T:
    """Return the result of the call, or raise its exception.

    Raises TimeoutError after `seconds`. The call then keeps running in its thread, and its result is ignored.
    """
    results: list[_T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 -- re-raised in the caller's thread
            errors.append(error)

    thread = threading.Thread(target=work, name="call", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError
    return results[0]
