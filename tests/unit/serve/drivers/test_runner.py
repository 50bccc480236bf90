"""A failed driver is reported, counted and replaced by a new one; the text of its error is not shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NoReturn, cast

import pytest

from lbctl.apply.haproxy.driver import HaproxyUpdater
from lbctl.ir.proxies import Proxy
from lbctl.runtime.guard import Guard
from lbctl.serve.drivers.base import Driver, DriverStatus
from lbctl.serve.drivers.haproxy import HaproxyDriver
from lbctl.serve.drivers.runner import DriverRunner
from lbctl.serve.fleet.publisher import PublishedFleet
from tests.support.fleets import fleet_of, load_fleet
from tests.support.publishing import Publishing

PROXY = Proxy("edge", "toy", (1,))
FLEET = cast(PublishedFleet, object())


class FakeDriver:
    """A driver that fails in `fails`: update, run or checks, or that returns early (end)."""

    def __init__(self, fails: str = "") -> None:
        self.proxy = PROXY
        self.status = DriverStatus("WAITING")
        self.fails = fails
        self.updates: list[PublishedFleet] = []
        self.stopped = False

    def update(self, served: PublishedFleet) -> None:
        if self.fails == "update":
            raise ValueError("a secret")
        self.updates.append(served)
        self.status = DriverStatus("SYNCED", "v1", reloads=1)

    def checks_changed(self) -> None:
        if self.fails == "checks":
            raise ValueError("a secret")

    async def run(self) -> None:
        try:
            if self.fails == "run":
                raise ExceptionGroup("group", [ValueError("a secret")])
            if self.fails != "end":
                await asyncio.Event().wait()
        finally:
            self.stopped = True


def started(*drivers: Driver | Exception) -> tuple[DriverRunner, asyncio.Task[NoReturn], list[str]]:
    """Return a runner that takes these drivers in turn, its task, and the failures so far."""
    waiting: Iterator[Driver | Exception] = iter(drivers)
    failed: list[str] = []

    def create() -> Driver:
        next_driver = next(waiting)
        if isinstance(next_driver, Exception):
            raise next_driver
        return next_driver

    runner = DriverRunner(PROXY, create)
    task = Guard(failed.append, first_pause=0.2).start("driver", runner.run, runner.restarts_in, proxy=PROXY.name)
    return runner, task, failed


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("fails", ["update", "run", "end", "checks", "create"])
def test_new_driver_gets_the_same_fleet_after_a_failure(fails: str, caplog: pytest.LogCaptureFixture) -> None:
    async def drive() -> None:
        first, second = FakeDriver(fails), FakeDriver()
        item, task, failed = started(ValueError("a secret") if fails == "create" else first, second)
        item.update(FLEET)
        if fails == "checks":
            item.checks_changed()
        await until(lambda: bool(failed))
        assert item.status.state == "FAILING"
        error = "DriverEndedError" if fails == "end" else "ValueError"
        assert f"its driver failed ({error}; see the log); a new one starts at 20" in item.status.reason
        assert "a secret" not in item.status.reason
        assert fails == "create" or first.stopped
        await until(lambda: second.updates == [FLEET])
        assert item.status.state == "SYNCED"
        assert item.status.reloads == first.status.reloads + 1
        assert failed == ["driver"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert second.stopped

    asyncio.run(drive())
    assert any(getattr(record, "fields", {}).get("proxy") == "edge" for record in caplog.records)


def test_failed_driver_keeps_the_last_version_of_its_proxy() -> None:
    async def drive() -> None:
        first = FakeDriver()
        item, task, failed = started(first)
        item.update(FLEET)
        await until(lambda: item.status.state == "SYNCED")
        first.fails = "update"
        item.update(FLEET)
        await until(lambda: bool(failed))
        assert replace(item.status, reason="", at=0.0) == DriverStatus("FAILING", "v1", reloads=1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(drive())


def test_update_waits_for_a_confirmed_lease() -> None:
    async def drive() -> None:
        driver, checks, permitted = FakeDriver(), 0, False

        def permit() -> bool:
            nonlocal checks
            checks += 1
            return permitted

        item = DriverRunner(PROXY, lambda: driver, permit)
        task = asyncio.create_task(item.run())
        item.update(FLEET)
        await until(lambda: checks >= 2)
        assert not driver.updates
        permitted = True
        await until(lambda: driver.updates == [FLEET])
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(drive())


def test_failed_haproxy_driver_is_counted_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proxies = {"ha": {"kind": "haproxy", "runtime_api": str(tmp_path / "haproxy.sock")}}
    fleet = load_fleet(tmp_path, fleet_of(proxies=proxies))
    (proxy,) = fleet.compiled.topology.proxies

    async def fail(*_: object) -> NoReturn:
        raise ValueError("a secret")

    async def drive() -> None:
        publishing = Publishing()
        served = await publishing.publish(fleet)
        first, second = HaproxyDriver(proxy, dict), HaproxyDriver(proxy, dict)
        runner, task, failed = started(first, second)
        with monkeypatch.context() as patched:
            patched.setattr(HaproxyUpdater, "apply", fail)
            runner.update(served)
            await until(lambda: bool(failed))
            assert "its driver failed (ValueError; see the log)" in runner.status.reason
        await until(lambda: "haproxy.sock" in runner.status.reason)
        assert failed == ["driver"]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await publishing.end()

    asyncio.run(drive())
