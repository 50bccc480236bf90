"""The parts of `lbctl serve` that need no process: log, drains, answers of discovery, exposure, settings, status."""

from __future__ import annotations

import io
import json
import logging
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lbctl.base.diagnostics import Diagnostic, Diagnostics, Position
from lbctl.cli import run
from lbctl.control import drains
from lbctl.control.compose import compose
from lbctl.control.loop_output import LoopOutput
from lbctl.ir.address import Address
from lbctl.ir.pools import DnsDiscovery, Pool, Replica
from lbctl.ir.proxies import Control, ServerTls
from lbctl.ir.snapshot import Snapshot, replica_counts
from lbctl.ir.topology import Topology
from lbctl.model.fleet import FleetSource, read
from lbctl.runtime import log
from lbctl.serve.api import endpoints, pool_rows, status_rows
from lbctl.serve.discovery.dns import replicas_of
from lbctl.serve.discovery.guard import accepted_answers, unresolved
from lbctl.serve.discovery.interface import Discovered
from lbctl.serve.fleet.reader import read_control
from lbctl.serve.settings import Options, make_token, settings
from lbctl.xds.resource import CDS, EDS, Resource, Resources, changed_names


def topology(*pools: Pool) -> Topology:
    return Topology((), (), pools)


def replica(name: str, **keys: object) -> Replica:
    return replace(Replica(name, Address("10.0.0.1", 80)), **keys)  # type: ignore[arg-type]


# ── The log ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = log.start(stream)
    yield stream
    log.stop(handler)


def test_event_is_one_line_of_time_level_message_and_values(logged: io.StringIO) -> None:
    log.event("published", version="ab12", because_of="the files", eds=3, nothing=None)
    when, rest = logged.getvalue().split(" ", 1)
    assert rest == 'info published version=ab12 because_of="the files" eds=3\n'
    assert when.endswith("Z")


@pytest.mark.parametrize("words", ["a\nb", "a\rb", "\x1b[2Jx", "a\u2028b", 'quo"te', "k=v", ""])
def test_log_line_is_one_line_for_any_text(logged: io.StringIO, words: str) -> None:
    log.event(f"logged {words}", words=words)
    text = logged.getvalue()
    assert text.count("\n") == 1
    assert text[:-1].isprintable()
    value = text[:-1].rpartition("words=")[2]
    assert (json.loads(value) if value.startswith('"') else value) == words


def test_internal_error_is_one_line_with_its_traceback(logged: io.StringIO) -> None:
    try:
        raise ValueError("oops")
    except ValueError:
        log.failure("it failed")
    assert logged.getvalue().count("\n") == 1
    assert "ValueError: oops" in logged.getvalue()


def test_diagnostics_are_logged_as_commands_print_them(logged: io.StringIO) -> None:
    log.findings([Diagnostic("LB203", "no", Position("f.yaml", 3, 4), ("pools", "a"), "yes", "warning")])
    assert logged.getvalue().endswith("Z warn f.yaml:3:4: warning LB203 pools.a: no (yes)\n")


def test_info_messages_of_libraries_are_not_logged(logged: io.StringIO) -> None:
    logging.getLogger("aiohttp.access").info("GET /")
    logging.getLogger("lbctl.xds.protocol.server").info("hello")
    assert [line.split(" ", 1)[1] for line in logged.getvalue().splitlines()] == ["info hello"]


# ── Drains ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_drained_replica_is_removed_at_its_deadline() -> None:
    fleet = topology(Pool("p", (replica("a", drain=True), replica("b")), drain_deadline=30_000))
    since = drains.track({}, fleet, {}, now=1000.0)
    assert since == {("p", "a"): 1000.0}
    assert drains.next_due(since, fleet, 1000.0) == 1030.0
    assert drains.expired(since, fleet, 1029.9) == {}
    assert drains.expired(since, fleet, 1030.0) == {"p": frozenset({"a"})}
    assert drains.next_due(since, fleet, 1030.0) is None


def test_drain_keeps_its_start_until_it_ends() -> None:
    fleet = topology(Pool("p", (replica("a", drain=True),)))
    since = drains.track({("p", "a"): 500.0, ("q", "z"): 1.0}, fleet, {}, now=1000.0)
    assert since == {("p", "a"): 500.0}
    undrained = topology(Pool("p", (replica("a"),)))
    assert drains.track(since, undrained, {}, now=1001.0) == {}
    assert drains.track({}, undrained, {"p": frozenset({"a"})}, now=1002.0) == {("p", "a"): 1002.0}


def test_drain_that_starts_in_the_future_starts_now() -> None:
    fleet = topology(Pool("p", (replica("a", drain=True),)))
    assert drains.track({("p", "a"): 9_999.0}, fleet, {}, now=1000.0) == {("p", "a"): 1000.0}


def test_removing_a_replica_keeps_other_pools_identical() -> None:
    fleet = topology(Pool("p", (replica("a"), replica("b"))), Pool("q", (replica("a"),)))
    left = drains.without(fleet, {"p": frozenset({"a"})})
    assert [item.name for item in left.pools[0].replicas] == ["b"]
    assert left.pools[1] is fleet.pools[1]
    assert drains.without(fleet, {}) is fleet


