"""The saved state of `serve` for synchronous tests."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from lbctl.control.loop_output import LoopOutput
from lbctl.control.overrides import Overrides
from lbctl.store.records import SavedFleet
from lbctl.store.saved import SavedState
from lbctl.store.sqlite import SqliteStore


class OpenState:
    """A SavedState that holds its lease. `lost` collects its messages about lost or repaired records."""

    def __init__(self, directory: Path) -> None:
        self.lost: list[str] = []
        self.state = SavedState(SqliteStore.open(directory), self.lost.append)
        asyncio.run(asyncio.wait_for(self.state.lead(_unexpected), 120))

    def close(self) -> None:
        asyncio.run(self.state.close())

    def save_fleet(self, fleet: SavedFleet) -> None:
        asyncio.run(self.state.save_fleet(fleet))

    def last_fleet(self) -> SavedFleet | None:
        return asyncio.run(self.state.last_fleet())

    def save_drains(self, drains: Mapping[tuple[str, str], float]) -> None:
        asyncio.run(self.state.save_drains(drains))

    def drains(self) -> dict[tuple[str, str], float]:
        return asyncio.run(self.state.drains())

    def save_loop_output(self, output: LoopOutput, at: float) -> None:
        asyncio.run(self.state.save_loop_output(output, at))

    def loop_output(self) -> tuple[LoopOutput, float] | None:
        return asyncio.run(self.state.loop_output())

    def save_overrides(self, overrides: Overrides) -> None:
        asyncio.run(self.state.save_overrides(overrides))

    def overrides(self) -> Overrides:
        return asyncio.run(self.state.overrides())


def led(directory: Path) -> OpenState:
    """Open the state in this directory and take its lease, which must be free."""
    return OpenState(directory)


def _unexpected(message: str) -> None:
    raise AssertionError(message)
