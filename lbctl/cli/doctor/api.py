"""Checks whether a running `serve` responds, and compares its lbctl version and clock with this machine's."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from lbctl import __version__
from lbctl.api.any_version import AnyVersionStatus
from lbctl.api.client import ApiError, ServeClient
from lbctl.base import ports
from lbctl.base.errors import reason_of
from lbctl.cli.doctor.check import DoctorResult, State
from lbctl.cli.doctor.machine import Skew
from lbctl.cli.doctor.sources import ANSWER_TIMEOUT, skew_between

_Answer = TypeVar("_Answer")


class _SlowError(Exception):
    """The complete response did not arrive in time."""


@dataclass(frozen=True, slots=True)
class ApiCheck:
    """The results of checking a running `serve`."""

    result: DoctorResult
    """Whether the API responds."""
    skews: tuple[Skew, ...] = ()
    """Clock skew."""
    status: AnyVersionStatus | None = None
    """The status that `serve` reports, or None if it does not respond."""


def api(server: ServeClient, needed: bool) -> ApiCheck:
    """Check that `serve` responds.

    If `serve` is `needed`, because the user specified it, a missing response is a failure.
    """
    what = f"serve {server.url}"
    failure = _connection_failure(server.url)
    if failure:
        if not needed:
            return ApiCheck(DoctorResult(what, "skipped", f"serve is not running there ({failure})"))
        todo = "start `lbctl serve`, or correct --server"
        return ApiCheck(DoctorResult(what, "failed", failure, todo, absent=True))
    try:
        start = time.time()
        date = _within(ANSWER_TIMEOUT, server.date)
        skew = skew_between(server.url, date, start, time.time())
        status = _within(ANSWER_TIMEOUT, lambda: server.get("/api/v1/status", AnyVersionStatus))
    except (_SlowError, ApiError) as error:
        state: State = "failed" if needed else "warn"
        reason = reason_of(error, f"no response within {ANSWER_TIMEOUT:g} s")
        return ApiCheck(DoctorResult(what, state, reason, "check --server, --token-file and --tls-ca", absent=True))
    return ApiCheck(_version_check(what, status), (skew,) if skew else (), status)


def _version_check(what: str, status: AnyVersionStatus) -> DoctorResult:
    version = status.version
    if version != __version__:
        finding = f"lbctl {version} runs there, but this is lbctl {__version__}"
        return DoctorResult(what, "warn", finding, "install the same version, then restart serve")
    if not status.ready:
        return DoctorResult(what, "warn", f"not ready: {status.waiting}", "lbctl status")
    return DoctorResult(what, "ok", f"lbctl {version} answers")


def _connection_failure(url: str) -> str:
    """Return the reason why the connection fails, or an empty string."""
    parts = urlsplit(url)
    try:
        place = (parts.hostname or "", parts.port or ports.BY_SCHEME[parts.scheme])
        with socket.create_connection(place, timeout=ANSWER_TIMEOUT):
            return ""
    except (OSError, ValueError) as error:
        return reason_of(error).lower()


def _within(seconds: float, function: Callable[[], _Answer]) -> _Answer:
    """Return the result of the function, or raise its ApiError.

    Raises _SlowError after `seconds`. In that case, the function keeps running in its thread.
    """
    results: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((True, function()))
        except ApiError as error:
            results.put((False, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        succeeded, value = results.get(timeout=seconds)
    except queue.Empty:
        raise _SlowError from None
    if not succeeded:
        raise value
    answer: _Answer = value
    return answer
