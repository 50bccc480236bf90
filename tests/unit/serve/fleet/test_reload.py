"""Which fleet may take the place of the one that runs: with real files, as people and programs leave them."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from lbctl.ir.address import Address
from lbctl.ir.pools import DnsDiscovery, Replica
from lbctl.ir.topology import Topology
from lbctl.serve.fleet import reload
from lbctl.serve.settings import parse_lenient
from tests.support.reload import Fleet, sizes


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


# ── Good and bad files ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_good_fleet_is_loaded_with_its_certificates_keys_and_targets(fleet: Fleet) -> None:
    outcome = fleet.load()
    assert (sizes(outcome), outcome.refused, outcome.diagnostics) == ({"filed": 4, "llama": 10}, None, ())
    assert outcome.loaded is not None
    assert outcome.loaded.secrets.files == {
        name: (fleet.folder / name).read_bytes() for name in ("tls/server.crt", "tls/server.key", "tls/ca.crt")
    }
    assert [key.tenant for key in outcome.loaded.secrets.api_keys["secrets/keys.yaml"]] == ["acme"]


def test_every_file_beside_the_yaml_is_to_be_followed(fleet: Fleet) -> None:
    names = {str(file.relative_to(fleet.folder)) for file in fleet.load().files}
    assert names == {
        "secrets/keys.yaml", "targets.json", "tls/ca.crt", "tls/proxies.crt", "tls/server.crt", "tls/server.key",
        "tls/xds.crt", "tls/xds.key", "token",
    }  # fmt: skip


def test_what_has_not_changed_in_the_files_is_the_same_object_again(fleet: Fleet) -> None:
    first = _topology(fleet)
    fleet.write(9)
    second = _topology(fleet)
    assert [len(pool.replicas) for pool in second.pools] == [4, 9]
    assert [new is old for new, old in zip(second.pools, first.pools, strict=True)] == [True, False]
    assert (second.listeners, second.routes) == (first.listeners, first.routes)
    assert second.listeners is first.listeners
    assert second.routes is first.routes


def _topology(fleet: Fleet) -> Topology:
    outcome = fleet.load()
    assert outcome.loaded is not None
    return outcome.loaded.compiled.topology


def test_texts_that_are_read_again_are_parsed_once(fleet: Fleet) -> None:
    paths = [str(fleet.folder)]
    outcome, source = fleet.load(), parse_lenient(paths)
    assert outcome.loaded is not None
    assert source is not None
    assert source is parse_lenient(paths)
    assert source.root is outcome.loaded.source.root
    fleet.write(9)
    assert parse_lenient(paths) is not source


def test_a_bad_file_is_refused_with_everything_that_is_wrong_and_a_good_one_is_loaded_again(fleet: Fleet) -> None:
    fleet.load()
    fleet.write(10, "  broken: {replicas: [{address: nowhere, gpu: NOPE}, {weight: 0}]}", "  other: {balance: fast}")
    outcome = fleet.load()
    assert (outcome.loaded, outcome.running, outcome.saved) == (None, None, None)
    told = fleet.told(outcome)
    assert outcome.refused == f"{len(told)} errors in its files"
    assert len(told) >= 4
    assert all(line.startswith("fleet.yaml:") for line in told)
    fleet.write(9)
    assert (sizes(fleet.load()), outcome.refused is None) == ({"filed": 4, "llama": 9}, False)


@pytest.mark.parametrize("text", [b"", b"version: 1\npools: {", b"\xff\xfe\0", b"- a list\n"])
def test_a_file_that_is_no_fleet_is_refused_in_words(fleet: Fleet, text: bytes) -> None:
    fleet.load()
    (fleet.folder / "fleet.yaml").write_bytes(text)
    outcome = fleet.load()
    assert outcome.loaded is None
    assert outcome.refused == "1 error in its files"
    assert fleet.told(outcome)[0].startswith("fleet.yaml")


def test_a_directory_that_has_vanished_is_refused_and_what_was_followed_goes_on_being(fleet: Fleet) -> None:
    followed = set(fleet.load().files)
    fleet.folder.rename(fleet.folder.with_name("away"))
    outcome = fleet.load()
    assert (outcome.loaded, set(outcome.files)) == (None, followed)
    assert "LB001" in fleet.told(outcome)[0]
    fleet.folder.with_name("away").rename(fleet.folder)
    assert sizes(fleet.load()) == {"filed": 4, "llama": 10}


@pytest.mark.parametrize(("name", "text"), [("targets.json", '[{"targets": ['), ("secrets/keys.yaml", "not a key\n")])
def test_a_broken_file_of_targets_or_keys_refuses_the_fleet(fleet: Fleet, name: str, text: str) -> None:
    fleet.load()
    fleet.write(9)
    (fleet.folder / name).write_text(text)
    outcome = fleet.load()
    assert outcome.loaded is None
    assert name in fleet.told(outcome)[0]


# ── Half-written files ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writing thread may be kept waiting on a busy machine."""
    monkeypatch.setattr(reload, "_QUIET", 1.5)
    monkeypatch.setattr(reload, "_ATTEMPTS", 200)


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written within the last minute counts as being written, whenever the writing thread gets its turns."""
    monkeypatch.setattr(reload, "_QUIET", 60.0)


def test_a_file_that_is_being_written_is_not_taken_before_it_is_whole(fleet: Fleet, patient: None) -> None:
    """Every prefix that ends with a line is a fleet too, only a smaller one."""
    fleet.write(60)
    whole = (fleet.folder / "fleet.yaml").read_text().splitlines(keepends=True)

    def write() -> None:
        with (fleet.folder / "fleet.yaml").open("w") as file:
            for line in whole:
                file.write(line)
                file.flush()
                time.sleep(0.01)

    thread = threading.Thread(target=write)
    thread.start()
    outcome = fleet.load()
    thread.join()
    assert sizes(outcome)["llama"] == 60


def test_a_file_that_never_comes_to_rest_is_refused_after_a_while_in_words(fleet: Fleet, restless: None) -> None:
    with constantly(fleet.folder / "fleet.yaml"):
        began = time.monotonic()
        outcome = fleet.load()
        took = time.monotonic() - began
    assert outcome.loaded is None
    assert outcome.refused == f"{fleet.folder}/fleet.yaml is still being written"
    assert "LB932" in fleet.told(outcome)[0]
    assert 1 < took < 60


@pytest.mark.slow
def test_a_followed_file_that_never_comes_to_rest_is_told_as_changed(
    fleet: Fleet, patient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reload, "_ATTEMPTS", 60)
    file = fleet.folder / "targets.json"
    with constantly(file):
        outcome = fleet.load()
    assert outcome.loaded is None
    assert outcome.files[file] == "moving"


def test_a_fleet_that_lies_still_is_read_at_once(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    time.sleep(0.15)
    pauses: list[float] = []
    monkeypatch.setattr(reload.time, "sleep", pauses.append)
    assert fleet.load().loaded is not None
    assert pauses == []


def test_a_time_of_change_that_is_yet_to_come_is_no_reason_to_wait(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file server whose clock is ahead."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() - 3_600_000_000_000)
    assert fleet.load().refused is None


class constantly:  # noqa: N801 -- reads as one
    """Writes the same content to a file in place, again and again."""

    def __init__(self, file: Path) -> None:
        self._data = file.read_bytes()
        self._file = file
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def _write(self) -> None:
        while not self._stop.wait(0.005):
            self._file.write_bytes(self._data)

    def __enter__(self) -> None:
        self._file.write_bytes(self._data)
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


# ── Too few replicas ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_shrink_beyond_the_limit_is_refused_at_its_pool_until_it_is_allowed(fleet: Fleet) -> None:
    fleet.load()
    fleet.write(4)
    outcome = fleet.load()
    assert outcome.loaded is None
    assert outcome.refused == "it would lose too many replicas"
    (told,) = fleet.told(outcome)
    assert told == (
        "fleet.yaml:15:5: error LB930 pools.llama: the pool llama would go from 10 to 4 replicas (-60%), "
        "which is more than max_shrink (50%) (`lbctl reload --allow-shrink` confirms it)"
    )
    assert outcome.shrink == outcome.diagnostics
    allowed = fleet.load(allow_shrink=True)
    assert sizes(allowed)["llama"] == 4
    assert [item.code for item in allowed.shrink] == ["LB930"]
    assert fleet.load().refused is None


def test_a_shrink_within_the_limit_is_taken(fleet: Fleet) -> None:
    fleet.load()
    fleet.write(5)
    assert sizes(fleet.load())["llama"] == 5


def test_a_file_that_raises_the_limit_does_not_confirm_its_own_shrink(fleet: Fleet) -> None:
    fleet.load()
    fleet.write(1)
    file = fleet.folder / "fleet.yaml"
    file.write_text(file.read_text().replace("control:\n", "control:\n  max_shrink: 100%\n"))
    assert fleet.load().shrink != ()


def test_a_file_of_targets_that_shrinks_or_goes_is_refused(fleet: Fleet) -> None:
    fleet.load()
    fleet.target(1)
    assert [item.path[:2] for item in fleet.load().shrink] == [("pools", "filed")]
    (fleet.folder / "targets.json").unlink()
    assert [item.path[:2] for item in fleet.load().shrink] == [("pools", "filed")]
    fleet.target(3)
    assert sizes(fleet.load())["filed"] == 3


def test_replicas_that_discovery_has_found_are_counted(fleet: Fleet) -> None:
    found = tuple(Replica(f"r{index}", Address("10.2.0.1", index + 1)) for index in range(30))

    def discovered(topology: Topology) -> Topology:
        pools = tuple(
            replace(pool, replicas=found) if isinstance(pool.discovery, DnsDiscovery) else pool
            for pool in topology.pools
        )
        return replace(topology, pools=pools)

    dns = "  named: {discovery: {dns: {name: embedder.test, port: 80}}}"
    fleet.write(10, dns)
    fleet.load()
    fleet.write(10)
    assert fleet.reloader.load().shrink == ()
    assert [item.path for item in fleet.reloader.load(discovered=discovered).shrink] == [("pools",)]


def test_what_was_not_accepted_is_nothing_to_judge_by(fleet: Fleet) -> None:
    fleet.reloader.load()
    fleet.write(1)
    assert fleet.reloader.load().refused is None
