"""The user and the chroot of a running HAProxy."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from lbctl.ir.address import Address
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.snapshot import View
from tests.support.haproxy import everything, forward, make_view, replicas, running
from tests.support.processes.ports import free_port


def _view(address: Address, port: int = 8080, **proxy: str | None) -> View:
    listener = Listener("pub", Address("127.0.0.1", port), rules=everything())
    return make_view((listener,), (forward("p"),), (Pool("p", (Replica("r1", address),)),), **proxy)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the user")
def test_root_becomes_the_user_in_the_chroot(tmp_path: Path) -> None:
    port, empty = free_port(), tmp_path / "empty"
    empty.mkdir(mode=0o755)
    with replicas("r") as (served,):
        view = _view(served.replica().address, port, user="nobody", group="nogroup", chroot=str(empty))
        with running(view, tmp_path, port) as gateway:
            assert gateway.send().status == 200
            process = Path(f"/proc/{gateway.pid}")
            assert (process / "status").read_text().split("Uid:")[1].split()[0] == str(pwd.getpwnam("nobody").pw_uid)
            assert list((process / "root").iterdir()) == []
