"""As whom HAProxy works, and where its files end."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from lbctl.ir.address import Address
from lbctl.ir.listeners import Listener
from lbctl.ir.pools import Pool, Replica
from lbctl.ir.snapshot import View
from lbctl.targets.haproxy import TARGET
from tests.support.haproxy import everything, forward, make_view, replicas, running
from tests.support.processes.ports import free_port

_PACKAGED = ["user 'haproxy'", "group 'haproxy'", "chroot '/var/lib/haproxy'"]


def _view(address: Address, port: int = 8080, **proxy: str | None) -> View:
    listener = Listener("pub", Address("127.0.0.1", port), rules=everything())
    return make_view((listener,), (forward("p"),), (Pool("p", (Replica("r1", address),)),), **proxy)


def _identity(view: View) -> list[str]:
    lines = map(str.strip, TARGET.render(view).main.text.splitlines())
    return [item for item in lines if item.startswith(("user ", "group ", "chroot "))]


def test_the_distributions_haproxy_gives_up_root_and_one_elsewhere_stays_who_it_is() -> None:
    address = Address("127.0.0.1", 9001)
    assert _identity(_view(address, config="/etc/haproxy/haproxy.cfg")) == _PACKAGED
    assert _identity(_view(address, config="/usr/local/etc/haproxy/haproxy.cfg")) == []
    assert _identity(_view(address)) == []


def test_what_is_written_counts_everywhere() -> None:
    address, written = Address("127.0.0.1", 9001), ["user 'lb'", "group 'web'", "chroot '/srv'"]
    for config in ("/etc/haproxy/haproxy.cfg", None):
        assert _identity(_view(address, config=config, user="lb", group="web", chroot="/srv")) == written


def test_a_replica_that_is_a_socket_stays_in_reach() -> None:
    assert _identity(_view(Address(path="/run/engine.sock"), config="/etc/haproxy/haproxy.cfg")) == _PACKAGED[:2]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_started_by_root_it_serves_as_the_user_and_sees_none_of_the_files(tmp_path: Path) -> None:
    port, empty = free_port(), tmp_path / "empty"
    empty.mkdir(mode=0o755)
    with replicas("r") as (served,):
        view = _view(served.replica().address, port, user="nobody", group="nogroup", chroot=str(empty))
        with running(view, tmp_path, port) as gateway:
            assert gateway.send().status == 200
            process = Path(f"/proc/{gateway.pid}")
            assert (process / "status").read_text().split("Uid:")[1].split()[0] == str(pwd.getpwnam("nobody").pw_uid)
            assert list((process / "root").iterdir()) == []
