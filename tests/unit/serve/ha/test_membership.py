"""A member that has joined a control plane does not leave it if its files cannot be read."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest

from lbctl.ir.address import Address
from lbctl.runtime.errors import UnknownStateError
from lbctl.serve.api.endpoints import Endpoints
from lbctl.serve.fleet.reader import read_control
from lbctl.serve.membership import check_state_is_known, join, shared_store
from lbctl.serve.metrics.instruments import Metrics
from lbctl.serve.settings import Options
from lbctl.xds.protocol.node_status import NodeStatus
from tests.support.api import Fleet
from tests.support.stores import shared_server

WITHOUT_STORE = "version: 1\ncontrol: {api: {bind: 127.0.0.1:0}, xds: {bind: 127.0.0.1:0}}\n"


def _files(directory: Path) -> tuple[Path, str, Options]:
    """Return the file of a fleet, its text with a store, and the options of its process."""
    url = f"redis://127.0.0.1:{shared_server('redis').port}"
    store = f"store: {{url: '{url}', key_prefix: 'test:{secrets.token_hex(4)}'}}"
    path = directory / "fleet.yaml"
    text = WITHOUT_STORE.replace("control: {", f"control: {{{store}, ")
    path.write_text(text)
    anywhere = Address("127.0.0.1", 0)
    return path, text, Options((str(path),), str(directory / "state"), anywhere, anywhere, member="cp-1")


@pytest.mark.slow
def test_member_waits_for_files_that_cannot_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, text, options = _files(tmp_path)

    async def work() -> None:
        first = await shared_store(options, read_control(options.paths).source)
        assert first is not None
        await join(first)
        await first.store.close()
        path.write_text("pools: [")
        starting = asyncio.create_task(shared_store(options, read_control(options.paths).source))
        while str(tmp_path / "state" / "shared") not in caplog.text:
            assert not starting.done(), "it starts without the store"
            await asyncio.sleep(0.01)
        path.write_text(text)
        again = await starting
        assert again is not None
        assert again.store.location == first.store.location
        await again.store.close()
        path.write_text(WITHOUT_STORE)
        (tmp_path / "state" / "shared").unlink()
        assert await shared_store(options, read_control(options.paths).source) is None

    asyncio.run(asyncio.wait_for(work(), 120))


def test_state_that_cannot_be_read_is_not_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text("version: 1\ncontrol:\n  state: [\n  api: {bind: 127.0.0.1:0}\n")
    section = read_control([str(path)])
    with pytest.raises(UnknownStateError):
        check_state_is_known(Options((str(path),)), section)
    assert f"{path}:3:10: error LB004" in caplog.text
    assert "--state DIR" in caplog.text
    check_state_is_known(Options((str(path),), str(tmp_path / "state")), section)
    path.write_text("version: 1\ncontrol:\n  state: state\n  api: [\n")
    check_state_is_known(Options((str(path),)), read_control([str(path)]))
    path.write_text("version: 1\npools: [\n")
    check_state_is_known(Options((str(path),)), read_control([str(path)]))
    assert "the `control` section of the files cannot be read" in caplog.text


def test_store_added_to_the_files_needs_a_restart(tmp_path: Path) -> None:
    path, _, options = _files(tmp_path)

    async def work() -> None:
        nodes = NodeStatus()
        endpoints = Endpoints(options, nodes, Metrics())
        await endpoints.open_api(None, Fleet(), own_token=True)
        try:
            source = read_control((str(path),)).source
            assert source is not None
            await endpoints.open_xds(source, None, lambda *_: None, lambda *_: None, lambda: False)  # type: ignore[arg-type]
            assert "control.store" in endpoints.restart_needed(source)
        finally:
            await endpoints.close()

    asyncio.run(asyncio.wait_for(work(), 120))
