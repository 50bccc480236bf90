"""The history of published fleets: retention, lookup by digest, and restore after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lbctl.model.load import SourceText
from lbctl.runtime.errors import BadRequestError
from lbctl.serve.fleet import history
from lbctl.serve.fleet.history import FleetHistory, RestoredHistory, digest_of
from lbctl.store.history import ActiveRollback, Cause, Revision, ServedFleet, read_texts, write_texts
from lbctl.store.memory import MemoryStore
from lbctl.store.saved import SavedState


def files(content: str) -> tuple[SourceText, ...]:
    return (SourceText("fleet/fleet.yaml", content.encode(), "fleet"),)


def entry(content: str, size: int = 100, at: float = 1.0) -> ServedFleet:
    cause, revision = Cause("lbctl"), Revision("c" * 40, dirty=True)
    return ServedFleet(digest_of(files(content)), at, cause, revision, "v1", 1, 2, size)


@pytest.fixture
def state() -> Iterator[SavedState]:
    saved = SavedState(MemoryStore(), lambda message: pytest.fail(message))
    asyncio.run(saved.lead(lambda message: pytest.fail(message)))
    yield saved
    asyncio.run(saved.close())


def history_of(state: SavedState, *contents: str) -> FleetHistory:
    return FleetHistory(("fleet",), state, RestoredHistory(tuple(map(entry, contents))))


def test_digest_covers_names_and_contents_but_not_directories() -> None:
    first = [SourceText("/etc/a.yaml", b"1", "/etc"), SourceText("/etc/b.yaml", b"2", "/etc")]
    moved = [SourceText("b.yaml", b"2", "."), SourceText("a.yaml", b"1", ".")]
    exchanged = [SourceText("a.yaml", b"2", "."), SourceText("b.yaml", b"1", ".")]
    assert digest_of(first) == digest_of(moved)
    assert digest_of(first) != digest_of(exchanged)
    assert digest_of([SourceText("a.yaml", b"1", ".")]) != digest_of(first)


def test_default_is_the_newest_fleet_that_is_not_current(state: SavedState) -> None:
    assert history_of(state, "a", "b", "c").find(None) == entry("b")
    assert history_of(state, "a", "b", "a", "b").find(None) == entry("a")
    assert history_of(state, "a", "b", "a", "c").find(None) == entry("a")
    for contents in ((), ("a",), ("a", "a")):
        with pytest.raises(BadRequestError, match="no earlier fleet has been saved"):
            history_of(state, *contents).find(None)


def test_digest_may_be_abbreviated(state: SavedState) -> None:
    known = history_of(state, "a", "b", "c")
    digest = digest_of(files("a"))
    assert known.find(digest) == known.find(digest[:4]) == known.find(digest[:12].upper()) == entry("a")
    with pytest.raises(BadRequestError, match="is already the published fleet"):
        known.find(digest_of(files("c"))[:8])
    swapped = digest[:10] + digest[11] + digest[10]
    with pytest.raises(BadRequestError, match=f"did you mean '{digest[:12]}'"):
        known.find(swapped)
    with pytest.raises(BadRequestError, match="at least 4 characters"):
        known.find(digest[:2])
    with pytest.raises(BadRequestError, match="earlier fleets, newest first: " + digest_of(files("b"))[:12]):
        known.find("no digest")


def test_number_and_size_of_kept_fleets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    many = tuple(entry(str(number)) for number in range(30))
    assert history._within_limits(many) == many[-20:]
    monkeypatch.setattr(history, "_MAX_BYTES", 250)
    assert history._within_limits(many) == many[-2:]
    again = (entry("a"), entry("b"), entry("a"))
    assert history._within_limits(again) == again, "the same files are kept once"
    large = entry("large", 1000)
    assert history._within_limits((*many, large)) == (large,), "the fleet that is served is always kept"


def test_saved_history_is_restored_and_unused_files_are_deleted(state: SavedState) -> None:
    async def script() -> None:
        kept = FleetHistory(("fleet",), state, RestoredHistory())
        for content in ("a", "b"):
            kept._unsaved[digest_of(files(content))] = write_texts(files(content))
            kept.entries = (*kept.entries, entry(content))
        kept.rollback = ActiveRollback(digest_of(files("a")), digest_of(files("b")), 5.0, "anna", "c is slow")
        await kept.save()
        assert await state.history() == (entry("a"), entry("b"))
        assert await state.rollback() == kept.rollback
        restored = FleetHistory(("fleet",), state, RestoredHistory(await state.history(), await state.rollback()))
        assert await restored.files(digest_of(files("a"))) == files("a")
        restored.entries, restored.rollback = restored.entries[1:], None
        await restored.save()
        assert await state.rollback() is None
        assert await state.history_files(digest_of(files("a"))) is None
        assert await state.history_files(digest_of(files("b"))) == files("b")

    asyncio.run(script())


def test_change_of_the_files_ends_a_rollback(state: SavedState, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("new")

    async def script() -> None:
        await state.save_history_files(digest_of(files("old")), write_texts(files("old")))
        rollback = ActiveRollback(digest_of(files("old")), digest_of(files("new")), 5.0, "anna", "")
        kept = FleetHistory((str(tmp_path),), state, RestoredHistory((entry("old"),), rollback))
        assert await kept.pinned() == files("old")
        file.touch()
        assert await kept.pinned() == files("old")
        file.write_text("newer: [")
        assert await kept.pinned() is None
        assert kept.rollback is None

    asyncio.run(script())


def test_damaged_files_are_rejected() -> None:
    intact = write_texts([SourceText("a", b"\xff", ".")])
    assert read_texts(intact) == (SourceText("a", b"\xff", "."),)
    for damaged in (intact[:-8], "%%%", "", "QUFB"):
        with pytest.raises((ValueError, KeyError, TypeError)):
            read_texts(damaged)


def test_unsaved_files_are_bounded_by_the_kept_entries(state: SavedState) -> None:
    kept = history_of(state)
    topology = SimpleNamespace(pools=())
    fleet: Any = SimpleNamespace(
        origin="state",
        cached_snapshot=SimpleNamespace(version="v1"),
        composed=SimpleNamespace(whole=SimpleNamespace(topology=topology)),
    )

    async def serve_and_save() -> int:
        for number in range(50):
            await kept.served(files(str(number)), fleet, Cause("lbctl"))
        await kept.save()
        loaded = [await state.history_files(digest_of(files(str(number)))) for number in range(50)]
        return sum(item is not None for item in loaded)

    assert asyncio.run(serve_and_save()) == len(kept.entries) == history.KEPT
