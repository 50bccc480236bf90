"""Checks the store that several control planes share: whether it may be used, who leads, and the members' clocks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from lbctl.cli.doctor.check import Check
from lbctl.cli.doctor.sources import PATIENCE
from lbctl.serve.ha.format import check_format
from lbctl.serve.ha.presence import MemberInfo, read_info
from lbctl.serve.settings import Settings
from lbctl.serve.state.interface import SharedStore, StoreError, UnreachableError
from lbctl.serve.state.open import open_shared

_SKEW = 1.0
"""Seconds by which the clocks of members may differ."""
_NAME = "doctor"


def checks(settings: Settings) -> Iterator[Check]:
    """Yield the result for the store of the fleet, and one for the clocks of its members. It writes nothing."""
    store = settings.control.store
    if store is None:
        return
    what = f"store {store.url}"
    try:
        leader, members = asyncio.run(_read(open_shared(store, _NAME)))
    except (UnreachableError, TimeoutError) as error:
        reason = str(error) or f"no answer within {PATIENCE:g} s"
        yield Check(what, "failed", reason, "start it, or correct control.store.url", absent=True)
        return
    except StoreError as error:
        yield Check(what, "failed", str(error), "see docs/high-availability.md")
        return
    names = ", ".join(item.name for item in members) or "none"
    led = f"{leader} leads" if leader else "nobody leads"
    yield Check(what, "ok", f"{led}; members: {names}")
    yield from _clocks(members)


async def _read(store: SharedStore) -> tuple[str, tuple[MemberInfo, ...]]:
    try:
        async with asyncio.timeout(PATIENCE):
            await check_format(store)
            return await store.leader(), tuple(map(read_info, await store.members()))
    finally:
        await store.close()


def _clocks(members: tuple[MemberInfo, ...]) -> Iterator[Check]:
    for item in members:
        if abs(item.clock) > _SKEW:
            finding = f"{abs(item.clock):.1f} s {'behind' if item.clock > 0 else 'ahead of'} the leader's"
            yield Check(f"clock of the member {item.name}", "warn", finding, "let NTP set it")
