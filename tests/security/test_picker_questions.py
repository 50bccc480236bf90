"""Another user of the machine can neither take the picker's ports nor send it questions."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import grpc
import pytest
import requests
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest

from lbctl.cli.doctor.picker import keyless
from lbctl.ir.address import Address
from lbctl.ir.pools import PickPolicy, SessionKey
from lbctl.ir.snapshot import Snapshot
from lbctl.ir.topology import Topology
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker.admission import QuestionKey
from lbctl.picker.grpc_server import GrpcServer
from lbctl.picker.health import PROCESSOR, PickerHealth
from lbctl.picker.http_api import HttpApi
from lbctl.picker.http_protocol import HttpRequest
from lbctl.picker.process import local_paths
from lbctl.picker.received_tables import TableFollower
from lbctl.picker.service import PickService
from lbctl.serve.fleet.inputs import PickerPlace
from lbctl.serve.fleet.live import NoPlaces
from lbctl.serve.fleet.publisher import PublishedFleet
from lbctl.serve.picker.feed import Feed
from lbctl.serve.picker.generated_key import own_key
from lbctl.serve.picker.ports import CannotKeepError, PickerPorts
from lbctl.serve.picker.tables import FleetMeasurements
from lbctl.targets.picker import missing_key
from tests.support import fleets
from tests.support.fleet import compiled
from tests.support.fleets import Fleet, fleet_text, load_fleet
from tests.support.processes.binaries import KINDS, Kind
from tests.support.processes.control import controlling, driven
from tests.support.processes.fleet import fleet_of, pool_of, running
from tests.support.processes.http1 import Request
from tests.support.processes.picker import CLUSTER, picked, picker_section, pid_of
from tests.support.processes.ports import HOST, free_pair, release
from tests.support.processes.replicas import replicas
from tests.support.processes.scripted_picker import scripted_picker
from tests.support.processes.waiting import eventually
from tests.support.publishing import Publishing

_NOBODY = 65534
_ALL_OPTIONS = ((), (socket.SO_REUSEADDR,), (socket.SO_REUSEPORT,), (socket.SO_REUSEADDR, socket.SO_REUSEPORT))


def _binds(port: int, kind: socket.SocketKind, *options: int) -> bool:
    with socket.socket(socket.AF_INET, kind) as taken:
        for option in options:
            taken.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            taken.bind((HOST, port))
        except OSError:
            return False
    return True


def _as_nobody(act: Callable[[], bool]) -> bool:
    """Run `act` as another user of the machine, and return whether it succeeds."""
    pid = os.fork()
    if pid == 0:
        os.setuid(_NOBODY)
        os._exit(int(act()))
    return bool(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


def _taken_ports(port: int, tried: Sequence[tuple[int, ...]] = _ALL_OPTIONS) -> list[int]:
    """Return the ports of a picker that can be bound with any of these sets of options."""
    return [
        number
        for number, kind in ((port, socket.SOCK_STREAM), (port + 1, socket.SOCK_STREAM), (port + 1, socket.SOCK_DGRAM))
        if any(_binds(number, kind, *options) for options in tried)
    ]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_binds_no_kept_port() -> None:
    port = free_pair()
    with closing(PickerPorts(Address(HOST, port))):
        assert not _as_nobody(lambda: bool(_taken_ports(port)))
        with socket.socket() as listening:  # as the picker process does
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listening.bind((HOST, port))
            listening.listen()
            with socket.create_connection((HOST, port), 5), listening.accept()[0]:
                pass
        assert not _as_nobody(lambda: bool(_taken_ports(port)))
    assert _as_nobody(lambda: bool(_taken_ports(port)))


def test_kept_ports_refuse_questions_at_once() -> None:
    port = free_pair()
    with closing(PickerPorts(Address(HOST, port))):
        for number in (port, port + 1):
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((HOST, number), 5)


def test_ports_are_kept_by_one_serve() -> None:
    place = Address(HOST, free_pair())
    with closing(PickerPorts(place)), pytest.raises(CannotKeepError, match="cannot listen on"):
        PickerPorts(place)


def test_ports_are_kept_while_the_picker_restarts() -> None:
    with replicas("a", "b") as pool:
        section = picker_section()
        port = int(section["control"]["picker"]["bind"].rpartition(":")[2])
        fleet = fleet_of(pool_of(pool, balance={"algorithm": "pick"}), **section)
        with controlling(fleet) as control:
            eventually(lambda: control.status["picker"]["running"])
            starts = control.status["picker"]["starts"]
            os.kill(pid_of(control), signal.SIGKILL)
            taken: set[int] = set()

            def runs_again() -> bool:
                taken.update(_taken_ports(port, _ALL_OPTIONS[:2]))
                picker = control.status["picker"]
                return bool(picker["running"] and picker["starts"] > starts)

            eventually(runs_again)
            assert not taken


# ── The key of questions ─────────────────────────────────────────────────────────────────────────────────────────────

_KEY = "k" * 43
_HEADER = "x-lbctl-pick-key"


def _service() -> PickService:
    service = PickService()
    policy = PickPolicy((SessionKey(header="x-session-id"),), prefix=None)
    service.set_table("p", PoolTable("p", policy, (Candidate("a", "10.0.0.1:80"),)))
    return service


def _keyed() -> QuestionKey:
    key = QuestionKey()
    key.set(_KEY)
    return key


@pytest.mark.parametrize("given", ["", "x" * 43, _KEY[:-1], "\udcff"])
def test_question_without_the_key_makes_no_pick(given: str) -> None:
    service, key = _service(), _keyed()
    api = HttpApi(service, bytes, local_paths(service), key=key)
    headers = {_HEADER: [given], "x-lbctl-pool": ["p"]}
    for method, target, status in (
        ("GET", "/pick/p", 403), ("POST", "/pick/p", 403), ("POST", "/envoy?path=/", 503),
        ("POST", "/report", 403), ("POST", "/explain", 403),
    ):  # fmt: skip
        assert api.handle(HttpRequest(method, target, headers, b"{}")).status == status
    assert (service.open_picks, key.refused) == (0, 5)
    assert api.handle(HttpRequest("GET", "/ready", {}, b"")).status == 200


def test_question_with_the_key_makes_a_pick() -> None:
    service = _service()
    api = HttpApi(service, bytes, key=_keyed())
    headers = {_HEADER: [_KEY], "x-lbctl-pool": ["p"]}
    assert api.handle(HttpRequest("GET", "/pick/p", headers, b"")).headers["x-lbctl-pick"] == "a"
    assert api.handle(HttpRequest("GET", "/envoy?path=/", headers, b"")).headers["x-lbctl-replicas"] == "10.0.0.1:80"
    assert service.open_picks == 2


def test_stream_of_a_gateway_needs_the_key() -> None:
    async def asked(metadata: tuple[tuple[str, str], ...]) -> grpc.StatusCode | None:
        server = GrpcServer(service, PickerHealth(lambda: True, _never), None, key=_keyed())
        port = await server.start(Address(HOST, 0))
        try:
            async with grpc.aio.insecure_channel(f"{HOST}:{port}") as channel:
                method = channel.stream_stream(f"/{PROCESSOR}/Process", request_serializer=bytes)
                call = method(metadata=metadata)
                await call.write(ProcessingRequest(request_headers={"end_of_stream": True}).SerializeToString())
                await call.read()
                return await call.code() if call.done() else None
        except grpc.aio.AioRpcError as error:
            return error.code()
        finally:
            await server.stop(0)

    service = _service()
    assert asyncio.run(asked(())) == grpc.StatusCode.UNAUTHENTICATED
    assert service.statistics.reasons.total() == 0
    assert asyncio.run(asked(((_HEADER, _KEY),))) is None
    assert service.statistics.reasons.total() == 1


async def _never() -> AsyncIterator[None]:
    await asyncio.Event().wait()
    yield


@pytest.mark.parametrize("kind", KINDS)
def test_rendered_proxies_send_the_key_of_the_fleet(kind: Kind) -> None:
    """Nothing that a client sends reaches the picker as the key."""
    port = free_pair()
    release()
    pick = {"session": ["x-session-id"], "prefix": "off", "otherwise": "round_robin", "timeout": "10s"}
    with replicas("a", "b") as pool:
        fleet = fleet_of(
            pool_of(pool, balance={"algorithm": "pick", "pick": pick}),
            control={"picker": {"bind": f"{HOST}:{port}", "key_file": "picker-key"}},
        )
        with (
            scripted_picker(port, lambda _: "a", {item.name: item.address for item in pool}) as picker,
            running(kind, fleet, files={"picker-key": _KEY + "\n"}) as gateway,
        ):
            eventually(lambda: gateway.get("/", [(_HEADER, "forged")]).replica == "a" and bool(picker.asked))
            held = [file.name for file in (gateway.proxy.directory / "out").iterdir() if _KEY in file.read_text()]
            modes = {(gateway.proxy.directory / "out" / name).stat().st_mode & 0o777 for name in held}
    assert {asked.headers[_HEADER] for asked in picker.asked} == {_KEY}
    assert modes == {0o600}


@pytest.mark.parametrize("kind", KINDS)
def test_stranger_of_the_machine_cannot_ask(kind: str) -> None:
    """Without a key file `serve` makes a key and passes it to the proxies that it configures."""
    balance = {"algorithm": "pick", "pick": {"timeout": "10s", "prefix": "off", "session": ["x-session-id"]}}
    with replicas("a", "b") as pool, picked(kind, pool_of(pool, balance=balance)) as (control, client):
        for name in ("s1", "s2", "s3"):
            load = client.load(6, 2, Request(headers=(("x-session-id", name),)))
            load.assert_no_failure()
            assert len(load.by_replica) == 1
        place = control.status["picker"]["listens"].rpartition(":")[2]
        asked = requests.get(f"http://{HOST}:{int(place) + 1}/pick/pool", timeout=60)
        assert (asked.status_code, "x-lbctl-pick" in asked.headers) == (403, False)
        key = control.state / "picker-key"
        assert key.stat().st_mode & 0o777 == 0o600
        assert key.read_text().strip() not in control.log
        eventually(lambda: control.metric("lbctl_pick_open") == 0.0)


def test_key_is_not_sent_over_tcp() -> None:
    """An Envoy that connects over TCP without a certificate does not ask, but gets the rest of the fleet."""
    balance = {"algorithm": "pick", "pick": {"otherwise": "round_robin", "prefix": "off"}}
    with replicas("a", "b") as pool:
        fleet = fleet_of(pool_of(pool, balance=balance), **driven("edge"), **picker_section())
        with controlling(fleet) as control, control.envoy("edge", ["edge"]) as envoy:
            envoy.client().load(20, 2).assert_no_failure()
            key = (control.state / "picker-key").read_text().strip()
            assert key not in envoy.ask("/config_dump?include_eds")
            assert envoy.stat(f"cluster.{CLUSTER}.membership_total") == 0
            eventually(lambda: "picks withheld" in control.log)


# ── Owner of the key ─────────────────────────────────────────────────────────────────────────────────────────────────

_WRITTEN = {"config": "/etc/nginx/nginx.conf", "reload": {"command": ["nginx", "-s", "reload"]}}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({}, ""),
        ({"proxies": {"edge": {"kind": "envoy", "nodes": ["edge"]}, "ng": {"kind": "nginx", **_WRITTEN}}}, ""),
        ({"proxies": {"ng": {"kind": "nginx"}}}, "the proxy ng"),
        ({"proxies": {"ng": {"kind": "nginx"}}, "control": {"picker": {"key_file": "picker-key"}}}, ""),
        ({"control": {"store": {"url": "redis://127.0.0.1:6379"}}}, "members of the control plane each have a picker"),
    ],
    ids=["no proxies", "written", "rendered elsewhere", "key file", "members"],
)
def test_serve_makes_a_key_only_if_all_proxies_get_it(more: Fleet, reason: str) -> None:
    pool = {"replicas": [{"name": "a", "address": "10.0.0.1:80"}], "balance": {"algorithm": "pick"}}
    topology = compiled(fleet_text(pool, **more)).topology
    assert reason in missing_key(topology)
    assert bool(missing_key(topology)) == bool(reason)


def test_doctor_warns_where_questions_have_no_key() -> None:
    pool = {"replicas": [{"name": "a", "address": "10.0.0.1:80"}], "balance": {"algorithm": "pick"}}
    result = keyless(compiled(fleet_text(pool, proxies={"ng": {"kind": "nginx"}})).topology)
    assert result is not None
    assert (result.state, "ng" in result.message) == ("warn", True)
    assert keyless(compiled(fleet_text(pool)).topology) is None
    assert keyless(compiled(fleet_text(proxies={"ng": {"kind": "nginx"}})).topology) is None


def test_own_key_is_made_once_and_private(tmp_path: Path) -> None:
    key = own_key(tmp_path)
    assert len(key) > 32
    assert own_key(tmp_path) == key
    assert (tmp_path / "picker-key").stat().st_mode & 0o777 == 0o600
    assert own_key(tmp_path / "new") != key
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
    assert own_key(tmp_path / "picker-key") == "", "a file is not a directory"


def test_pickers_that_joined_get_a_new_key() -> None:
    async def run() -> tuple[bytes | None, bytes | None]:
        feed = Feed(lambda: FleetMeasurements(0.0))
        with feed.subscribe(trusted=True) as trusted, feed.subscribe() as stranger:
            feed.use_fleet(_published("first"))
            feed.use_fleet(_published(_KEY))
            return await trusted.next(), await stranger.next()

    trusted, stranger = asyncio.run(run())
    assert trusted is not None
    assert stranger is not None
    keys: list[str] = []
    follower = TableFollower(lambda _name, _table: None, keyed=keys.append)
    for text in trusted.splitlines():
        follower.apply(text)
    assert keys == ["", "first", _KEY]
    assert b"key" not in stranger


def _published(key: str) -> PublishedFleet:
    snapshot = Snapshot(compiled(fleet_text()).topology, own_picker_key=key)
    return cast(PublishedFleet, SimpleNamespace(composed=SimpleNamespace(snapshot=snapshot)))


class _OwnKey(NoPlaces):
    """A process that has made this key for questions to the picker."""

    def __init__(self, key: str) -> None:
        self._key = key

    def picker(self, topology: Topology) -> PickerPlace:
        return PickerPlace(key=self.picker_key(topology))

    def picker_key(self, topology: Topology) -> str:
        return self._key


def test_restarted_serve_knows_what_it_sent_with_its_key(tmp_path: Path) -> None:
    pool = {"replicas": [{"name": "a", "address": "10.0.0.1:80"}], "balance": {"algorithm": "pick"}}
    loaded = load_fleet(tmp_path, fleets.fleet_of(pool))

    async def versions(key: str) -> tuple[str, str]:
        publishing = Publishing(places=_OwnKey(key))
        await publishing.live.continue_from(loaded)
        served = await publishing.publish(loaded)
        await publishing.end()
        assert publishing.live.previous_snapshot is not None
        return publishing.live.previous_snapshot.version, served.cached_snapshot.version

    before, after = asyncio.run(versions(_KEY))
    assert before == after
    assert after != asyncio.run(versions("another"))[1]
