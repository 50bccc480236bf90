"""The last valid configuration: rotated certificates, broken files of a running fleet, and restarts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lbctl.serve.fleet.reload import FleetReloader
from lbctl.store.records import SavedFleet
from tests.support.reload import SECRET, FileClock, Fleet, certificate, sizes
from tests.support.state import led


@pytest.fixture
def fleet(tmp_path: Path, file_clock: FileClock) -> Fleet:
    return Fleet(tmp_path, file_clock)


# ── Certificates in rotation ─────────────────────────────────────────────────────────────────────────────────────────


def test_mismatched_certificate_keeps_the_last_valid_pair(fleet: Fleet) -> None:
    before = certificate(fleet.load())
    pair = fleet.authority.issue("second.test")
    (fleet.folder / "tls" / "server.crt").write_bytes(pair.certificate.read_bytes())
    fleet.write(9)
    outcome = fleet.load()
    assert sizes(outcome)["llama"] == 9
    assert certificate(outcome) == before
    (message,) = fleet.messages(outcome)
    assert message == (
        "fleet.yaml:5:40: warning LB931 listeners.public.tls.certificates[0].certificate: 'tls/server.crt' and "
        "'tls/server.key': the certificate and the key do not match; the last valid certificate stays in use"
    )
    (fleet.folder / "tls" / "server.key").write_bytes(pair.key.read_bytes())
    outcome = fleet.load()
    assert (certificate(outcome), outcome.diagnostics) == (pair.certificate.read_bytes(), ())


@pytest.mark.parametrize("damage", ["gone", "half", "empty", "directory"])
@pytest.mark.parametrize("name", ["server.crt", "server.key", "ca.crt"])
def test_damaged_tls_file_keeps_the_last_valid_one(fleet: Fleet, name: str, damage: str) -> None:
    before = fleet.load()
    assert before.loaded is not None
    file = fleet.folder / "tls" / name
    data = file.read_bytes()
    file.unlink()
    if damage == "directory":
        file.mkdir()
    elif damage != "gone":
        file.write_bytes(data[: len(data) // 2] if damage == "half" else b"")
    outcome = fleet.load()
    assert outcome.loaded is not None
    assert outcome.loaded.secrets.files == before.loaded.secrets.files
    messages = fleet.messages(outcome)
    assert len(messages) == 1
    assert "warning LB931" in messages[0]
    assert "stays in use" in messages[0]


def test_initially_invalid_pair_is_an_error_and_is_followed(fleet: Fleet) -> None:
    (fleet.folder / "tls" / "server.key").unlink()
    outcome = fleet.load()
    assert outcome.loaded is None
    assert [line.split(": ")[1] for line in fleet.messages(outcome)] == [
        "error LB931 listeners.public.tls.certificates[0].certificate"
    ]
    assert fleet.folder / "tls" / "server.key" in outcome.files
    fleet.put(fleet.authority.issue("second.test"))
    assert fleet.load().refused is None


def test_encrypted_key_is_rejected_without_a_prompt(fleet: Fleet) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key((fleet.folder / "tls" / "server.key").read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    data = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    (fleet.folder / "tls" / "server.key").write_bytes(data)
    outcome = fleet.load()
    assert outcome.loaded is None
    assert "LB931" in fleet.messages(outcome)[0]


def test_files_for_other_kinds_of_proxies_are_not_required(fleet: Fleet) -> None:
    (fleet.folder / "tls" / "server.key").unlink()
    proxies = 'proxies: {edge: {kind: nginx}, inner: {kind: envoy, listeners: [plain], nodes: ["a*"]}}\n'
    (fleet.folder / "proxies.yaml").write_text(
        f'version: 1\n{proxies}listeners: {{plain: {{bind: "127.0.0.1:8080"}}}}\n'
    )
    outcome = fleet.load()
    assert outcome.loaded is not None
    assert outcome.loaded.secrets.files == {}


def test_keys_never_appear_in_messages(fleet: Fleet) -> None:
    fleet.load()
    (fleet.folder / "tls" / "server.crt").write_text(SECRET)
    (fleet.folder / "secrets/keys.yaml").write_text(f"{SECRET}\n")
    outcome = fleet.load()
    assert outcome.loaded is None
    assert "hunter2" not in repr(outcome) + str(fleet.messages(outcome))


# ── Running fleet with broken files ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def broken(fleet: Fleet) -> Fleet:
    """Return a running fleet whose YAML is broken now."""
    fleet.load()
    (fleet.folder / "fleet.yaml").write_text("version: 1\npools: {")
    assert fleet.load().running is None
    return fleet


def test_certificate_is_rotated_while_the_yaml_is_broken(broken: Fleet) -> None:
    pair = broken.authority.issue("second.test")
    broken.put(pair)
    outcome = broken.load()
    assert outcome.loaded is None
    assert outcome.refused is not None
    assert certificate(outcome) == pair.certificate.read_bytes()
    assert broken.load().running is None, "reported once"


def test_targets_are_followed_while_the_yaml_is_broken(broken: Fleet) -> None:
    broken.target(5)
    outcome = broken.load()
    assert sizes(outcome) == {"filed": 5, "llama": 10}
    assert outcome.saved is not None
    assert [len(json.loads(data)[0]["targets"]) for data in outcome.saved.targets.values()] == [5]


@pytest.mark.parametrize("text", [None, "[", '[{"targets": []}]'])
def test_broken_yaml_and_targets_keep_the_last_targets(broken: Fleet, text: str | None) -> None:
    pair = broken.authority.issue("second.test")
    broken.put(pair)
    (broken.folder / "targets.json").unlink()
    if text is not None:
        (broken.folder / "targets.json").write_text(text)
    outcome = broken.load()
    assert sizes(outcome) == {"filed": 4, "llama": 10}
    assert certificate(outcome) == pair.certificate.read_bytes()


# ── After a restart ──────────────────────────────────────────────────────────────────────────────────────────────────


def stored(fleet: Fleet, state: Path) -> SavedFleet:
    """Return the fleet as a process saves it for the next one."""
    outcome = fleet.load()
    assert outcome.saved is not None

    store = led(state)
    store.save_fleet(replace(outcome.saved, version="abc"))
    store.close()
    store = led(state)
    kept = store.last_fleet()
    store.close()
    assert kept is not None
    return kept


def test_saved_fleet_is_restored_without_its_files(fleet: Fleet, tmp_path: Path) -> None:
    kept = stored(fleet, tmp_path / "state")
    before = fleet.load()
    (fleet.folder / "fleet.yaml").unlink()
    (fleet.folder / "targets.json").unlink()
    reloader = FleetReloader([str(fleet.folder)])
    assert reloader.load().loaded is None
    outcome = reloader.restore(kept)
    assert sizes(outcome) == {"filed": 4, "llama": 10}
    assert outcome.loaded is not None
    assert before.loaded is not None
    assert outcome.loaded.compiled.topology == before.loaded.compiled.topology
    assert certificate(outcome) == certificate(before)
    assert outcome.saved == kept


def test_restored_fleet_uses_current_valid_targets(fleet: Fleet, tmp_path: Path) -> None:
    kept = stored(fleet, tmp_path / "state")
    (fleet.folder / "fleet.yaml").write_text("broken: [")
    fleet.target(3)
    assert sizes(FleetReloader([str(fleet.folder)]).restore(kept))["filed"] == 3
    fleet.target(1)
    assert sizes(FleetReloader([str(fleet.folder)]).restore(kept))["filed"] == 4
    (fleet.folder / "targets.json").write_text("[[[")
    assert sizes(FleetReloader([str(fleet.folder)]).restore(kept))["filed"] == 4


def test_shrink_across_restart_is_compared_with_the_saved_fleet(fleet: Fleet, tmp_path: Path) -> None:
    kept = stored(fleet, tmp_path / "state")
    fleet.write(2)
    reloader = FleetReloader([str(fleet.folder)])
    reloader.accept(reloader.restore(kept))
    assert [item.path for item in reloader.load().shrink] == [("pools", "llama"), ("pools",)]


def test_failed_restore_reports_the_reason(fleet: Fleet, tmp_path: Path) -> None:
    kept = stored(fleet, tmp_path / "state")
    (fleet.folder / "tls" / "server.key").unlink()
    outcome = FleetReloader([str(fleet.folder)]).restore(kept)
    assert outcome.loaded is None
    assert outcome.refused == "1 error in its files"
    assert fleet.folder / "tls" / "server.key" in outcome.files


def test_state_contains_no_keys(fleet: Fleet, tmp_path: Path) -> None:
    stored(fleet, tmp_path / "state")
    content = b"".join(file.read_bytes() for file in (tmp_path / "state").iterdir())
    assert b"10.0.0.7:8000" in content, "this would find it"
    assert SECRET.encode() not in content
    for line in (fleet.folder / "tls" / "server.key").read_bytes().splitlines()[1:-1]:
        assert line not in content


def test_file_that_contains_no_targets_is_not_saved(fleet: Fleet, tmp_path: Path) -> None:
    (fleet.folder / "targets.json").write_text(SECRET)
    outcome = fleet.load()
    assert (outcome.loaded, outcome.saved) == (None, None)
