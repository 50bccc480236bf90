"""One answer to "is this an address", "is this loopback", for all that ask."""

from __future__ import annotations

import pytest

from lbctl.base.hosts import from_here, is_ip, is_loopback
from lbctl.ir.address import Address


@pytest.mark.parametrize("host", ["10.0.0.1", "127.0.0.1", "0.0.0.0", "::1", "::", "2001:db8::1", "::ffff:127.0.0.1"])
def test_addresses(host: str) -> None:
    assert is_ip(host)


@pytest.mark.parametrize(
    "host",
    ["", "localhost", "1", "1.2.3", "1.2.3.256", "010.0.0.1", "1.2.3.4\n", "a:b", "[::1]", "::1%lo", "::1%x\nquit"],
)
def test_names_and_what_no_replica_can_have_are_no_addresses(host: str) -> None:
    assert not is_ip(host)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "::1", "::1%lo", "::ffff:127.0.0.1", "localhost", "LOCALHOST"]
)
def test_loopback(host: str) -> None:
    assert is_loopback(host)
    assert Address(host, 80).on_loopback


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "localhost.example", "[::1]"])
def test_what_others_may_reach_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)
    assert not Address(host, 80).on_loopback


def test_only_this_machine_reaches_a_unix_socket() -> None:
    assert Address(path="/run/lbctl.sock").on_loopback


def test_what_listens_everywhere_is_reached_on_loopback() -> None:
    assert [from_here(host) for host in ("0.0.0.0", "::", "10.0.0.1")] == ["127.0.0.1", "::1", "10.0.0.1"]
