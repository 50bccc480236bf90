"""Whether a running serve answers, which lbctl it is, and what its clock says."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from lbctl import __version__
from lbctl.base import ports
from lbctl.base.errors import reason_of
from lbctl.cli.api_client import Server
from lbctl.cli.doctor.check import Check, State
from lbctl.cli.doctor.machine import Skew
from lbctl.cli.doctor.sources import PATIENCE, skew_between

_Answer = TypeVar("_Answer")


class _SlowError(Exception):
    """The answer is not complete in time."""


def api(server: Server, needed: bool) -> tuple[Check, list[Skew]]:
    """Check that `serve` answers. `needed`: a user asked for it, so that no answer is a failure."""
    what = f"serve {server.url}"
    silence = _connection(server.url)
    if silence:
        if not needed:
            return Check(what, "skipped", f"no serve runs there ({silence})"), []
        return Check(what, "failed", silence, "start `lbctl serve`, or correct --server", absent=True), []
    try:
        began = time.time()
        date = _within(PATIENCE, server.date)
        skew = skew_between(server.url, date, began, time.time())
        status = _within(PATIENCE, lambda: server.get_object("/api/v1/status"))
    except (_SlowError, click.ClickException) as error:
        state: State = "failed" if needed else "warn"
        words = str(error) or f"no answer within {PATIENCE:g} s"
        return Check(what, state, words, "see --server, --token-file and --tls-ca", absent=True), []
    return _judged(what, status), [skew] if skew else []


def _judged(what: str, status: dict[str, Any]) -> Check:
    version = status.get("version")
    if version != __version__:
        found = f"lbctl {version} runs there, this is {__version__}"
        return Check(what, "warn", found, "install the same, then start serve again")
    if not status.get("ready"):
        return Check(what, "warn", f"not ready: {status.get('waiting')}", "lbctl status")
    return Check(what, "ok", f"lbctl {version} answers")


def _connection(url: str) -> str:
    """Return why no connection is possible, or an empty string."""
    parts = urlsplit(url)
    try:
        place = (parts.hostname or "", parts.port or ports.BY_SCHEME[parts.scheme])
        with socket.create_connection(place, timeout=PATIENCE):
            return ""
    except (OSError, ValueError) as error:
        return reason_of(error).lower()


def _within(seconds: float, ask: Callable[[], _Answer]) -> _Answer:
    """What it returns or raises. Whoever drips an answer for ever is left behind in a thread. _SlowError."""
    told: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def run() -> None:
        try:
            told.put((True, ask()))
        except click.ClickException as error:
            told.put((False, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        good, value = told.get(timeout=seconds)
    except queue.Empty:
        raise _SlowError from None
    if not good:
        raise value
    answer: _Answer = value
    return answer