# ── Answers of discovery ─────────────────────────────────────────────────────────────────────────────────────────────


def discovered(**pools: Sequence[str]) -> Discovered:
    return Discovered(
        pools={name: replicas_of(dns(name), tuple(addresses)) for name, addresses in pools.items()},
        answers={f"{name}.internal": tuple(addresses) for name, addresses in pools.items()},
        keys={name: f"{name}.internal" for name in pools},
    )


def dns(name: str) -> DnsDiscovery:
    return DnsDiscovery(f"{name}.internal", 80)


NAMED = topology(*(Pool(name, discovery=dns(name)) for name in ("a", "b")))
FOUR = [f"10.0.0.{number}" for number in range(1, 5)]


def test_answer_that_removes_most_of_a_pool_is_withheld() -> None:
    before = discovered(a=FOUR, b=FOUR)
    accepted, lost = accepted_answers(NAMED, before, discovered(a=FOUR[:1], b=[*FOUR, "10.0.0.9"]), 50.0)
    assert [len(accepted.pools[name]) for name in ("a", "b")] == [4, 5]
    assert accepted.answers == {"a.internal": tuple(FOUR), "b.internal": (*FOUR, "10.0.0.9")}
    assert [item.path for item in lost] == [("pools", "a")]


def test_answer_that_removes_fewer_replicas_is_accepted() -> None:
    after = discovered(a=FOUR[:2], b=FOUR)
    assert accepted_answers(NAMED, discovered(a=FOUR, b=FOUR), after, 50.0) == (after, ())


def test_losses_that_are_too_many_in_total_are_withheld() -> None:
    accepted, lost = accepted_answers(NAMED, discovered(a=FOUR, b=FOUR), discovered(a=FOUR[:2], b=FOUR[:1]), 60.0)
    assert {item.path for item in lost} == {("pools", "b"), ("pools",)}
    assert [len(accepted.pools[name]) for name in ("a", "b")] == [4, 4]


def test_first_answer_of_a_pool_is_always_accepted() -> None:
    after = discovered(a=FOUR[:1])
    assert accepted_answers(NAMED, Discovered(), after, 0.0) == (after, ())
    assert unresolved(NAMED, after) == ["b"]


# ── Exposure ─────────────────────────────────────────────────────────────────────────────────────────────────────────

MTLS = ServerTls("c", "k", "ca")
ANY = Address("0.0.0.0", 18000)


@pytest.mark.parametrize(
    ("control", "insecure", "codes"),
    [
        (Control(), False, []),
        (Control(xds_bind=Address("::1", 1), api_bind=Address("127.3.2.1", 1)), False, []),
        (Control(xds_bind=Address(path="/run/x.sock"), api_bind=Address(path="/run/a.sock")), False, []),
        (Control(xds_bind=ANY), False, ["LB510"]),
        (Control(xds_bind=Address("::", 1)), False, ["LB510"]),
        (Control(xds_bind=Address("gateway.internal", 1)), False, ["LB510"]),
        (Control(xds_bind=ANY, xds_tls=ServerTls("c", "k")), False, ["LB510"]),
        (Control(xds_bind=ANY, xds_tls=MTLS), False, []),
        (Control(xds_bind=ANY), True, []),
        (Control(logs_bind=ANY), True, ["LB512"]),
        (Control(api_bind=ANY), False, ["LB511"]),
        (Control(api_bind=ANY), True, ["LB511"]),
        (Control(api_bind=ANY, api_tls=ServerTls("c", "k")), False, []),
    ],
)  # fmt: skip
def test_listening_beyond_loopback_needs_protection(
    control: Control, insecure: bool, codes: list[str], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    assert [item.code for item in endpoints.exposed_addresses(control, token, insecure)] == codes


def test_api_beyond_loopback_needs_a_token(tmp_path: Path) -> None:
    control = Control(api_bind=ANY, api_tls=ServerTls("c", "k"))
    (tmp_path / "empty").write_text("\n")
    for token in (tmp_path / "missing", tmp_path / "empty"):
        assert [item.code for item in endpoints.exposed_addresses(control, token, False)] == ["LB511"]


def test_token_is_created_once_with_private_permissions(tmp_path: Path) -> None:
    file = tmp_path / "api-token"
    assert make_token(file)
    token = file.read_text()
    assert len(token.strip()) >= 32
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not make_token(file)
    assert file.read_text() == token


def test_token_that_was_not_written_is_created_later(tmp_path: Path) -> None:
    file, script = (
        tmp_path / "api-token",
        "import sys; from lbctl.serve.settings import *; make_token(Path(sys.argv[1]))",
    )
    limited = ["prlimit", "--fsize=0", sys.executable, "-c", script, str(file)]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=120, check=False)
    assert "File too large" in done.stderr
    assert make_token(file)
    assert file.read_text().strip()


# ── Settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────

CONTROL = """version: 1
control:
  state: state
  xds: {bind: "127.0.0.1:1800", tls: {certificate: tls/x.crt, key: tls/x.key, client_ca: tls/ca.crt}}
  api: {bind: "127.0.0.1:1801", token_file: secrets/token}
"""


