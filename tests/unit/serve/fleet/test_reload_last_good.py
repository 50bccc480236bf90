"""What stays in use: certificates in rotation, the fleet that runs while its files are bad, what a restart finds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from lbctl.serve.fleet.reload import FleetReloader
from lbctl.serve.state.records import SavedFleet
from tests.support.reload import SECRET, Fleet, certificate, sizes
from tests.support.state import led


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


# ── Certificates in rotation ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_certificate_beside_an_old_key_leaves_the_last_good_pair_and_says_so(fleet: Fleet) -> None:
    before = certificate(fleet.load())
    pair = fleet.authority.issue("second.test")
    (fleet.folder / "tls" / "server.crt").write_bytes(pair.certificate.read_bytes())
    fleet.write(9)
    outcome = fleet.load()
    assert sizes(outcome)["llama"] == 9
    assert certificate(outcome) == before
    (told,) = fleet.told(outcome)
    assert told == (
        "fleet.yaml:5:40: warning LB931 listeners.public.tls.certificates[0].certificate: 'tls/server.crt' and "
        "'tls/server.key': the certificate and the key do not belong together; what was good before stays in use"
    )
    (fleet.folder / "tls" / "server.key").write_bytes(pair.key.read_bytes())
    outcome = fleet.load()
    assert (certificate(outcome), outcome.diagnostics) == (pair.certificate.read_bytes(), ())


@pytest.mark.parametrize("damage", ["gone", "half", "empty", "directory"])
@pytest.mark.parametrize("name", ["server.crt", "server.key", "ca.crt"])
def test_whatever_happens_to_a_file_of_tls_the_last_good_one_stays(fleet: Fleet, name: str, damage: str) -> None:
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
    told = fleet.told(outcome)
    assert len(told) == 1
    assert "warning LB931" in told[0]
    assert "stays in use" in told[0]


def test_a_pair_that_was_never_good_is_an_error_and_its_files_are_followed(fleet: Fleet) -> None:
    (fleet.folder / "tls" / "server.key").unlink()
    outcome = fleet.load()
    assert outcome.loaded is None
    assert [line.split(": ")[1] for line in fleet.told(outcome)] == [
        "error LB931 listeners.public.tls.certificates[0].certificate"
    ]
    assert fleet.folder / "tls" / "server.key" in outcome.files
    fleet.put(fleet.authority.issue("second.test"))
    assert fleet.load().refused is None


def test_an_encrypted_key_is_refused_and_nobody_is_asked_for_its_password(fleet: Fleet) -> None:
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_pem_private_key((fleet.folder / "tls" / "server.key").read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    data = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    (fleet.folder / "tls" / "server.key").write_bytes(data)
    outcome = fleet.load()
    assert outcome.loaded is None
    assert "LB931" in fleet.told(outcome)[0]


def test_files_that_only_another_kind_of_proxy_reads_are_not_asked_for(fleet: Fleet) -> None:
    (fleet.folder / "tls" / "server.key").unlink()
    proxies = 'proxies: {edge: {kind: nginx}, inner: {kind: envoy, listeners: [plain], nodes: ["a*"]}}\n'
    (fleet.folder / "proxies.yaml").write_text(
        f'version: 1\n{proxies}listeners: {{plain: {{bind: "127.0.0.1:8080"}}}}\n'
    )
    outcome = fleet.load()
    assert outcome.loaded is not None
    assert outcome.loaded.secrets.files == {}


def test_nothing_of_a_key_is_ever_told(fleet: Fleet) -> None:
    fleet.load()
    (fleet.folder / "tls" / "server.crt").write_text(SECRET)
    (fleet.folder / "secrets/keys.yaml").write_text(f"{SECRET}\n")
    outcome = fleet.load()
    assert outcome.loaded is None
    assert "hunter2" not in repr(outcome) + str(fleet.told(outcome))


# ── The fleet that runs, while the files are bad ─────────────────────────────────────────────────────────────────────


@pytest.fixture
def broken(fleet: Fleet) -> Fleet:
    """A fleet that runs, and whose YAML has been broken since."""
    fleet.load()
    (fleet.folder / "fleet.yaml").write_text("version: 1\npools: {")
    assert fleet.load().running is None
    return fleet


def test_a_certificate_is_rotated_although_the_yaml_is_broken(broken: Fleet) -> None:
    pair = broken.authority.issue("second.test")
    broken.put(pair)
    outcome = broken.load()
    assert outcome.loaded is None
    assert outcome.refused is not None
    assert certificate(outcome) == pair.certificate.read_bytes()
    assert broken.load().running is None, "told once"


def test_a_file_of_targets_is_followed_although_the_yaml_is_broken(broken: Fleet) -> None:
    broken.target(5)
    outcome = broken.load()
    assert sizes(outcome) == {"filed": 5, "llama": 10}
    assert outcome.saved is not None
    assert [len(json.loads(data)[0]["targets"]) for data in outcome.saved.targets.values()] == [5]


@pytest.mark.parametrize("text", [None, "[", '[{"targets": []}]'])
def test_broken_yaml_and_broken_targets_leave_the_targets_as_they_were(broken: Fleet, text: str | None) -> None:
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
    """What a process that has loaded this fleet leaves to the next one."""
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


def test_the_last_good_fleet_comes_back_when_its_files_are_gone(fleet: Fleet, tmp_path: Path) -> None:
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


def test_restored_targets_are_those_of_today_where_they_are_good(fleet: Fleet, tmp_path: Path) -> None:
    kept = stored(fleet, tmp_path / "state")
    (fleet.folder / "fleet.yaml").write_text("broken: [")
    fleet.target(3)
    assert sizes(FleetReloader([str(fleet.folder)]).restore(kept))["filed"] == 3
    fleet.target(1)
    assert sizes(FleetReloader([str(fleet.folder)]).restore(kept))["filed"] == 4
    (fleet.folder / "targets.json").write_text("[[[")
    assert sizes(FleetReloader([str(fleet.folder)]).restore(kept))["filed"] == 4


def test_a_shrink_while_nobody_was_there_is_judged_by_what_ran_before(fleet: Fleet, tmp_path: Path) -> None:
    kept = stored(fleet, tmp_path / "state")
    fleet.write(2)
    reloader = FleetReloader([str(fleet.folder)])
    reloader.accept(reloader.restore(kept))
    assert [item.path for item in reloader.load().shrink] == [("pools", "llama"), ("pools",)]


def test_a_fleet_that_can_no_longer_be_restored_says_why(fleet: Fleet, tmp_path: Path) -> None:
    kept = stored(fleet, tmp_path / "state")
    (fleet.folder / "tls" / "server.key").unlink()
    outcome = FleetReloader([str(fleet.folder)]).restore(kept)
    assert outcome.loaded is None
    assert outcome.refused == "1 error in its files"
    assert fleet.folder / "tls" / "server.key" in outcome.files


def test_no_key_is_in_the_state(fleet: Fleet, tmp_path: Path) -> None:
    stored(fleet, tmp_path / "state")
    content = b"".join(file.read_bytes() for file in (tmp_path / "state").iterdir())
    assert b"10.0.0.7:8000" in content, "this would find it"
    assert SECRET.encode() not in content
    for line in (fleet.folder / "tls" / "server.key").read_bytes().splitlines()[1:-1]:
        assert line not in content


def test_a_file_of_targets_that_holds_something_else_is_not_kept(fleet: Fleet, tmp_path: Path) -> None:
    (fleet.folder / "targets.json").write_text(SECRET)
    outcome = fleet.load()
    assert (outcome.loaded, outcome.saved) == (None, None)
