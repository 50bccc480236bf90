"""SIGHUP reloads the files, and a failed reload ends neither `lbctl serve` nor later reloads."""

from __future__ import annotations

import asyncio
import io
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from lbctl.ir.address import Address
from lbctl.runtime import log
from lbctl.serve.app import App, Options
from lbctl.serve.fleet.reconciler import Reconciler
from tests.support.fleets import fleet_of, write_fleet


async def _until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


@pytest.mark.slow
def test_failed_reload_at_sighup_is_logged_and_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_fleet(tmp_path, fleet_of())
    sockets = (Address(path=str(tmp_path / name)) for name in ("xds", "api"))
    options = Options((str(path),), str(tmp_path / "state"), *sockets)
    real, stream = Reconciler.reload, io.StringIO()

    async def fail(_self: Reconciler) -> None:
        raise ValueError("a bug")

    async def run() -> None:
        serving = asyncio.create_task(App(options).run())
        await _until((tmp_path / "xds").exists)
        monkeypatch.setattr(Reconciler, "reload", fail)
        os.kill(os.getpid(), signal.SIGHUP)
        await _until(lambda: "ValueError: a bug" in stream.getvalue())
        monkeypatch.setattr(Reconciler, "reload", real)
        os.kill(os.getpid(), signal.SIGHUP)
        await _until(lambda: "the files were read result=unchanged" in stream.getvalue())
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    handler = log.start(stream)
    try:
        asyncio.run(run())
    finally:
        log.stop(handler)
    assert 'error a task failed; restarting it task="reload at SIGHUP"' in stream.getvalue()
