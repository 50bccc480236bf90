"""The private directory of a run is deleted when `up` ends, or at the latest when the next one starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lbctl.up import places
from lbctl.up.places import private_directory


def test_next_run_deletes_the_directory_of_a_killed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_SHORT", str(tmp_path))
    monkeypatch.setattr(places, "_MAX_DIRECTORY_CHARACTERS", 0)
    killed, strange = tmp_path / "lbctl-up-killed", tmp_path / "lbctl-up-strange"
    for place in (killed, strange):
        (place / "sub").mkdir(parents=True)
    (killed / "owner").write_text("")
    with private_directory() as running:
        for place in (killed, strange, running):
            os.utime(place, (1, 1))
        with private_directory() as second:
            assert sorted(tmp_path.iterdir()) == sorted([running, second, strange])
    assert list(tmp_path.iterdir()) == [strange], "without an owner file it may belong to another program"
