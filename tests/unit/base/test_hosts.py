"""Recognition of IP addresses and loopback hosts."""

from __future__ import annotations

import pytest

from lbctl.base.hosts import from_here, is_ip, is_loopback
from lbctl.ir.address import Address


@pytest.mark.parametrize("host", ["10.0.0.1", "127.0.0.1", "0.0.0.0", "::1", "::", "2001:db8::1", "::ffff:127.0.0.1"])
def test_ip_addresses_are_recognised(host: str) -> None:
    assert is_ip(host)


@pytest.mark.parametrize(
    "host",
    ["", "localhost", "1", "1.2.3", "1.2.3.256", "010.0.0.1", "1.2.3.4\n", "a:b", "[::1]", "::1%lo", "::1%x\nquit"],
)
def test_other_texts_are_not_ip_addresses(host: str) -> None:
    assert not is_ip(host)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.9.9.9", "::1", "::1%lo", "::ffff:127.0.0.1", "localhost", "LOCALHOST"]
)
def test_loopback_hosts_are_recognised(host: str) -> None:
    assert is_loopback(host)
    assert Address(host, 80).on_loopback


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "localhost.example", "[::1]"])
def test_other_hosts_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)
    assert not Address(host, 80).on_loopback


def test_a_unix_socket_is_on_loopback() -> None:
    assert Address(path="/run/lbctl.sock").on_loopback


def test_a_wildcard_address_is_reached_on_loopback() -> None:
    assert [from_here(host) for host in ("0.0.0.0", "::", "10.0.0.1")] == ["127.0.0.1", "::1", "10.0.0.1"]