def source_of(path: Path) -> FleetSource:
    source = read([str(path)], Diagnostics())
    assert source is not None
    return source


def test_paths_of_control_are_relative_to_their_file(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(CONTROL)
    chosen = settings(Options((str(tmp_path),)), source_of(tmp_path))
    assert chosen.state == tmp_path / "state"
    assert chosen.token == tmp_path / "secrets/token"
    assert chosen.control.xds_tls == ServerTls(*(str(tmp_path / "tls" / name) for name in ("x.crt", "x.key", "ca.crt")))


def test_command_line_overrides_the_files(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(CONTROL)
    options = Options((str(tmp_path),), "/elsewhere", Address("127.0.0.1", 7), Address("127.0.0.1", 8))
    chosen = settings(options, source_of(tmp_path))
    assert (chosen.state, chosen.control.xds_bind.port, chosen.control.api_bind.port) == (Path("/elsewhere"), 7, 8)


def test_control_is_read_although_other_files_are_broken(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("version: 1\npools: [")
    (tmp_path / "b.yaml").write_text(CONTROL)
    assert settings(Options((str(tmp_path),)), read_control([str(tmp_path)]).source).control.api_bind.port == 1801
    (tmp_path / "b.yaml").unlink()
    assert read_control([str(tmp_path)]).source is None


def test_changes_that_need_a_restart_are_reported(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(CONTROL)
    running = settings(Options((str(tmp_path),)), source_of(tmp_path)).control
    (tmp_path / "fleet.yaml").write_text(CONTROL.replace("1800", "1900").replace("tls/x.crt", "tls/y.crt"))
    written = settings(Options((str(tmp_path),)), source_of(tmp_path)).control
    assert status_rows.restart_needed(running, running) == ()
    assert status_rows.restart_needed(running, written) == ("control.xds.bind", "control.xds.tls")


# ── Status ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_share_is_relative_to_replicas_that_get_requests() -> None:
    pool = Pool(
        "p",
        (
            replica("busy", capacity=3.0), replica("drained", drain=True, capacity=9.0),
            replica("slow", capacity=1.0), replica("spare", priority=1),
        ),
    )  # fmt: skip
    (shown,) = pool_rows.pools(compose(Snapshot(topology(pool)), LoopOutput(), (), {}, 0.0), pool_rows.LiveState())
    rows = {row.name: row for row in shown.replicas}
    assert {name: row.share for name, row in rows.items()} == {"busy": 0.75, "drained": 0, "slow": 0.25, "spare": 0}
    assert rows["drained"].drained == "1970-01-01T00:00:00.000Z"
    assert rows["busy"].drained is None
    assert replica_counts(Snapshot(topology(pool))) == {"p": (4, 1)}


def test_fully_drained_pool_has_no_shares() -> None:
    fleet = Snapshot(topology(Pool("p", (replica("a", drain=True),), drain_deadline=60_000)))
    (shown,) = pool_rows.pools(compose(fleet, LoopOutput(), (), {("p", "a"): 0.0}, 60.0), pool_rows.LiveState())
    assert [(row.share, row.out) for row in shown.replicas] == [(0, True)]


def test_changed_names_are_resources_with_other_content() -> None:
    same = Resource(EDS, "same", b"1")
    before = Resources(
        {EDS: {"same": same, "again": Resource(EDS, "again", b"2"), "gone": Resource(EDS, "gone", b"3")}}
    )
    after = Resources(
        {
            EDS: {"same": same, "again": Resource(EDS, "again", b"2")},
            CDS: {"new": Resource(CDS, "new", b"4")},
        }
    )
    assert changed_names(before, after) == {("eds", "gone"), ("cds", "new")}
    assert changed_names(None, after) == {("eds", "same"), ("eds", "again"), ("cds", "new")}


# ── Commands ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "-"], "standard input"),
        (["serve", "x", "--xds-bind", "nonsense"], "--xds-bind"),
        (["serve", "x", "--api-bind", "127.0.0.1:99999"], "--api-bind"),
        (["serve"], "Missing argument"),
        (["status", "everything"], "everything"),
        (["reload", "--allow-shrnik"], "--allow-shrnik"),
    ],
)
def test_usage_error_exits_with_64(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    assert run(arguments) == 64
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("command", [["status"], ["status", "pools"], ["reload"]])
def test_unreachable_server_exits_with_4(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    assert run([*command, "--server", "http://127.0.0.1:1"]) == 4
    printed = capsys.readouterr()
    assert "http://127.0.0.1:1/api/v1/" in printed.err
    assert "Connection refused" in printed.err
    assert printed.out == ""


def test_missing_token_file_exits_with_4(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["reload", "--server", "http://127.0.0.1:1", "--token-file", str(tmp_path / "none")]) == 4
    assert "cannot be read" in capsys.readouterr().err


def test_token_is_not_sent_over_the_network_in_clear_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    assert run(["reload", "--server", "http://192.0.2.1:18080", "--token-file", str(tmp_path / "token")]) == 4
    assert "unencrypted" in capsys.readouterr().err
