"""Reloads: which fleet may replace the running one, with real files as editors and programs write them."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from lbctl.ir.address import Address
from lbctl.ir.pools import DnsDiscovery, Replica
from lbctl.ir.topology import Topology
from lbctl.serve.fleet.reader import read_control
from tests.support.reload import FileClock, Fleet, sizes


@pytest.fixture
def fleet(tmp_path: Path, file_clock: FileClock) -> Fleet:
    return Fleet(tmp_path, file_clock)


# ── Good and bad files ───────────────────────────────────────────────────────────────────────────────────────────────


def test_valid_fleet_is_loaded_with_all_its_files(fleet: Fleet) -> None:
    outcome = fleet.load()
    assert (sizes(outcome), outcome.refused, outcome.diagnostics) == ({"filed": 4, "llama": 10}, None, ())
    assert outcome.loaded is not None
    assert outcome.loaded.secrets.files == {
        name: (fleet.folder / name).read_bytes() for name in ("tls/server.crt", "tls/server.key", "tls/ca.crt")
    }
    assert [key.tenant for key in outcome.loaded.secrets.api_keys["secrets/keys.yaml"]] == ["acme"]


def test_ignored_warning_is_not_reported(fleet: Fleet) -> None:
    own = "routes: {health: {match: {path: /up}, respond: {status: 200}, auth: {api_keys: {file: secrets/keys.yaml}}}}"
    (fleet.folder / "own.yaml").write_text(f"version: 1\n{own}\n")
    assert [item.code for item in fleet.load().diagnostics] == ["LB106"]
    (fleet.folder / "own.yaml").write_text(f"version: 1\n{own}   # lbctl: ignore LB106 (it is for all)\n")
    assert fleet.load().diagnostics == ()


def test_every_referenced_file_is_followed(fleet: Fleet) -> None:
    names = {str(file.relative_to(fleet.folder)) for file in fleet.load().files}
    assert names == {
        "secrets/keys.yaml", "targets.json", "tls/ca.crt", "tls/proxies.crt", "tls/server.crt", "tls/server.key",
        "tls/xds.crt", "tls/xds.key", "token",
    }  # fmt: skip


def test_unchanged_parts_are_equal_after_a_reload(fleet: Fleet) -> None:
    first = _topology(fleet)
    fleet.write(9)
    second = _topology(fleet)
    assert [len(pool.replicas) for pool in second.pools] == [4, 9]
    assert [new == old for new, old in zip(second.pools, first.pools, strict=True)] == [True, False]
    assert (second.listeners, second.routes) == (first.listeners, first.routes)


def _topology(fleet: Fleet) -> Topology:
    outcome = fleet.load()
    assert outcome.loaded is not None
    return outcome.loaded.compiled.topology


def test_unchanged_texts_are_parsed_once(fleet: Fleet) -> None:
    paths = [str(fleet.folder)]
    outcome, source = fleet.load(), read_control(paths).source
    assert outcome.loaded is not None
    assert source is not None
    assert source is read_control(paths).source
    assert source.root is outcome.loaded.source.root
    fleet.write(9)
    assert read_control(paths).source is not source


def test_invalid_file_is_rejected_with_all_its_errors(fleet: Fleet) -> None:
    fleet.load()
    fleet.write(10, "  broken: {replicas: [{address: nowhere, gpu: NOPE}, {weight: 0}]}", "  other: {balance: fast}")
    outcome = fleet.load()
    assert (outcome.loaded, outcome.running, outcome.saved) == (None, None, None)
    messages = fleet.messages(outcome)
    assert outcome.refused == f"{len(messages)} errors in its files"
    assert len(messages) >= 4
    assert all(line.startswith("fleet.yaml:") for line in messages)
    fleet.write(9)
    assert (sizes(fleet.load()), outcome.refused is None) == ({"filed": 4, "llama": 9}, False)


@pytest.mark.parametrize("text", [b"", b"version: 1\npools: {", b"\xff\xfe\0", b"- a list\n"])
def test_file_without_a_fleet_is_rejected_with_a_message(fleet: Fleet, text: bytes) -> None:
    fleet.load()
    (fleet.folder / "fleet.yaml").write_bytes(text)
    outcome = fleet.load()
    assert outcome.loaded is None
    assert outcome.refused == "1 error in its files"
    assert fleet.messages(outcome)[0].startswith("fleet.yaml")


def test_missing_directory_is_rejected_and_stays_followed(fleet: Fleet) -> None:
    followed = set(fleet.load().files)
    fleet.folder.rename(fleet.folder.with_name("away"))
    outcome = fleet.load()
    assert (outcome.loaded, set(outcome.files)) == (None, followed)
    assert "LB001" in fleet.messages(outcome)[0]
    fleet.folder.with_name("away").rename(fleet.folder)
    assert sizes(fleet.load()) == {"filed": 4, "llama": 10}


@pytest.mark.parametrize(("name", "text"), [("targets.json", '[{"targets": ['), ("secrets/keys.yaml", "not a key\n")])
def test_broken_targets_or_keys_reject_the_fleet(fleet: Fleet, name: str, text: str) -> None:
    fleet.load()
    fleet.write(9)
    (fleet.folder / name).write_text(text)
    outcome = fleet.load()
    assert outcome.loaded is None
    assert name in fleet.messages(outcome)[0]


# ── Half-written files ───────────────────────────────────────────────────────────────────────────────────────────────


def test_file_is_not_loaded_while_it_is_written(fleet: Fleet, file_clock: FileClock) -> None:
    """Every prefix of whole lines is a valid, smaller fleet."""
    fleet.write(20)
    file = fleet.folder / "fleet.yaml"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("")

    def write_next_line() -> None:
        if lines:
            with file.open("a") as opened:
                opened.write(lines.pop(0))
            file_clock.restart()

    file_clock.while_sleeping = write_next_line
    assert fleet.load().refused == f"{file} is still being written"
    assert sizes(fleet.load())["llama"] == 20


def _keep_changing(file: Path, clock: FileClock) -> None:
    """Write the same content to a file again whenever the reloader sleeps."""

    def write_again() -> None:
        file.write_bytes(file.read_bytes())
        clock.restart()

    clock.while_sleeping = write_again
    write_again()


def test_file_that_keeps_changing_is_rejected(fleet: Fleet, file_clock: FileClock) -> None:
    _keep_changing(fleet.folder / "fleet.yaml", file_clock)
    outcome = fleet.load()
    assert outcome.loaded is None
    assert outcome.refused == f"{fleet.folder}/fleet.yaml is still being written"
    assert "LB932" in fleet.messages(outcome)[0]
    assert 1 < file_clock.slept < 60


def test_followed_file_that_keeps_changing_is_reported(fleet: Fleet, file_clock: FileClock) -> None:
    file = fleet.folder / "targets.json"
    time.sleep(0.15)  # the other files are no longer new
    _keep_changing(file, file_clock)
    outcome = fleet.load()
    assert outcome.loaded is None
    assert outcome.files[file] == "moving"


def test_unchanging_fleet_is_read_at_once(fleet: Fleet, file_clock: FileClock) -> None:
    fleet.load()
    slept = file_clock.slept
    time.sleep(0.15)
    assert fleet.load().loaded is not None
    assert file_clock.slept == slept


def test_modification_time_in_the_future_does_not_delay(
    fleet: Fleet, file_clock: FileClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file server's clock may be ahead."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() - 3_600_000_000_000)
    assert fleet.load().refused is None
    assert file_clock.slept == 0.0


# ── Too few replicas ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_shrink_beyond_the_limit_needs_confirmation(fleet: Fleet) -> None:
    fleet.load()
    fleet.write(4)
    outcome = fleet.load()
    assert outcome.loaded is None
    assert outcome.refused == "too many replicas would be removed"
    (message,) = fleet.messages(outcome)
    assert message == (
        "fleet.yaml:15:5: error LB930 pools.llama: the pool llama would go from 10 to 4 replicas (-60%), which is more "
        "than max_shrink (50%) (to confirm the removal, run `lbctl reload --allow-shrink`)"
    )
    assert outcome.shrink == outcome.diagnostics
    allowed = fleet.load(allow_shrink=True)
    assert sizes(allowed)["llama"] == 4
    assert [item.code for item in allowed.shrink] == ["LB930"]
    assert fleet.load().refused is None


def test_shrink_within_the_limit_is_accepted(fleet: Fleet) -> None:
    fleet.load()
    fleet.write(5)
    assert sizes(fleet.load())["llama"] == 5


def test_raising_the_limit_does_not_confirm_the_same_shrink(fleet: Fleet) -> None:
    fleet.load()
    fleet.write(1)
    file = fleet.folder / "fleet.yaml"
    file.write_text(file.read_text().replace("control:\n", "control:\n  max_shrink: 100%\n"))
    assert fleet.load().shrink != ()


def test_shrunk_or_missing_targets_are_rejected(fleet: Fleet) -> None:
    fleet.load()
    fleet.target(1)
    assert [item.path[:2] for item in fleet.load().shrink] == [("pools", "filed")]
    (fleet.folder / "targets.json").unlink()
    assert [item.path[:2] for item in fleet.load().shrink] == [("pools", "filed")]
    fleet.target(3)
    assert sizes(fleet.load())["filed"] == 3


def test_discovered_replicas_count_for_the_shrink_limit(fleet: Fleet) -> None:
    thirty = tuple(Replica(f"r{index}", Address("10.2.0.1", index + 1)) for index in range(30))

    def discovered(topology: Topology) -> Topology:
        pools = tuple(
            replace(pool, replicas=thirty) if isinstance(pool.discovery, DnsDiscovery) else pool
            for pool in topology.pools
        )
        return replace(topology, pools=pools)

    dns = "  named: {discovery: {dns: {name: embedder.test, port: 80}}}"
    fleet.write(10, dns)
    fleet.load()
    fleet.write(10)
    assert fleet.reloader.load().shrink == ()
    assert [item.path for item in fleet.reloader.load(discovered=discovered).shrink] == [("pools",)]


def test_unaccepted_fleet_is_not_compared(fleet: Fleet) -> None:
    fleet.reloader.load()
    fleet.write(1)
    assert fleet.reloader.load().refused is None
