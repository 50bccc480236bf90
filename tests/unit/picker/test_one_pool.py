"""A picker of one pool (`lbctl picker --pool`) answers gateways, which do not name a pool."""

from __future__ import annotations

import asyncio

import pytest
from envoy.service.ext_proc.v3.external_processor_pb2 import ProcessingRequest, ProcessingResponse

from lbctl.cli import run
from lbctl.ir.address import Address
from lbctl.ir.pools import PickPolicy
from lbctl.pick.table import Candidate, PoolTable
from lbctl.picker import remote_link, wire
from lbctl.picker.ext_proc import ProcessorStream
from lbctl.picker.process import PickerEndpoints, PickerProcess
from lbctl.picker.received_tables import TableFollower
from lbctl.picker.service import PickService

CHAT, EMBEDDER = (
    PoolTable(pool, PickPolicy(()), (Candidate("a", address),))
    for pool, address in (("chat", "10.0.0.1:80"), ("embedder", "10.0.0.2:80"))
)


async def _link(_follower: TableFollower, _service: PickService) -> None:
    pass


def _picker(pool: str | None, *tables: PoolTable) -> PickerProcess:
    """Return a picker that has received these tables, in a running event loop."""
    picker = PickerProcess(PickerEndpoints(Address("127.0.0.1", 1)), _link, "own", is_alone=True, pool=pool)
    lines = wire.line("begin", format=wire.FORMAT), *(wire.whole(table, 0.0) for table in tables), wire.line("ready")
    for line in lines:
        picker.follower.apply(line)
    picker.service.joined()
    return picker


def _answer(service: PickService) -> str | int:
    """Return the destination of a gateway's request, or the status of its rejection."""
    headers = {"headers": {"headers": [{"key": ":path", "raw_value": b"/v1/completions"}]}, "end_of_stream": True}
    request = ProcessingRequest(request_headers=headers)
    (answer,) = ProcessorStream(service).receive(request)
    read = ProcessingResponse.FromString(answer)
    if read.HasField("immediate_response"):
        return int(read.immediate_response.status.code)
    lb = read.dynamic_metadata.fields["envoy.lb"].struct_value
    return str(lb.fields["x-gateway-destination-endpoint"].string_value)


def test_gateway_gets_a_replica_of_the_given_pool() -> None:
    async def run() -> None:
        for pool, answer in (("chat", "10.0.0.1:80"), ("embedder", "10.0.0.2:80"), (None, 503)):
            assert _answer(_picker(pool, CHAT, EMBEDDER).service) == answer

    asyncio.run(run())


def test_changes_of_other_pools_are_ignored() -> None:
    async def run() -> None:
        picker = _picker("chat", CHAT, EMBEDDER)
        moved = (PoolTable(table.pool, PickPolicy(()), (Candidate("b", "10.0.0.9:80"),)) for table in (CHAT, EMBEDDER))
        for before, after in zip((CHAT, EMBEDDER), moved, strict=True):
            line = wire.changes(before, after, 0.0)
            assert line is not None
            picker.follower.apply(line)
        picker.follower.apply(wire.line("gone", pool="embedder"))
        assert picker.service.is_ready
        assert _answer(picker.service) == "10.0.0.9:80"

    asyncio.run(run())


def test_pool_without_a_table_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        picker = _picker("caht", CHAT)
        assert not picker.service.is_ready
        assert _answer(picker.service) == 503

    asyncio.run(run())
    (record,) = caplog.records
    assert "no such pool with `algorithm: pick`" in record.message
    assert getattr(record, "fields", {})["pool"] == "caht"


def test_removal_of_the_pool_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        picker = _picker("chat", CHAT, EMBEDDER)
        picker.follower.apply(wire.line("gone", pool="embedder"))
        assert not caplog.records
        picker.follower.apply(wire.line("gone", pool="chat"))
        assert not picker.service.is_ready

    asyncio.run(run())
    assert [getattr(record, "fields", {})["pool"] for record in caplog.records] == ["chat"]


def test_option_pool_reaches_the_picker(monkeypatch: pytest.MonkeyPatch) -> None:
    pools: list[str | None] = []

    async def started(self: PickerProcess) -> int:
        return 0

    def built(*_: object, pool: str | None, **__: object) -> PickerProcess:
        pools.append(pool)
        return PickerProcess.__new__(PickerProcess)

    monkeypatch.setattr(PickerProcess, "run", started)
    monkeypatch.setattr(remote_link, "PickerProcess", built)
    for options in ([], ["--pool", "chat"]):
        assert run(["picker", "--server", "http://127.0.0.1:1", *options]) == 0
    assert pools == [None, "chat"]
